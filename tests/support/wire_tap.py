"""A tap on the wires of the network in memory: every message that is written, with its bytes and who writes to whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from silo.messaging.greeting import message_decoder
from silo.testing.wires import Item, Wire
from silo.wire.frames import Batch, Frame, Orders


class Tapped(NamedTuple):
    """One message."""

    source: str
    target: str
    size: int
    frames: tuple[Frame, ...]


class WireTap:
    """The messages with frames that have been written since the tap was set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.messages: list[Tapped] = []
        put = Wire.put

        def tapped(wire: Wire, item: Item) -> None:
            if isinstance(item, bytes):
                message = message_decoder.decode(item)
                if isinstance(message, Batch) and message.frames:
                    self.messages.append(Tapped(*wire.ends, len(item), message.frames))
            put(wire, item)

        monkeypatch.setattr(Wire, "put", tapped)

    def frames(self) -> Iterator[Frame]:
        for message in self.messages:
            yield from message.frames

    def orders(self) -> list[Orders]:
        return [frame for frame in self.frames() if isinstance(frame, Orders)]

    def counted(self) -> Counter[str]:
        """How many frames there were of each kind."""
        return Counter(type(frame).__name__ for frame in self.frames())
