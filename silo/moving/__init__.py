"""Moves: the shells around the handover protocol, at the source and at the target."""
