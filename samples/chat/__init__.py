"""Chat: a room that moves to another silo in the middle of a conversation, and readers who read on.

`python -m samples.chat`, or `silo dev samples.chat --once`.
"""

from samples.chat.conversation import main
from samples.chat.room import Room

__all__ = ["Room", "main"]
