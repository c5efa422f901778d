"""When a link takes the direct lane, and which way: at each new connection, by the best that has not just failed."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from silo.messaging.limits import LinkLimits
from silo.messaging.transport import Transport

FAILURES_MAX: Final = 4096
"""Ways to peers of which it is remembered that they failed."""
MISSED_PAUSE_GROWS: Final = 4.0
"""How many times longer the pause is after each attempt in a row that came to nothing."""


class LocalWays(Transport, Protocol):
    """A transport within one host."""

    def reaches(self, endpoint: str) -> bool:
        """Whether this is an endpoint on this very host."""
        ...


class Way(NamedTuple):
    """One way to the direct lane of a peer."""

    transport: Transport
    endpoint: str


@dataclass(slots=True)
class _Failure:
    until: float
    missed: int


class DirectLane:
    """The direct lane as one silo has it: what reaches those of others, and where its own listens.

    Args:
        transport: dials the lane of another silo.
        endpoint: `host:port`, where others reach this silo's.
        local: dials the lanes of silos on this host, better than that.
        local_endpoint: where silos on this host reach this one's so.
    """

    def __init__(
        self, transport: Transport, endpoint: str, local: LocalWays | None = None, local_endpoint: str = ""
    ) -> None:
        self.transport = transport
        self.endpoint = endpoint
        self.local = local
        self.local_endpoint = local_endpoint
        self._failures: OrderedDict[tuple[str, str], _Failure] = OrderedDict()

    def ways(self, endpoint: str, local_endpoint: str) -> list[Way]:
        """The ways to a silo that offers these endpoints, the best first."""
        found: list[Way] = []
        if self.local is not None and local_endpoint and self.local.reaches(local_endpoint):
            found.append(Way(self.local, local_endpoint))
        if endpoint:
            found.append(Way(self.transport, endpoint))
        return found

    def avoided_s(self, peer: str, way: Way, now: float) -> float:
        """For how long this way to that peer is not to be tried; 0 where it may be."""
        failure = self._failures.get((peer, way.endpoint))
        return 0.0 if failure is None else max(0.0, failure.until - now)

    def missed(self, peer: str, way: Way, now: float, limits: LinkLimits) -> None:
        """It was not to be had, which costs little: soon it is tried again, and then less and less often."""
        before = self._failures.get((peer, way.endpoint))
        missed = before.missed if before is not None else 0
        pause_s = min(limits.direct_retry_s, limits.link_redial_s * MISSED_PAUSE_GROWS ** min(missed, 10))
        self._note(peer, way, _Failure(now + pause_s, missed + 1))

    def lost(self, peer: str, way: Way, now: float, limits: LinkLimits) -> None:
        """It broke as soon as it was had, for which calls wait: others serve for a while, and gRPC at last."""
        self._note(peer, way, _Failure(now + limits.direct_retry_s, 0))

    def held(self, peer: str, way: Way) -> None:
        """It has served for a time: whatever was before counts no more."""
        self._failures.pop((peer, way.endpoint), None)

    def _note(self, peer: str, way: Way, failure: _Failure) -> None:
        self._failures.pop((peer, way.endpoint), None)
        self._failures[peer, way.endpoint] = failure
        while len(self._failures) > FAILURES_MAX:
            self._failures.popitem(last=False)
