"""Persistent state: attributes of a grain that outlive its activations, and where they are stored."""
