"""When a link takes the direct lane: at each new connection, unless it has just failed on the way to that peer."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from silo.messaging.limits import LinkLimits
from silo.messaging.transport import Transport

FAILURES_MAX: Final = 4096
"""Peers of which it is remembered that the lane to them failed."""


class DirectLane:
    """The direct lane as one silo has it: what reaches those of others, and where its own listens.

    Args:
        transport: dials the lane of another silo.
        endpoint: `host:port`, where others reach this silo's.
    """

    def __init__(self, transport: Transport, endpoint: str) -> None:
        self.transport = transport
        self.endpoint = endpoint
        self._avoided_until: OrderedDict[str, float] = OrderedDict()

    def avoided_s(self, peer: str, now: float) -> float:
        """For how long the way to this peer is not to be tried again, since it has failed; 0 where it may be."""
        left_s = self._avoided_until.get(peer, now) - now
        if left_s <= 0:
            self._avoided_until.pop(peer, None)
        return max(0.0, left_s)

    def failed(self, peer: str, now: float, limits: LinkLimits) -> None:
        """It could not be had, or broke as soon as it was: gRPC alone serves for a while."""
        self._avoided_until.pop(peer, None)
        self._avoided_until[peer] = now + limits.direct_retry_s
        while len(self._avoided_until) > FAILURES_MAX:
            self._avoided_until.popitem(last=False)
