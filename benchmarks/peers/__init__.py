"""Peers: what else a Python program may call stateful objects with, measured by the same closed loops as the runtime.

Each is measured by a process of its own (`caller.py`), under an interpreter of its own if need be; so nothing in this
package imports the runtime, and only a peer's adapter imports the peer.
"""
