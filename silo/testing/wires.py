"""Streams in memory: what is on its way between two simulated processes, and what can befall it."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque

from silo.messaging.transport import ConnectionLost


class Reset:
    """What travels when a connection breaks: the other end reads it as ConnectionLost."""

    def __init__(self, because: str) -> None:
        self.because = because


class Finished:
    """What travels when one end closes in order: the other end reads it as None."""


Item = bytes | Reset | Finished


class Waiters:
    """Those who wait for one thing to change, woken all at once to look for themselves."""

    def __init__(self) -> None:
        self._futures: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures.append(future)
        try:
            await future
        finally:
            self._futures.remove(future)

    def wake(self) -> None:
        for future in self._futures:
            if not future.done():
                future.set_result(None)


class Wire:
    """One direction of a connection: what is on its way, and what has arrived and waits for the reader."""

    def __init__(self, network: Wires, number: int, source: str, target: str, way: str) -> None:
        self.number = number
        self.ends = (source, target)
        self.way = way
        self.opposite: Wire
        self.ended = False
        """Whether the last item has arrived: the reader's end knows that the other is gone."""
        self._network = network
        self._loop = asyncio.get_running_loop()
        self._travelling: deque[tuple[float, Item]] = deque()
        self._arrived: deque[Item] = deque()
        self._bytes = self._messages = 0  # written and not read yet
        self._reader_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._readable = Waiters()
        self._writable = Waiters()
        network.add_wire(self)

    def put(self, item: Item) -> None:
        """Send one item on its way."""
        if self.ended:
            return
        due = self._loop.time() + self._network.draw_delay(*self.ends)
        if self._travelling:
            due = max(due, self._travelling[-1][0])
        self._travelling.append((due, item))
        if isinstance(item, bytes):
            self._bytes += len(item)
            self._messages += 1
        if self._timer is None:
            self.schedule()

    def schedule(self) -> None:
        """See to it that the next item arrives when it is due, unless the way is cut."""
        if self._timer is not None or not self._travelling or self._network.is_cut(*self.ends, self.way):
            return
        due, now = self._travelling[0][0], self._loop.time()
        if due < now:  # it was held by a cut, and is sent again
            due = now + self._network.draw_delay(*self.ends)
        self._timer = self._loop.call_at(due, self._arrive, context=contextvars.Context())

    def _arrive(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._travelling and not self._network.is_cut(*self.ends, self.way):
            due, item = self._travelling[0]
            if due > now:
                self.schedule()
                return
            self._travelling.popleft()
            self._deliver(item)

    def _deliver(self, item: Item) -> None:
        if not isinstance(item, bytes):
            self._end()
        if self._reader_closed:
            self._bytes = self._messages = 0
            self._writable.wake()
        else:
            self._arrived.append(item)
            self._readable.wake()

    def _end(self) -> None:
        self.ended = True
        self._travelling.clear()
        self._network.drop_wire(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.opposite._writable.wake()

    def lose_the_last(self) -> None:
        """Forget what is on its way from a random point on, as a process that dies leaves some of it unsent."""
        kept = int(self._network.rng.random() * (len(self._travelling) + 1))
        while len(self._travelling) > kept:
            self._travelling.pop()

    def break_off(self, because: str) -> None:
        """Lose all that is on its way. What has arrived can still be read, and then the loss is."""
        if not self.ended:
            self._travelling.clear()
            self._deliver(Reset(because))

    async def get(self) -> Item:
        """The next item; the last one again and again."""
        while not self._arrived:
            await self._readable.wait()
        item = self._arrived[0]
        if isinstance(item, bytes):
            self._arrived.popleft()
            self._bytes -= len(item)
            self._messages -= 1
            self._writable.wake()
        return item

    @property
    def is_full(self) -> bool:
        """Whether a writer has to wait for the reader."""
        network = self._network
        is_over = self._messages >= network.window_messages or self._bytes >= network.window_bytes
        return is_over and not self.opposite.ended

    async def room(self) -> None:
        """Wait until there is room for another message, or nobody to read it."""
        while self.is_full:
            await self._writable.wait()

    def close_reading(self, because: str) -> None:
        """The reader's own end was closed: what it has not read is gone, and what still comes in for it is dropped."""
        self._reader_closed = True
        self._arrived.clear()
        self._arrived.append(Reset(because))
        self._bytes = self._messages = 0
        self._readable.wake()
        self._writable.wake()


class MemoryConnection:
    """One end of a stream; a `Connection`."""

    def __init__(self, out: Wire, back: Wire, remote: str) -> None:
        self._out = out
        self._back = back
        self._remote = remote
        self._closed = False

    @property
    def remote(self) -> str:
        return self._remote

    @property
    def is_over(self) -> bool:
        """Whether this end was closed, or knows that the other is gone."""
        return self._closed or self._back.ended

    async def read(self) -> bytes | None:
        item = await self._back.get()
        if isinstance(item, Reset):
            raise ConnectionLost(f"connection with {self._remote}: {item.because}")
        return None if isinstance(item, Finished) else item

    async def write(self, body: bytes) -> None:
        out = self._out
        if out.is_full:
            await out.room()
        self._check_open()
        out.put(body)
        if out.is_full:
            await out.room()
            self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionLost(f"connection with {self._remote}: it was closed at this end")
        if self._back.ended:
            raise ConnectionLost(f"connection with {self._remote}: the other end is gone")

    async def close(self) -> None:
        self.finish(Finished())

    def finish(self, last: Finished | Reset) -> None:
        """Close this end, and let the other know in its turn."""
        if not self._closed:
            self._closed = True
            self._out.put(last)
            self._back.close_reading("it was closed at this end")

    def die(self) -> None:
        """This end's process has ended: some of what it wrote last was never sent, and the other end reads a loss."""
        if not self._closed:
            self._out.lose_the_last()
            self.finish(Reset("the process at the other end has ended"))


class Wires:
    """All the wires between the nodes, and what can befall them. Nodes are known by name; see `MemoryNetwork`."""

    def __init__(
        self,
        rng: random.Random,
        delay_s: tuple[float, float],
        window_bytes: int,
        window_messages: int,
    ) -> None:
        self.rng = rng
        self.window_bytes = window_bytes
        self.window_messages = window_messages
        self._delay_s = delay_s
        self._delays: dict[tuple[str, str], tuple[float, float]] = {}
        self._cuts: set[tuple[str, str, str | None]] = set()
        """From whom to whom, and by which way; None for all."""
        self._wires: dict[Wire, None] = {}
        self._healed = Waiters()
        self._connections = 0

    def cut(self, a: str, b: str, *, one_way: bool = False, way: str | None = None) -> None:
        """Let nothing through from a to b (and from b to a). What is sent is held until the cut is healed.

        Args:
            way: the only one that is cut, as a transport was given it; None for all of them.
        """
        self._cuts.add((a, b, way))
        if not one_way:
            self._cuts.add((b, a, way))

    def heal(self, a: str | None = None, b: str | None = None, *, way: str | None = None) -> None:
        """End the cuts between a and b, those of a, or all of them; what was held arrives after its travelling time.

        Args:
            way: only cuts of this way alone are ended; None for all of them.
        """
        self._cuts = {
            (source, target, cut_way)
            for source, target, cut_way in self._cuts
            if (way is not None and way != cut_way) or not {a, b} - {None} <= {source, target}
        }
        for wire in list(self._wires):
            wire.schedule()
        self._healed.wake()

    @property
    def has_cuts(self) -> bool:
        """Whether anything is cut."""
        return bool(self._cuts)

    def is_cut(self, source: str, target: str, way: str = "") -> bool:
        """Whether nothing comes through from the source to the target that way."""
        cuts = self._cuts
        return bool(cuts) and ((source, target, None) in cuts or (source, target, way) in cuts)

    def delay(self, a: str, b: str, delay_s: tuple[float, float] | None) -> None:
        """Set the range of travelling times between a and b, both ways; None for the usual one."""
        for pair in ((a, b), (b, a)):
            if delay_s is None:
                self._delays.pop(pair, None)
            else:
                self._delays[pair] = delay_s

    def reset(self, a: str, b: str | None = None, *, way: str | None = None) -> int:
        """Break all connections between a and b, or all of a's, and return how many. Both ends know at once.

        Args:
            way: only those that go this way; None for all of them.
        """
        doomed = [
            wire
            for wire in self._wires
            if a in wire.ends and (b is None or b in wire.ends) and (way is None or way == wire.way)
        ]
        for wire in doomed:
            wire.break_off("it was reset")
        return len({wire.number for wire in doomed})

    def draw_delay(self, source: str, target: str) -> float:
        """One travelling time, in seconds."""
        low, high = self._delays.get((source, target), self._delay_s) if self._delays else self._delay_s
        return low + (high - low) * self.rng.random()

    def connect(
        self, source: str, target: str, endpoint: str, way: str = ""
    ) -> tuple[MemoryConnection, MemoryConnection]:
        """A new connection: the dialler's end, and the listener's."""
        self._connections += 1
        out = Wire(self, self._connections, source, target, way)
        back = Wire(self, self._connections, target, source, way)
        out.opposite, back.opposite = back, out
        return MemoryConnection(out, back, endpoint), MemoryConnection(back, out, source)

    def add_wire(self, wire: Wire) -> None:
        """Subject a new wire to what befalls them all."""
        self._wires[wire] = None

    def drop_wire(self, wire: Wire) -> None:
        """Nothing travels on the wire any more."""
        self._wires.pop(wire, None)

    async def cross(self, source: str, target: str, way: str = "") -> None:
        """Travel once from the source to the target, waiting while the way is cut."""
        await asyncio.sleep(self.draw_delay(source, target))
        while self.is_cut(source, target, way):
            await self._healed.wait()
            await asyncio.sleep(self.draw_delay(source, target))
