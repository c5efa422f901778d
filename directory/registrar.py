"""Many callers, one question: gathers calls about single grains into batches for the directory.

Calls about one part of the directory that are made in one pass of the event loop, or while as many batches as may be
are out, travel together; parts are the masters of a Redis Cluster, and elsewhere the directory is but one. Batches run
in tasks of their own, so a caller that is cancelled takes nothing from the others, and no command of the directory is
ever cut short by it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from silo.directory.addresses import Entry, GrainId
from silo.directory.contract import GrainDirectory, Registration
from silo.directory.directory_scripts import bucket_of
from silo.directory.errors import (
    Closed,
    DirectoryLifeOver,
    DirectoryRowUnreadable,
    DirectoryUnavailable,
    DirectoryUnsettled,
    Overloaded,
)
from silo.directory.lives import Lives, Registering
from silo.directory.logs import get_logger

BATCH_GRAINS_MAX: Final = 500
"""More would cost no less for each, and keep Redis from others for longer: at most for so many times 13 µs."""
BATCH_GRAINS_SPLIT: Final = 64
"""What is more than this and waits together goes in several batches, where these may be out: while one is being
answered, whoever is to deal with the answers of another has work. All in one, each would wait for each in turn."""
BATCHES_IN_FLIGHT_MAX: Final = 4
"""Of each kind of call to one part of the directory; while so many are out, further calls gather."""
WAITING_CALLS_MAX: Final = 100_000
"""Of each kind of call to one part of the directory; one more is refused with Overloaded."""
CLOSE_TIMEOUT_S: Final = 5.0
"""How long close lets batches that are out come to their end."""

_log = get_logger("silo.directory.registrar")

_Question = TypeVar("_Question")
_Answer = TypeVar("_Answer")


class Registrar:
    """The directory as the runtime of one silo or client asks it: one grain a call.

    Errors are the directory's own; each caller of a batch that failed gets them. A caller that is cancelled after its
    batch went out does not know what became of its call: a registration may stand.

    Args:
        lives: what this silo knows of the lives of buckets; None where nothing is registered that others must not lose.
    """

    def __init__(self, directory: GrainDirectory, lives: Lives | None = None) -> None:
        self._lives = lives
        self._lookups = _Parts(directory, directory.lookup, lambda grain: grain)
        self._registrations = _Parts(directory, directory.register, lambda wanted: wanted.grain)
        self._removals = _Parts(directory, directory.unregister, lambda entry: entry.grain)
        self._shared: dict[GrainId, _Ask[GrainId, Entry | None]] = {}

    async def lookup(self, grain: GrainId) -> Entry | None:
        """The grain's row as it stands. Callers share a lookup until it is sent, since one that is out may be older."""
        return await self._looked_up(grain).wait()

    def look_up(self, grain: GrainId, on_row: Callable[[Entry | Exception | None], None]) -> None:
        """As `lookup`, for a caller who has no task to wait with: it is called back with the row, or with the error.

        Raises:
            Overloaded, Closed: it is not asked, and nobody is called back.
        """
        self._looked_up(grain).call_back(on_row)

    def _looked_up(self, grain: GrainId) -> _Ask[GrainId, Entry | None]:
        ask = self._shared.get(grain)
        if ask is None:
            ask = self._shared[grain] = self._lookups.add(grain, bucket_of(str(grain)), on_taken=self._unshare)
        return ask

    async def register(self, registration: Registration) -> Entry | None:
        """Carry out one compare-and-set; whoever holds the row now.

        Raises:
            DirectoryUnsettled: not before every silo has said again what it serves; or the answer came too late.
        """
        lives = self._lives
        if lives is None:
            return await self._registrations.add(registration, bucket_of(str(registration.grain))).wait()
        with lives.registering(registration.grain) as out:
            try:
                entry = await self._registrations.add(_within(out, registration), out.bucket).wait()
            except DirectoryUnsettled:
                lives.doubt([out.bucket])
                raise
        if entry is not None:
            lives.saw(out.bucket, entry.epoch)
        return entry

    def register_soon(self, registration: Registration, on_answer: Callable[[Entry | Exception | None], None]) -> None:
        """As `register`, for a caller who has no task to wait with: it is called back with whoever holds the row, or
        with the error.

        Raises:
            DirectoryUnsettled: not before every silo has said again what it serves; nobody is called back.
            Overloaded, Closed: likewise, it is not asked.
        """
        lives = self._lives
        if lives is None:
            self._registrations.add(registration, bucket_of(str(registration.grain))).call_back(on_answer)
            return
        out = lives.registering(registration.grain)
        out.begin()
        try:
            ask = self._registrations.add(_within(out, registration), out.bucket)
        except BaseException:
            out.end()
            raise
        ask.call_back(lambda answer: on_answer(self._registered(lives, out, answer)))

    @staticmethod
    def _registered(lives: Lives, out: Registering, answer: Entry | Exception | None) -> Entry | Exception | None:
        """What an answer comes to, now that it is here."""
        if isinstance(answer, DirectoryUnsettled):
            lives.doubt([out.bucket])
        if not out.end() and not isinstance(answer, Exception):
            return out.over()
        if isinstance(answer, Entry):
            lives.saw(out.bucket, answer.epoch)
        return answer

    async def unregister(self, entry: Entry) -> bool:
        """Remove exactly this row; whether it was there."""
        return await self._removals.add(entry, bucket_of(str(entry.grain))).wait()

    async def close(self) -> None:
        """Refuse what was not sent yet, and let what was sent come to its end. The directory stays open."""
        for parts in (self._lookups, self._registrations, self._removals):
            await parts.close()

    def _unshare(self, ask: _Ask[GrainId, Entry | None]) -> None:
        del self._shared[ask.question]


def _within(out: Registering, registration: Registration) -> Registration:
    """The registration as it goes out. Written out, since `msgspec.structs.replace` takes many times as long."""
    return Registration(
        registration.grain,
        registration.silo,
        registration.activation,
        registration.expected,
        max(registration.floor, out.floor),
        out.life,
    )


class _Ask(Generic[_Question, _Answer]):
    """One question on its way, and the callers that wait for its answer, each with a task of its own or to be called
    back."""

    __slots__ = ("_callers", "_on_taken", "question")

    def __init__(self, question: _Question, on_taken: Callable[[_Ask[_Question, _Answer]], None] | None) -> None:
        self.question = question
        self._on_taken = on_taken
        self._callers: list[asyncio.Future[_Answer] | Callable[[_Answer | Exception], None]] = []

    async def wait(self) -> _Answer:
        waiter: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._callers.append(waiter)
        return await waiter

    def call_back(self, on_answer: Callable[[_Answer | Exception], None]) -> None:
        self._callers.append(on_answer)

    def taken(self) -> None:
        """It goes out: from now on nobody may join those who wait for its answer."""
        if self._on_taken is not None:
            self._on_taken(self)

    @property
    def abandoned(self) -> bool:
        for caller in self._callers:  # noqa: SIM110 - a generator costs more than the answer, for each question
            if not (isinstance(caller, asyncio.Future) and caller.done()):
                return False
        return True

    def answer(self, answer: _Answer | Exception) -> None:
        """Tell each caller once; what is wrong with one harms neither the others nor the rest of the batch."""
        callers, self._callers = self._callers, []
        for caller in callers:
            own = _for_one_caller(answer) if isinstance(answer, Exception) else answer
            if callable(caller):
                try:
                    caller(own)
                except Exception:
                    _log.exception("registrar.listener_failed", question=str(self.question))
            elif not caller.done():
                if isinstance(own, Exception):
                    caller.set_exception(own)
                else:
                    caller.set_result(own)


class _Parts(Generic[_Question, _Answer]):
    """One kind of call: a gatherer for each part of the directory, so that one that is away holds up no other."""

    def __init__(
        self,
        directory: GrainDirectory,
        call: Callable[[Sequence[_Question]], Awaitable[list[_Answer]]],
        grain_of: Callable[[_Question], GrainId],
    ) -> None:
        self._directory = directory
        self._call = call
        self._grain_of = grain_of
        self._gatherers: dict[str, _Gatherer[_Question, _Answer]] = {}
        self._closed = False

    def add(
        self, question: _Question, bucket: int, on_taken: Callable[[_Ask[_Question, _Answer]], None] | None = None
    ) -> _Ask[_Question, _Answer]:
        """Ask, with others, about a grain of this bucket."""
        if self._closed:
            raise Closed("the registrar is closed")
        part = self._directory.part_of(bucket)
        gatherer = self._gatherers.get(part)
        if gatherer is None:
            gatherer = self._gatherers[part] = _Gatherer(self._call, self._grain_of)
        return gatherer.add(question, on_taken)

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*(gatherer.close() for gatherer in self._gatherers.values()))


class _Gatherer(Generic[_Question, _Answer]):
    """One kind of call to one part of the directory: what waits, and the batches that are out."""

    def __init__(
        self,
        call: Callable[[Sequence[_Question]], Awaitable[list[_Answer]]],
        grain_of: Callable[[_Question], GrainId],
    ) -> None:
        self._call = call
        self._grain_of = grain_of
        self._waiting: deque[_Ask[_Question, _Answer]] = deque()
        self._batches: set[asyncio.Task[None]] = set()
        self._beginning = False
        """Whether the last of the batches has not begun: what comes until then travels with it."""

    def add(
        self, question: _Question, on_taken: Callable[[_Ask[_Question, _Answer]], None] | None
    ) -> _Ask[_Question, _Answer]:
        if len(self._waiting) >= WAITING_CALLS_MAX:
            raise Overloaded(f"{WAITING_CALLS_MAX} calls already wait for the directory", "WAITING_CALLS_MAX")
        ask = _Ask(question, on_taken)
        self._waiting.append(ask)
        if not self._beginning:
            self._begin_batch()
        return ask

    async def close(self) -> None:
        """Refuse what waits, and let what is out come to its end; nothing is added any more."""
        while self._waiting:
            ask = self._take()
            ask.answer(Closed("the registrar was closed before it asked the directory"))
        if self._batches:
            _, late = await asyncio.wait(self._batches, timeout=CLOSE_TIMEOUT_S)
            for batch in late:
                batch.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _begin_batch(self) -> None:
        if self._waiting and not self._beginning and len(self._batches) < BATCHES_IN_FLIGHT_MAX:
            self._beginning = True
            batch = asyncio.get_running_loop().create_task(self._ask_next(), name="silo directory batch")
            self._batches.add(batch)
            batch.add_done_callback(self._batch_done)

    async def _ask_next(self) -> None:
        self._beginning = False
        asks = self._next_batch()
        self._begin_batch()  # for what is more than one batch takes
        if asks:
            await self._ask(asks)

    def _next_batch(self) -> list[_Ask[_Question, _Answer]]:
        others_max = BATCHES_IN_FLIGHT_MAX - len(self._batches)  # this one is among those that are out
        share = -(-len(self._waiting) // (1 + others_max))
        most = min(max(share, BATCH_GRAINS_SPLIT), BATCH_GRAINS_MAX)
        asks: list[_Ask[_Question, _Answer]] = []
        while self._waiting and len(asks) < most:
            ask = self._take()
            if not ask.abandoned:
                asks.append(ask)
        return asks

    def _take(self) -> _Ask[_Question, _Answer]:
        ask = self._waiting.popleft()
        ask.taken()
        return ask

    def _batch_done(self, batch: asyncio.Task[None]) -> None:
        self._batches.discard(batch)
        self._begin_batch()

    async def _ask(self, asks: list[_Ask[_Question, _Answer]]) -> None:
        try:
            try:
                answers = await self._call([ask.question for ask in asks])
            except DirectoryRowUnreadable as error:
                asks = self._fail_unreadable(asks, error)
                answers = await self._call([ask.question for ask in asks]) if asks else []
            except DirectoryLifeOver as error:
                asks = self._fail_unsettled(asks, error)
                answers = await self._call([ask.question for ask in asks]) if asks else []
            for ask, answer in zip(asks, answers, strict=True):
                ask.answer(answer)
        except asyncio.CancelledError:
            for ask in asks:
                ask.answer(DirectoryUnavailable("the registrar was closed before the directory answered"))
            raise
        except Exception as error:
            for ask in asks:
                ask.answer(error)

    def _fail_unsettled(
        self, asks: list[_Ask[_Question, _Answer]], error: DirectoryLifeOver
    ) -> list[_Ask[_Question, _Answer]]:
        """Fail the callers whose buckets have begun another life. The others, to be asked again."""
        others: list[_Ask[_Question, _Answer]] = []
        for ask in asks:
            text = str(self._grain_of(ask.question))
            if bucket_of(text) in error.buckets:
                ask.answer(DirectoryUnsettled(f"the directory has lost rows: {text} cannot be registered now"))
            else:
                others.append(ask)
        return others

    def _fail_unreadable(
        self, asks: list[_Ask[_Question, _Answer]], error: DirectoryRowUnreadable
    ) -> list[_Ask[_Question, _Answer]]:
        """Fail the callers whose rows cannot be read. The others, to be asked again: nothing here does harm twice."""
        readable: list[_Ask[_Question, _Answer]] = []
        for ask in asks:
            reason = error.rows.get(text := str(self._grain_of(ask.question)))
            if reason is None:
                readable.append(ask)
            else:
                ask.answer(DirectoryRowUnreadable({text: reason}))
        if len(readable) == len(asks):
            raise error
        return readable


def _for_one_caller(error: Exception) -> Exception:
    """The error for one of many callers: an exception of its own, since raising one changes its traceback."""
    if type(error) is not DirectoryUnavailable:
        return error
    own = DirectoryUnavailable(*error.args)
    own.__cause__ = error
    return own
