"""The testing kit: whole clusters in one test, under virtual time, with every fault, and judged by what they promise.

```python
def test_a_room_survives_a_move() -> None:
    async def scenario(cluster: Cluster) -> None:
        room = cluster.client.grain(Room, "lobby")
        await room.enter("ada")
        await cluster.migrate(room, to="silo-2")
        assert await room.players() == ["ada"]

    run_simulated(scenario, kinds=[Room], silos=3, seed=7)
```
It needs no test framework. docs/testing.md is the tutorial.
"""

from silo.testing.cluster import FLAKY, LAN, WAN, Cluster, NetworkProfile, NotMoved
from silo.testing.history import Violation
from silo.testing.migratable import NotMigratable, check_migratable
from silo.testing.processes import ProcessCluster, SiloProcess, SiloProcessFailed
from silo.testing.simulated import PromiseBroken, Run, run_simulated
from silo.testing.steps import InjectedFault, Place, Planned, Step, StepNotReached
from silo.testing.virtual_time import SimulationFailure
from silo.testing.witness import Event

__all__ = [
    "FLAKY",
    "LAN",
    "WAN",
    "Cluster",
    "Event",
    "InjectedFault",
    "NetworkProfile",
    "NotMigratable",
    "NotMoved",
    "Place",
    "Planned",
    "ProcessCluster",
    "PromiseBroken",
    "Run",
    "SiloProcess",
    "SiloProcessFailed",
    "SimulationFailure",
    "Step",
    "StepNotReached",
    "Violation",
    "check_migratable",
    "run_simulated",
]
