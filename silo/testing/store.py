"""The way from simulated silos to their directory and membership table: it takes time, is cut, and loses answers.

The store is a node of the network by the name of `redis`. What was sent to it takes effect there even if its sender is
frozen or dead by then, or has given up: as with a real server.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.directory.contract import Claim, Inquiry, Registration, Standing
from silo.directory.errors import (
    DirectoryLifeOver,
    DirectoryUnavailable,
    MembershipUnavailable,
    StorageOutcomeUnknown,
    StorageUnavailable,
)
from silo.directory.membership import TableRequest
from silo.directory.memory_directory import PAGE_ENTRIES, DirectoryRows
from silo.persistence.memory_storage import StorageCall
from silo.testing.network import MemoryNetwork

T = TypeVar("T")
STORE = "redis"
ANSWER_TIMEOUT_S = 1.5
"""How long a silo waits for the store's answer."""
HELD_LANDS = 0.5
"""The share of requests held by a cut that still take effect once it is healed, after their senders gave up."""


class Store:
    """Whether the store works, and how it is reached."""

    def __init__(self, network: MemoryNetwork, rng: random.Random) -> None:
        self.network = network
        self.rng = rng
        self.is_down = False
        """Nothing reaches it, and senders know at once."""
        self.fails = 0.0
        """The share of requests that are lost before they take effect."""
        self.loses_answers = 0.0
        """The share of requests that take effect and are not answered."""

        self.held = 0
        """How many requests a cut has held that may still take effect."""
        self.on_registered: Callable[[Registration, Entry | None], None] | None = None
        """Told of each compare-and-set once it is carried out, before its sender hears of it."""

    def heal(self) -> None:
        """Everything works again; ways that are cut are the network's."""
        self.is_down = False
        self.fails = self.loses_answers = 0.0

    def is_reachable(self, node: str) -> bool:
        """Whether what the node sends arrives."""
        return not self.is_down and not self.network.is_cut(node, STORE)

    async def travel_to(self, node: str) -> None:
        """The way of one request, from a node that waits for it."""
        await asyncio.sleep(self.network.draw_delay(node, STORE))
        if self.is_down or self.rng.random() < self.fails:
            raise MembershipUnavailable("the store is down")
        while self.network.is_cut(node, STORE):
            await self.network.cross(node, STORE)

    async def travel_from(self, node: str) -> None:
        """The way of its answer."""
        if self.rng.random() < self.loses_answers:
            await asyncio.sleep(ANSWER_TIMEOUT_S)
            raise MembershipUnavailable("the answer was lost")
        await self.network.cross(STORE, node)


class TableWay:
    """The hooks of one silo's LoopMembership: its way to the membership table."""

    def __init__(self, store: Store, node: str) -> None:
        self._store = store
        self._node = node

    async def before(self, _request: TableRequest) -> None:
        await self._store.travel_to(self._node)

    async def after(self, _request: TableRequest) -> None:
        await self._store.travel_from(self._node)


class StorageWay:
    """The hooks of one silo's MemoryStorage: its way to what grains have stored."""

    def __init__(self, store: Store, node: str) -> None:
        self._store = store
        self._node = node

    async def before(self, _call: StorageCall) -> None:
        try:
            await self._store.travel_to(self._node)
        except MembershipUnavailable as error:
            raise StorageUnavailable(str(error)) from None

    async def after(self, _call: StorageCall) -> None:
        try:
            await self._store.travel_from(self._node)
        except MembershipUnavailable as error:
            raise StorageOutcomeUnknown(str(error)) from None


class LeaseRoad:
    """The way of what silos' leases say to each other: by the network, and lost where that is cut."""

    def __init__(self, network: MemoryNetwork) -> None:
        self.homes: dict[str, str] = {}
        """On which node each endpoint is, where that has another name than the endpoint's host."""
        self._network = network

    def __call__(self, sender: SiloAddress, receiver: SiloAddress, deliver: Callable[[], None]) -> None:
        source, target = self._home(sender), self._home(receiver)
        if not self._network.is_cut(source, target):
            delay_s = self._network.draw_delay(source, target)
            asyncio.get_running_loop().call_later(delay_s, deliver, context=contextvars.Context())

    def _home(self, silo: SiloAddress) -> str:
        return self.homes.get(silo.endpoint) or silo.endpoint.rpartition(":")[0]


class DistantDirectory:
    """One silo's way to the rows that all silos share; a `GrainDirectory`."""

    def __init__(self, store: Store, rows: DirectoryRows, node: str) -> None:
        self._store = store
        self._rows = rows
        self._node = node

    async def open(self) -> None:
        await self._ask(lambda: None)

    def part_of(self, bucket: int) -> str:
        return ""  # there is but one

    async def lookup(self, grains: Sequence[GrainId]) -> list[Entry | None]:
        return await self._ask(lambda: [self._rows.look_up(grain) for grain in grains])

    async def register(self, registrations: Sequence[Registration]) -> list[Entry | None]:
        answers = await self._ask(lambda: [self._register(registration) for registration in registrations])
        over = [answer for answer in answers if isinstance(answer, DirectoryLifeOver)]
        if over:
            raise DirectoryLifeOver(bucket for error in over for bucket in error.buckets)
        return [answer for answer in answers if not isinstance(answer, DirectoryLifeOver)]

    def _register(self, registration: Registration) -> Entry | DirectoryLifeOver | None:
        try:
            entry = self._rows.register(registration)
        except DirectoryLifeOver as error:
            return error
        if self._store.on_registered is not None:
            self._store.on_registered(registration, entry)
        return entry

    async def unregister(self, entries: Sequence[Entry]) -> list[bool]:
        return await self._ask(lambda: [self._rows.unregister(entry) for entry in entries])

    async def claim(self, claims: Sequence[Claim]) -> list[Standing | None]:
        return await self._ask(lambda: [self._rows.claim(claim) for claim in claims])

    async def inquire(self, inquiries: Sequence[Inquiry]) -> list[Standing | None]:
        return await self._ask(lambda: [self._rows.inquire(inquiry) for inquiry in inquiries])

    async def entries(self, silo: SiloAddress | None = None) -> AsyncIterator[list[Entry]]:
        rows = await self._ask(lambda: [entry for entry in self._rows.all() if silo is None or entry.silo == silo])
        for start in range(0, len(rows), PAGE_ENTRIES):
            yield rows[start : start + PAGE_ENTRIES]

    async def close(self) -> None:
        """There is nothing to let go of."""

    async def _ask(self, request: Callable[[], T]) -> T:
        """Send a request to the store; it is carried out there, by nobody's task."""
        store, loop = self._store, asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        world = contextvars.Context()

        def arrive() -> None:
            if store.is_down or store.rng.random() < store.fails:
                fail("the store is down")
            elif store.network.is_cut(self._node, STORE):
                if store.rng.random() < HELD_LANDS:
                    store.held += 1
                    loop.call_later(store.rng.uniform(1.0, 8.0), arrive_late, context=world)
            else:
                reply(request())

        def arrive_late() -> None:
            store.held -= 1
            if store.is_reachable(self._node):
                request()

        def reply(result: T) -> None:
            if store.rng.random() >= store.loses_answers and not store.network.is_cut(STORE, self._node):
                loop.call_later(store.network.draw_delay(STORE, self._node), deliver, result, context=world)

        def deliver(result: T) -> None:
            if not answer.done():
                answer.set_result(result)

        def fail(why: str) -> None:
            if not answer.done():
                answer.set_exception(DirectoryUnavailable(why))

        loop.call_later(store.network.draw_delay(self._node, STORE), arrive, context=world)
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await answer
        except TimeoutError:
            raise DirectoryUnavailable(f"the store did not answer within {ANSWER_TIMEOUT_S} s") from None
