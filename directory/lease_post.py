"""How leases within one process talk to each other, for simulations and for clusters within one process."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable

from silo.directory.addresses import SiloAddress
from silo.directory.lease_messages import LeaseMessage

OnMessage = Callable[[SiloAddress, LeaseMessage], None]
Deliver = Callable[[], None]


Road = Callable[[SiloAddress, SiloAddress, Deliver], None]
"""The way of one message, from the sender to the receiver: calls `deliver` now, later, often, or never."""


def _at_once(_sender: SiloAddress, _receiver: SiloAddress, deliver: Deliver) -> None:
    """No delay, no fault."""
    deliver()


class LeasePost:
    """Where every lease of the process is known by its silo's address.

    Args:
        road: carries each message; on arrival it is dealt with as the receiver's own task would.
    """

    def __init__(self, road: Road = _at_once) -> None:
        self._road = road
        self._boxes: dict[SiloAddress, tuple[OnMessage, contextvars.Context]] = {}

    def open(self, silo: SiloAddress, on_message: OnMessage) -> Callable[[], None]:
        """Take what is sent to this silo; returns what ends it."""
        self._boxes[silo] = (on_message, contextvars.copy_context())

        def end() -> None:
            self._boxes.pop(silo, None)

        return end

    def send(self, sender: SiloAddress, receiver: SiloAddress, message: LeaseMessage) -> None:
        """Send it on its way; nobody is told if it is lost."""

        def deliver() -> None:
            box = self._boxes.get(receiver)
            if box is not None:
                on_message, context = box
                asyncio.get_running_loop().call_soon(on_message, sender, message, context=context)

        self._road(sender, receiver, deliver)
