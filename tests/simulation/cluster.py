"""A cluster of simulated processes: silos and clients on the network, the store and the clocks of one seed."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

from silo.client import Client
from silo.directory.lease_post import LeasePost
from silo.directory.lease_settings import LeaseSettings
from silo.directory.loop_membership import LoopMembership
from silo.directory.membership import SiloStatus
from silo.directory.memory_directory import DirectoryRows
from silo.directory.memory_membership import MemoryMembershipTable
from silo.host import Silo
from silo.settings import ActivationSettings, MigrationSettings, SiloSettings
from silo.surroundings import Surroundings
from silo.testing.network import MemoryNetwork
from silo.testing.nodes import Node, NodeClock, NodeState
from silo.testing.virtual_time import VirtualTimeLoop
from tests.simulation.grains import GRAINS, Stage
from tests.simulation.stores import DistantDirectory, LeaseRoad, Store, TableWay
from tests.support.history import Placed
from tests.support.witness import What

DRIFT = 0.04
"""The most by which a silo's clock runs fast or slow; leases allow for 10 %."""
LEASE = LeaseSettings(lease_s=5.0, grace_s=6.0)
"""With less grace than by default, so that outages of the store within a run are longer and shorter than it."""
SHUTDOWN_TIMEOUT_S = 15.0


@dataclass(eq=False)
class Process:
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
class ClientProcess:
    """One simulated client process."""

    node: Node
    client: Client

    @property
    def name(self) -> str:
        return self.node.name


class SimulatedCluster:
    """The silos, the clients, and the world between them."""

    def __init__(self, loop: VirtualTimeLoop, rng: random.Random, stage: Stage) -> None:
        self.loop = loop
        self.rng = rng
        self.stage = stage
        self.network = MemoryNetwork(random.Random(rng.random()))
        self.store = Store(self.network, random.Random(rng.random()))
        self.rows = DirectoryRows()
        self.table = MemoryMembershipTable()
        self._road = LeaseRoad(self.network)
        self._post = LeasePost(self._road)
        self.silos: dict[str, Process] = {}
        """Those that were started and have neither left nor been killed."""
        self.clients: dict[str, ClientProcess] = {}
        self._names = itertools.count(1)
        self._incarnations = itertools.count(1)
        self._dead: set[str] = set()
        self.is_disturbed = False
        """Whether a fault has happened and not been declared healed."""
        self._forget = self.table.follow(self._tell_deaths)

    # Silos

    async def start_silo(self, endpoint: str | None = None) -> Process:
        """Start a silo process and wait until it serves; raises NodeKilled, or what its start raises."""
        number = next(self._names)
        name = f"s{number}"
        endpoint = endpoint or f"host-{number}:7000"
        node = self.loop.node(name)
        self._road.homes[endpoint] = name
        settings = SiloSettings(
            cluster="simulated",
            name=name,
            listen=endpoint,
            insecure=True,
            lease=LEASE,
            activation=ActivationSettings(collect_every_s=5.0),
            migration=MigrationSettings(shutdown_timeout_s=SHUTDOWN_TIMEOUT_S, drain_timeout_s=5.0),
        )
        silo = node.call(Silo, *GRAINS, settings=settings, surroundings=self._surroundings(node))
        process = self.silos[name] = Process(node, silo, endpoint)
        try:
            await node.run(silo.start(), name=f"start {name}")
        except BaseException:
            self.silos.pop(name, None)
            raise
        process.ready = True
        return process

    def _surroundings(self, node: Node) -> Surroundings:
        way = TableWay(self.store, node.name)
        clock = NodeClock(self.loop.time, self.rng.uniform(1 - DRIFT, 1 + DRIFT), self.rng.uniform(0, 10_000))
        return Surroundings(
            open_transport=lambda _services: self.network.transport(node),
            open_directory=lambda: DistantDirectory(self.store, self.rows, node.name),
            open_membership=lambda: LoopMembership(
                self.table,
                settings=LEASE,
                clock=clock,
                post=self._post,
                follow=self.table.follow,
                before=way.before,
                after=way.after,
            ),
            new_incarnation=lambda: next(self._incarnations),
            rng=random.Random(self.rng.random()),
            stopwatch=self.loop.time,
        )

    async def drain(self, process: Process) -> None:
        """Let a silo leave in order, as SIGTERM does; raises NodeKilled."""
        process.leaving = True
        await process.node.run(process.silo.drain_and_stop(), name=f"drain {process.name}")
        self.silos.pop(process.name, None)

    def kill(self, process: Process) -> None:
        """SIGKILL."""
        self.silos.pop(process.name, None)
        process.node.kill()
        self._tell_lost(str(process.silo.address), "killed")

    def _tell_deaths(self, _version: int) -> None:
        """What the table declares dead is lost, unless it says goodbye after an orderly drain."""
        for row in self.table.table.rows:
            if row.status is SiloStatus.DEAD and str(row.silo) not in self._dead:
                process = self.silos.get(row.info.name)
                if process is None or not process.leaving or self.is_disturbed:
                    self._tell_lost(str(row.silo), "declared dead")
                self._dead.add(str(row.silo))

    def _tell_lost(self, silo: str, because: str) -> None:
        if silo not in self._dead:
            self._dead.add(silo)
            self.stage.witness(What.SILO_LOST, silo=silo, because=because)

    # Clients

    async def start_client(self) -> ClientProcess:
        """Start a client process that knows every endpoint there is now."""
        name = f"c{next(self._names)}"
        node = self.loop.node(name)
        gateways = [process.endpoint for process in self.silos.values()]
        client = Client.connect(
            cluster="simulated",
            gateways=gateways,
            name=name,
            transport=self.network.transport(node),
            rng=random.Random(self.rng.random()),
        )
        process = self.clients[name] = ClientProcess(node, client)
        await node.run(client.open(), name=f"open {name}")
        return process

    def kill_client(self, process: ClientProcess) -> None:
        """SIGKILL."""
        self.clients.pop(process.name, None)
        process.node.kill()
        self.stage.witness(What.CALLER_LOST, caller=process.name)

    # The end

    def placed_rows(self) -> list[Placed]:
        """What the directory says."""
        return [Placed(str(entry.grain), str(entry.silo), entry.activation, entry.epoch) for entry in self.rows.all()]

    def placed_activations(self) -> list[Placed]:
        """What lives in the catalogs."""
        return [
            Placed(
                str(activation.id),
                str(process.silo.address),
                activation.activation_id,
                activation.entry.epoch if activation.entry is not None else 0,
            )
            for process in self.silos.values()
            for activation in process.silo.runtime.catalog
        ]

    def heal(self) -> None:
        """End every fault that has an end."""
        self.network.heal()
        self.store.is_down = False
        self.store.fails = self.store.loses_answers = 0.0
        for process in self.silos.values():
            if process.ready:
                self.resume(process.node, str(process.silo.address))
        for client in self.clients.values():
            self.resume(client.node, client.name)

    def pause(self, node: Node, identity: str) -> None:
        """SIGSTOP."""
        if node.state is NodeState.RUNNING:
            node.pause()
            self.stage.witness(What.PAUSED, silo=identity)

    def resume(self, node: Node, identity: str) -> None:
        """SIGCONT."""
        if node.state is NodeState.PAUSED:
            node.resume()
            self.stage.witness(What.RESUMED, silo=identity)

    def fault(self, because: str) -> None:
        """Tell the witness that from now on calls may be lost."""
        self.is_disturbed = True
        self.stage.witness(What.FAULT, because=because)

    def healed(self) -> None:
        """Tell the witness that nothing is wrong any more."""
        self.is_disturbed = False
        self.stage.witness(What.HEALED)

    def close(self) -> None:
        """Look at the membership table no longer."""
        self._forget()
