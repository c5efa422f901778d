"""Samples: each runs by itself, prints what happens, and is run by a test."""
