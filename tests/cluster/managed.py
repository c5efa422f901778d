"""Management of a cluster in memory: the client's side as it is, whose questions the silos of this process answer."""

from __future__ import annotations

from collections.abc import Sequence

from silo.directory.errors import SiloUnavailable
from silo.management import Management
from silo.management_wire import (
    DEACTIVATE,
    GRAIN,
    STATUS,
    deactivate_from_wire,
    deactivation_to_wire,
    grain_asked_from_wire,
    grain_report_to_wire,
    report_to_wire,
)
from tests.cluster.clusters import Cluster


class NearManagement(Management):
    """Asks the silos of a test cluster without a network; those in `silent` answer nothing."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(self._endpoints, None)
        self._cluster = cluster
        self.silent: set[str] = set()

    async def _endpoints(self, _within_s: float) -> Sequence[str]:
        return [silo.endpoint for name, silo in self._cluster.silos.items() if name not in self.silent]

    async def _ask(self, endpoint: str, method: str, request: bytes, timeout_s: float | None = None) -> bytes:
        runtime = next(
            (
                silo.runtime
                for name, silo in self._cluster.silos.items()
                if silo.endpoint == endpoint and name not in self.silent
            ),
            None,
        )
        if runtime is None:
            raise SiloUnavailable(f"{endpoint}: nobody answers")
        match method:
            case _ if method == STATUS:
                return report_to_wire(await runtime.report())
            case _ if method == GRAIN:
                grain, look_up = grain_asked_from_wire(request)
                return grain_report_to_wire(await runtime.grain_report(grain, look_up=look_up))
            case _ if method == DEACTIVATE:
                return deactivation_to_wire(await runtime.deactivate(*deactivate_from_wire(request)))
            case _:
                raise AssertionError(method)
