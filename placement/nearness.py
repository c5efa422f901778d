"""Placement near another grain: on its silo, while that has not more than its due."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from silo.directory.addresses import SiloAddress
from silo.directory.errors import InvalidSettings
from silo.placement.load import AttachedLoads
from silo.placement.policy import Candidate, PolicyRuntime

NEAR_RATIO = 2.0
"""Up to which multiple of its share a silo is filled by wishes to be near a grain of its own."""
NEAR_HEADROOM = 2
"""Activations that this allows on top: a share near zero is no reason to keep peers apart."""


class Nearness:
    """How far placement near a peer may fill that peer's silo.

    Without a bound, whoever is much called would gather everybody around itself. The bound needs the load, hence
    applies once attached.

    Args:
        ratio: up to this multiple of the share that its capacity gives the silo, plus two.
    """

    def __init__(self, ratio: float = NEAR_RATIO) -> None:
        if not ratio >= 1:
            raise InvalidSettings(f"the ratio for placement near a peer is at least 1, not {ratio}")
        self._ratio = ratio
        self._loads = AttachedLoads()

    def attach(self, runtime: PolicyRuntime) -> Callable[[], None]:
        return self._loads.attach(runtime)

    def why_not(self, silo: SiloAddress, candidates: Sequence[Candidate], local: SiloAddress | None) -> str | None:
        """Why the peer's silo, a candidate, is not to have one more; None where it is, and is then counted there."""
        load = self._loads.at(local)
        if load is None:
            return None
        capacity = next(one.capacity for one in candidates if one.silo == silo)
        total = sum(load.known(one.silo) for one in candidates)
        fair = total * capacity / sum(one.capacity for one in candidates)
        most = self._ratio * fair + NEAR_HEADROOM
        if load.known(silo) >= most:
            return f"it has {load.known(silo):.0f} activations, of at most {most:.1f} by being near"
        load.placed(silo)
        return None
