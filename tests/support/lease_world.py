"""Many lease cores around one membership table in virtual time, with everything that can go wrong between them.

Times are seconds. Every silo has a clock of its own that starts anywhere and runs up to 4 % fast or slow. Requests,
answers and what silos say to each other are lost, delayed and repeated, in one direction or both; silos are paused,
crash, join and say goodbye; the store goes away, stands still, fails over and loses renewals, or loses the table.
`violation` is set once a silo that the table calls dead, or that a lost one has called so, may start a turn.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from silo.directory.addresses import SiloAddress
from silo.directory.errors import MembershipUnavailable, SiloError
from silo.directory.lease import LeaseCore
from silo.directory.lease_events import (
    AdvanceAsked,
    Answered,
    AskTable,
    Conclude,
    Event,
    Failed,
    GoodbyeAsked,
    Hinted,
    HoldRight,
    JoinAsked,
    PeerSaid,
    ProcessEnded,
    ResignRight,
    Tell,
    Ticked,
    WatchProcess,
)
from silo.directory.lease_messages import LeaseMessage
from silo.directory.lease_settings import LeaseSettings
from silo.directory.membership import ProcessIdentity, SiloInfo, SiloStatus, Table, TableAnswer, TableRequest
from silo.directory.memory_membership import MemoryMembershipTable

DRIFT_MAX = 0.04
DELAY_S = (0.0005, 0.008)
"""The delay of a message where nothing is wrong."""


@dataclass(eq=False)
class Node:
    """One silo process: its core, its clock, and its right as the core's orders have left it."""

    address: SiloAddress
    info: SiloInfo
    core: LeaseCore
    rate: float
    offset: float
    state: str = "up"
    """`up`, `paused` or `gone`."""
    deadline: float = -math.inf
    held_back: list[Event] = field(default_factory=list)
    watching: set[SiloAddress] = field(default_factory=set)
    concluded: list[tuple[int, SiloError | None]] = field(default_factory=list)
    timer: int = 0
    mute: bool = False
    """Its requests to the store are lost."""
    deaf: bool = False
    """The store's answers to it are lost."""
    declared_dead: bool = False


class World:
    """See the module. `wild` is how often messages are lost, delayed for long, and repeated."""

    def __init__(
        self,
        seed: int,
        *,
        settings: LeaseSettings | None = None,
        core_type: type[LeaseCore] = LeaseCore,
        table: MemoryMembershipTable | None = None,
        wild: float = 0.0,
        drift: float = DRIFT_MAX,
        hints: bool = True,
        machines: bool = False,
    ) -> None:
        self.rng = random.Random(seed)
        self.settings = settings or LeaseSettings()
        self.table = table or MemoryMembershipTable()
        self.now = 0.0
        self.nodes: list[Node] = []
        self.wild = wild
        self.events = 0
        self.violation: str | None = None
        self.deaths: dict[SiloAddress, float] = {}
        self.store = "up"
        """`up`, `away` (requests are lost) or `still` (they wait)."""
        self.snapshots: list[Table] = []
        self.cut: set[tuple[SiloAddress, SiloAddress]] = set()
        """Between whom messages are lost, by direction."""
        self.messages = 0
        """What silos have said to each other."""
        self.fenced: dict[SiloAddress, float] = {}
        """Since when a living silo that has held the right does not."""
        self.pauses_s: list[float] = []
        self._core_type = core_type
        self._drift = drift
        self._hints = hints
        self._machines = machines
        self._waiting: list[tuple[Node, TableRequest, float]] = []
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._tokens = itertools.count(1)
        self.table.follow(self._on_version)

    # ---- what a test does

    def add(self, *, status: SiloStatus | None = SiloStatus.ACTIVE) -> Node:
        number = len(self.nodes)
        process = ProcessIdentity("machine", 100 + number, number) if self._machines else None
        node = Node(
            SiloAddress(f"10.0.0.{number}:7000", 1000 + number),
            SiloInfo(name=f"silo-{number}", process=process),
            self._core_type(self.settings),
            rate=1 + self.rng.uniform(-self._drift, self._drift),
            offset=self.rng.uniform(-1e6, 1e6),
        )
        self.nodes.append(node)
        self.happen(node, JoinAsked(next(self._tokens), node.address, node.info, bootstrap=True))
        if status is not None:
            self.at(self.now + 0.5, lambda: self.happen(node, AdvanceAsked(next(self._tokens), status)))
        return node

    def goodbye(self, node: Node) -> None:
        self.happen(node, GoodbyeAsked(next(self._tokens)))

    def crash(self, node: Node) -> None:
        node.state = "gone"
        for other in self.nodes:
            if node.address in other.watching:
                self._send(partial(self.happen, other, ProcessEnded(node.address)))

    def pause(self, node: Node) -> None:
        if node.state == "up":
            node.state = "paused"

    def resume(self, node: Node) -> None:
        if node.state == "paused":
            node.state = "up"
            held_back, node.held_back = node.held_back, []
            for event in held_back:
                self.happen(node, event)

    def set_store(self, state: str) -> None:
        self.store = state
        if state == "up":
            waiting, self._waiting = self._waiting, []
            self.rng.shuffle(waiting)  # a server that goes on takes its connections in any order
            for node, request, sent_at in waiting:
                self._arrive(node, request, sent_at)

    def part(self, one: Node, other: Node) -> None:
        """Cut the link between two silos, both ways."""
        self.cut |= {(one.address, other.address), (other.address, one.address)}

    def isolate(self, node: Node) -> None:
        """Whatever it sends is lost, and whatever silos send to it."""
        node.mute = True
        for other in self.nodes:
            self.part(node, other)

    def at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (time, next(self._count), action))

    def run_to(self, time: float) -> None:
        while self._queue and self._queue[0][0] <= time and self.violation is None:
            self.now, _, action = heapq.heappop(self._queue)
            action()
            self.events += 1
            self._check()
        if self.violation is None:
            self.now = time

    def run_for(self, seconds: float) -> None:
        self.run_to(self.now + seconds)

    def clock(self, node: Node) -> float:
        return node.offset + self.now * node.rate

    def holds(self, node: Node) -> bool:
        return self.clock(node) < node.deadline

    def alive(self, node: Node) -> bool:
        return any(row.silo == node.address and row.dead is None for row in self.table.table.rows)

    # ---- the inside

    def happen(self, node: Node, event: Event) -> None:
        if node.state == "paused":
            node.held_back.append(event)
        if node.state != "up":
            return
        now = self.clock(node)
        for order in node.core.on(event, now):
            match order:
                case AskTable(request):
                    self._ask(node, request)
                case Tell(peer, message):
                    self._tell(node, peer, message)
                case HoldRight(until):
                    node.deadline = until
                case ResignRight(dead, _):
                    node.deadline = -math.inf
                    node.declared_dead = node.declared_dead or dead
                case Conclude(token, error):
                    node.concluded.append((token, error))
                case WatchProcess(silo, _):
                    node.watching.add(silo)
                    gone = any(other.address == silo and other.state == "gone" for other in self.nodes)
                    if gone:
                        self._send(partial(self.happen, node, ProcessEnded(silo)))
                case _:
                    pass
        self._set_timer(node, now)

    def _set_timer(self, node: Node, now: float) -> None:
        node.timer += 1
        wake_at = node.core.wake_at(now)
        if wake_at < math.inf:
            timer = node.timer
            due = self.now + max((wake_at - now) / node.rate, 0.0) + self.rng.uniform(0.0, 0.002)
            self.at(due, lambda: self.happen(node, Ticked()) if node.timer == timer else None)

    def _ask(self, node: Node, request: TableRequest) -> None:
        sent_at = self.clock(node)
        for _ in range(1 + (self.rng.random() < self.wild / 4)):
            if not node.mute and self.rng.random() >= self.wild / 2:
                self._send(lambda: self._arrive(node, request, sent_at))
        lost = Failed(request, sent_at, MembershipUnavailable("no answer"))
        # an answer that comes after this is still delivered: the core must bear both
        self.at(self.now + self.settings.ask_timeout_s / node.rate, lambda: self.happen(node, lost))

    def _tell(self, node: Node, peer: SiloAddress, message: LeaseMessage) -> None:
        self.messages += 1
        other = next(other for other in self.nodes if other.address == peer)
        for _ in range(1 + (self.rng.random() < self.wild / 4)):
            if (node.address, peer) not in self.cut and self.rng.random() >= self.wild / 2:
                self._send(partial(self.happen, other, PeerSaid(node.address, message)))

    def _arrive(self, node: Node, request: TableRequest, sent_at: float) -> None:
        if self.store == "still":
            self._waiting.append((node, request, sent_at))
        if self.store != "up":
            return
        answer = self.table.carry_out(request)
        for row in answer.table.rows:
            if row.dead is not None:
                self.deaths.setdefault(row.silo, self.now)
        self._check()
        if not node.deaf and self.rng.random() >= self.wild / 2:
            self._send(lambda: self._answer(node, request, sent_at, answer))

    def _answer(self, node: Node, request: TableRequest, sent_at: float, answer: TableAnswer) -> None:
        self.happen(node, Answered(request, sent_at, answer))

    def _on_version(self, version: int) -> None:
        if self._hints and self.store == "up":
            for node in self.nodes:
                if not node.deaf and self.rng.random() >= self.wild:
                    self._send(partial(self.happen, node, Hinted(version)))

    def _send(self, deliver: Callable[[], None]) -> None:
        if self.rng.random() < self.wild:
            long = self.settings.lease_s
            delay = self.rng.expovariate(1 / (0.6 * long)) if self.rng.random() < 0.7 else self.rng.uniform(0, 2 * long)
        else:
            delay = self.rng.uniform(*DELAY_S)
        self.at(self.now + delay, deliver)

    def _check(self) -> None:
        dead = {row.silo for row in self.table.table.rows if row.dead is not None} | self.deaths.keys()
        for node in self.nodes:
            if node.state == "gone":
                continue
            holds = self.holds(node)
            if node.address in dead:
                if holds:
                    left = (node.deadline - self.clock(node)) / node.rate
                    self.violation = (
                        f"at {self.now:.3f} {node.address} is dead and may start turns for {left:.3f} s more"
                    )
                self.fenced.pop(node.address, None)
            elif holds:
                if node.address in self.fenced:
                    self.pauses_s.append(self.now - self.fenced.pop(node.address))
            elif node.deadline > -math.inf:
                self.fenced.setdefault(node.address, self.now)


def chaos(seed: int, *, settings: type[LeaseSettings] = LeaseSettings, **options: object) -> World:
    """One random walk of 120 s; the same seed gives the same walk."""
    rng = random.Random(f"chaos-{seed}")
    options["settings"] = settings(grace_s=rng.choice([3.0, 6.0, 25.0]))
    wild = rng.choice([0.0, 0.02, 0.1, 0.25])
    world = World(seed, wild=wild, machines=rng.random() < 0.3, hints=rng.random() < 0.7, **options)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - passed on
    for _ in range(rng.choice([1, 2, 2, 3, 3, 4, 5])):
        world.add()
    lease_s = world.settings.lease_s
    while world.now < 24 * lease_s and world.violation is None:
        world.run_for(lease_s * rng.choice([0.004, 0.01, 0.06, 0.2, 0.5, 1.0, 1.2, 2.4]))
        if rng.random() < 0.5 or not world.snapshots:
            world.snapshots = [world.table.table]
        _mishap(world, rng)
    return world


def _mishap(world: World, rng: random.Random) -> None:
    node = rng.choice(world.nodes)
    chance = rng.random()
    if chance < 0.14:
        world.pause(node)
    elif chance < 0.32:
        world.resume(node)
    elif chance < 0.36:
        if sum(other.state != "gone" for other in world.nodes) > 1:
            world.crash(node)
    elif chance < 0.42:
        for other in world.nodes:
            if rng.random() < 0.5:
                ways = {(node.address, other.address), (other.address, node.address)}
                world.cut |= ways if rng.random() < 0.8 else {rng.choice(sorted(ways))}
    elif chance < 0.54:
        node.mute, node.deaf = rng.choice([(True, True), (True, True), (True, False), (False, True)])
    elif chance < 0.70:
        for other in world.nodes:
            if rng.random() < 0.6:
                other.mute = other.deaf = False
        world.cut = {way for way in sorted(world.cut) if rng.random() < 0.4}
    elif chance < 0.77:
        world.set_store(rng.choice(["away", "still"]))
    elif chance < 0.88:
        world.set_store("up")
    elif chance < 0.91:
        world.table.fail_over(world.snapshots[0])
    elif chance < 0.92:
        world.table.lose()
    elif chance < 0.97:
        if len(world.nodes) < 8:
            world.add()
    elif chance < 0.98:
        world.goodbye(node)
