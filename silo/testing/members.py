"""The simulated processes of one cluster: started, drained, killed, frozen, and what the witness is told of that."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from silo.client import Client
from silo.directory.lease_settings import LeaseSettings
from silo.directory.membership import SiloStatus
from silo.host import Silo
from silo.serialization.registry import DEFAULT_REGISTRY, TypeRegistry
from silo.settings import SiloSettings
from silo.testing.history import Placed
from silo.testing.looking import Looking
from silo.testing.network import DELAY_S
from silo.testing.nodes import Node, NodeClock, NodeState
from silo.testing.virtual_time import VirtualTimeLoop
from silo.testing.witness import ListWitness, What
from silo.testing.world import World

if TYPE_CHECKING:
    from silo.telemetry import Telemetry

DRIFT = 0.04
"""The most by which a silo's clock runs fast or slow; leases allow for 10 %."""
LEASE = LeaseSettings(lease_s=5.0, grace_s=6.0)
"""With less grace than by default, so that outages of the store within a run are longer and shorter than it."""
CLUSTER = "simulated"
"""The cluster's name."""


@dataclass(eq=False)
class SimulatedSilo:
    """One simulated silo process."""

    node: Node
    silo: Silo
    endpoint: str
    ready: bool = False
    leaving: bool = False

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def serves(self) -> bool:
        """Whether it was not told to end."""
        return self.ready and self.node.state is not NodeState.KILLED and not self.leaving


@dataclass(eq=False)
class SimulatedClient:
    """One simulated client process."""

    node: Node
    client: Client

    @property
    def name(self) -> str:
        return self.node.name


class Members(Looking):
    """The silos and clients of one cluster, each a simulated process, and the world between them.

    Args:
        kinds: what its silos host, where a start says nothing else.
        settings: of its silos, likewise; cluster and lease are the simulation's own.
        telemetry: what its silos report to.
        delay_s: the range of a message's travelling time, in seconds.
    """

    def __init__(
        self,
        loop: VirtualTimeLoop,
        rng: random.Random,
        witness: ListWitness,
        *,
        kinds: Sequence[type | ModuleType],
        settings: Mapping[str, Any],
        registry: TypeRegistry = DEFAULT_REGISTRY,
        telemetry: Telemetry | None = None,
        delay_s: tuple[float, float] = DELAY_S,
    ) -> None:
        self.loop = loop
        self.rng = rng
        self.witness = witness
        self.world = World(rng, lease=LEASE, delay_s=delay_s)
        self.network = self.world.network
        self.store = self.world.store
        self.processes: dict[str, SimulatedSilo] = {}
        """Those that were started and have neither left nor been killed."""
        self.clients: dict[str, SimulatedClient] = {}
        self._kinds = kinds
        self._settings = settings
        self._registry = registry
        self._telemetry = telemetry
        self._numbers = itertools.count(1)
        self._has_served = False
        """Whether there has been a silo: until then one that starts is the first of a new cluster."""
        self._dead: set[str] = set()
        self.is_disturbed = False
        """Whether a fault has happened and not been declared healed."""
        self._forget = self.world.table.follow(self._tell_deaths)

    def hosts(self) -> Mapping[str, Silo]:
        return {name: process.silo for name, process in self.processes.items() if process.ready}

    # ----------------------------------------------------------------------------------------------------------- silos

    async def start_silo(
        self,
        name: str | None = None,
        *,
        endpoint: str | None = None,
        kinds: Sequence[type | ModuleType] | None = None,
        **settings: Any,
    ) -> SimulatedSilo:
        """Start a silo process and wait until it serves; raises NodeKilled, or what its start raises.

        Args:
            name: the next of `silo-1`, `silo-2` and so on, where none is given.
            endpoint: where it listens; one of its name's own where none is given.
        """
        name = name or self._next_name()
        endpoint = endpoint or f"{name}:7000"
        node = self.loop.node(name)
        self.world.road.homes[endpoint] = name
        values: dict[str, Any] = {"insecure": True, "bootstrap": not self._has_served, **self._settings, **settings}
        values |= {"cluster": CLUSTER, "lease": LEASE, "name": name, "listen": endpoint}
        own = SiloSettings(**values)
        clock = NodeClock(self.loop.time, self.rng.uniform(1 - DRIFT, 1 + DRIFT), self.rng.uniform(0, 10_000))
        silo = node.call(
            Silo,
            *(self._kinds if kinds is None else kinds),
            settings=own,
            surroundings=self.world.surroundings(node, clock),
            registry=self._registry,
            telemetry=self._telemetry,
        )
        process = self.processes[name] = SimulatedSilo(node, silo, endpoint)
        try:
            await node.run(silo.start(), name=f"start {name}")
        except BaseException:
            self._drop(process)
            raise
        process.ready = self._has_served = True
        return process

    def _next_name(self) -> str:
        return next(name for name in map("silo-{}".format, self._numbers) if name not in self.processes)

    async def drain_silo(self, process: SimulatedSilo) -> None:
        """Let a silo leave in order, as SIGTERM does; raises NodeKilled."""
        process.leaving = True
        await process.node.run(process.silo.drain_and_stop(), name=f"drain {process.name}")
        self._drop(process)
        if self.is_disturbed:  # what it could not move went with it, and a table that was lost never shows its goodbye
            self._tell_lost(str(process.silo.address), "left while a fault was near")

    def kill_silo(self, process: SimulatedSilo) -> None:
        """SIGKILL."""
        self._drop(process)
        process.node.kill()
        if process.ready:
            self._tell_lost(str(process.silo.address), "killed")

    def _drop(self, process: SimulatedSilo) -> None:
        if self.processes.get(process.name) is process:
            del self.processes[process.name]

    def _tell_deaths(self, _version: int) -> None:
        """What the table declares dead is lost, unless it says goodbye after an orderly drain."""
        for row in self.world.table.table.rows:
            if row.status is SiloStatus.DEAD and str(row.silo) not in self._dead:
                process = self.processes.get(row.info.name)
                if process is None or not process.leaving or self.is_disturbed:
                    self._tell_lost(str(row.silo), "declared dead")
                self._dead.add(str(row.silo))

    def _tell_lost(self, silo: str, because: str) -> None:
        if silo not in self._dead:
            self._dead.add(silo)
            self.witness(What.SILO_LOST, silo=silo, because=because)

    # --------------------------------------------------------------------------------------------------------- clients

    async def start_client(self) -> SimulatedClient:
        """Start a client process that knows every endpoint there is now."""
        node = self.loop.node(f"client-{next(self._numbers)}")
        process = self.clients[node.name] = SimulatedClient(node, self.new_client(node))
        await node.run(process.client.open(), name=f"open {node.name}")
        return process

    def new_client(self, node: Node | str, **options: Any) -> Client:
        """A client that is not open yet, at a simulated process or at a mere name of the network."""
        return Client.connect(
            cluster=CLUSTER,
            gateways=[process.endpoint for process in self.processes.values()],
            name=node if isinstance(node, str) else node.name,
            transport=self.network.transport(node),
            rng=self.world.draw_rng(),
            registry=self._registry,
            **options,
        )

    def kill_client(self, process: SimulatedClient) -> None:
        """SIGKILL."""
        self.clients.pop(process.name, None)
        process.node.kill()
        self.witness(What.CALLER_LOST, caller=process.name)

    # ---------------------------------------------------------------------------------------------------------- faults

    def freeze(self, node: Node, identity: str) -> None:
        """SIGSTOP."""
        if node.state is NodeState.RUNNING:
            node.pause()
            self.witness(What.PAUSED, silo=identity)

    def thaw(self, node: Node, identity: str) -> None:
        """SIGCONT."""
        if node.state is NodeState.PAUSED:
            node.resume()
            self.witness(What.RESUMED, silo=identity)

    def heal_all(self) -> None:
        """End every fault that has an end."""
        self.network.heal()
        self.store.heal()
        for process in self.processes.values():
            if process.ready:
                self.thaw(process.node, str(process.silo.address))
        for client in self.clients.values():
            self.thaw(client.node, client.name)

    def fault(self, because: str) -> None:
        """Tell the witness that from now on calls may be lost."""
        self.is_disturbed = True
        self.witness(What.FAULT, because=because)

    def healed(self) -> None:
        """Tell the witness that nothing is wrong any more."""
        self.is_disturbed = False
        self.witness(What.HEALED)

    # --------------------------------------------------------------------------------------------------------- the end

    def placed_rows(self) -> list[Placed]:
        """What the directory says."""
        rows = self.world.rows.all()
        return [Placed(str(entry.grain), str(entry.silo), entry.activation, entry.epoch) for entry in rows]

    def placed_activations(self) -> list[Placed]:
        """What lives in the catalogs."""
        return [
            Placed(
                str(activation.id),
                str(silo.address),
                activation.activation_id,
                activation.entry.epoch if activation.entry is not None else 0,
            )
            for silo in self.hosts().values()
            for activation in silo.runtime.catalog
        ]

    def close(self) -> None:
        """Look at the membership table no longer."""
        self._forget()
