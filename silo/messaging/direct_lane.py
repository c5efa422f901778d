"""When a link takes the direct lane: at each new connection, unless it has just failed on the way to that peer."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from silo.messaging.limits import LinkLimits
from silo.messaging.transport import Transport

FAILURES_MAX: Final = 4096
"""Peers of which it is remembered that the lane to them failed."""
MISSED_PAUSE_GROWS: Final = 4.0
"""How many times longer the pause is after each attempt in a row that came to nothing."""


@dataclass(slots=True)
class _Failure:
    until: float
    missed: int


class DirectLane:
    """The direct lane as one silo has it: what reaches those of others, and where its own listens.

    Args:
        transport: dials the lane of another silo.
        endpoint: `host:port`, where others reach this silo's.
    """

    def __init__(self, transport: Transport, endpoint: str) -> None:
        self.transport = transport
        self.endpoint = endpoint
        self._failures: OrderedDict[str, _Failure] = OrderedDict()

    def avoided_s(self, peer: str, now: float) -> float:
        """For how long the way to this peer is not to be tried; 0 where it may be."""
        failure = self._failures.get(peer)
        return 0.0 if failure is None else max(0.0, failure.until - now)

    def missed(self, peer: str, now: float, limits: LinkLimits) -> None:
        """It was not to be had, which costs little: soon it is tried again, and then less and less often."""
        before = self._failures.get(peer)
        missed = before.missed if before is not None else 0
        pause_s = min(limits.direct_retry_s, limits.link_redial_s * MISSED_PAUSE_GROWS ** min(missed, 10))
        self._note(peer, _Failure(now + pause_s, missed + 1))

    def lost(self, peer: str, now: float, limits: LinkLimits) -> None:
        """It broke as soon as it was had, for which calls wait: gRPC alone serves for a while."""
        self._note(peer, _Failure(now + limits.direct_retry_s, 0))

    def held(self, peer: str) -> None:
        """It has served for a time: whatever was before counts no more."""
        self._failures.pop(peer, None)

    def _note(self, peer: str, failure: _Failure) -> None:
        self._failures.pop(peer, None)
        self._failures[peer] = failure
        while len(self._failures) > FAILURES_MAX:
            self._failures.popitem(last=False)
