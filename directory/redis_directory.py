"""The grain directory on Redis or Valkey: compare-and-set by Lua, one script call for all grains of a batch.

On a Redis Cluster a script may touch the keys of one slot only: there it is one call for all grains of a bucket.

Every command here may be sent twice: looking up changes nothing, a registration that was carried out finds its own row
the second time, and what was unregistered is not there any more. So failures that may pass are retried, within the
bounds of `redis_connection`, and an answer that was lost is asked for again.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from redis.exceptions import NoScriptError, ResponseError

from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.directory.contract import Claim, Inquiry, Registration, Standing
from silo.directory.directory_scripts import (
    CLAIM,
    INQUIRE,
    LIFE_OVER,
    LOOKUP,
    PROBE,
    REGISTER,
    UNREGISTER,
    RowUnreadable,
    Script,
    bucket_keys,
    bucket_of,
    check_registration,
    epoch_before,
    pack_row,
    row_owner,
    row_tail,
    unpack_row,
)
from silo.directory.errors import (
    DirectoryLifeOver,
    DirectoryRowUnreadable,
    DirectoryUnavailable,
    InvalidSettings,
)
from silo.directory.logs import get_logger
from silo.directory.redis_connection import (
    RedisClient,
    RedisPipeline,
    asked,
    asked_of_any,
    is_transient,
    open_redis,
    part_of,
    spans_slots,
)

GRAINS_PER_ROUND_MAX: Final = 500
"""Grains that one script call, or one pipeline, asks about; longer questions go in rounds, so that no single one keeps
Redis busy."""
ROUNDS_IN_FLIGHT_MAX: Final = 16
"""Pipelines that one directory has out at once, at each server that it lies on; more wait for their turn."""
PAGE_ENTRIES: Final = 250
"""Rows that Redis is asked to put into one page of `entries`; small buckets come whole, up to 512 rows."""
VERSION_MIN: Final = (6, 2)


_Group = TypeVar("_Group", bound=Hashable)
_Places = Sequence[int]
_log = get_logger("silo.directory.redis")


@dataclass(slots=True, eq=False)
class _Command:
    """One command, and what became of it."""

    words: Sequence[str | bytes | int]
    """The command, or the keys and arguments of a script."""
    places: Sequence[int]
    """Which of the questions this command asks, by their places in the caller's list."""
    script: Script | None = None
    answered: bool = False
    answer: object = None
    in_doubt: bool = False
    """It was sent before and its answer was lost: it may have been carried out."""

    def as_sent(self, *, whole: bool) -> Sequence[str | bytes | int]:
        """The command as the server is sent it, its script by name or whole."""
        if self.script is None:
            return self.words
        return ("EVAL", self.script.text, *self.words) if whole else ("EVALSHA", self.script.sha, *self.words)


class RedisDirectory:
    """A GrainDirectory whose rows lie in Redis; contract.py says what its methods promise.

    Args:
        redis: an asyncio client that answers in bytes; it stays its opener's to close. `RedisDirectory.at` opens one.
        cluster: the cluster's name; directories of other clusters on the same server are not seen.
    """

    def __init__(self, redis: RedisClient, cluster: str) -> None:
        self._redis = redis
        self._owns_redis = False
        self._cluster = cluster
        self._keys = bucket_keys(cluster)
        self._has_parts = spans_slots(redis)
        self._round_places: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(ROUNDS_IN_FLIGHT_MAX)
        )

    @classmethod
    def at(cls, url: str, cluster: str) -> RedisDirectory:
        """A directory with a client of its own; connects when first used. Raises InvalidSettings, InvalidIdentity."""
        directory = cls(open_redis(url), cluster)
        directory._owns_redis = True
        return directory

    async def open(self) -> None:
        """Prove that the server can carry the directory. Optional; makes mistakes show at start.

        One master of a Redis Cluster is enough: those that are away hold up nobody that the others will do for.

        Raises:
            DirectoryUnavailable: none could be asked.
            InvalidSettings: it can be asked but will not do: too old, or scripts may not run or not ask INFO.
        """
        try:
            keys = (head for _, head, _ in self._keys)
            run, version = await asked_of_any(self._redis, "opening the directory", keys, self._probe)
        except DirectoryUnavailable as error:
            if isinstance(error.__cause__, ResponseError) and not is_transient(error.__cause__):
                raise InvalidSettings(
                    "the Redis user of the directory must be allowed EVAL, EVALSHA and, within scripts, INFO "
                    f"(how a failover is noticed): {error.__cause__}"
                ) from error
            why = f"{type(error.__cause__).__name__}: {error.__cause__}".rstrip(".")
            raise DirectoryUnavailable(
                f"the Redis of the directory cannot be asked: {why}; see that it runs, and that the URL names it"
            ) from error
        if not run or tuple(int(part) for part in version.split(".")[:2]) < VERSION_MIN:
            raise InvalidSettings(f"the directory needs Redis 6.2 or Valkey, with a run_id; found version {version!r}")

    def part_of(self, bucket: int) -> str:
        return part_of(self._redis, self._keys[bucket][0]) if self._has_parts else ""

    async def lookup(self, grains: Sequence[GrainId]) -> list[Entry | None]:
        def command(by_bucket: Mapping[int, _Places]) -> _Command:
            words: list[str | bytes | int] = [len(by_bucket), *(self._keys[bucket][0] for bucket in by_bucket)]
            for places in by_bucket.values():
                words.append(len(places))
                words += [texts[place] for place in places]
            return _Command(words, _in_turn(by_bucket), LOOKUP)

        texts = [str(grain) for grain in grains]
        rows: list[Entry | None] = [None] * len(grains)
        with _RowsRead(grains) as reading:
            for done in await self._ask("looking up grains", list(map(bucket_of, texts)), command):
                for place, row in zip(done.places, cast("list[bytes | None]", done.answer), strict=True):
                    if row is not None:
                        rows[place] = reading.read(row, place)
        return rows

    async def register(self, registrations: Sequence[Registration]) -> list[Entry | None]:
        def command(by_bucket: Mapping[tuple[int, str], _Places]) -> _Command:
            keys = [key for bucket, _ in by_bucket for key in self._keys[bucket][:2]]
            words: list[str | bytes | int] = [len(keys), *keys]
            for (_, life), places in by_bucket.items():
                words += (life, len(places))
                for place in places:
                    wanted = registrations[place]
                    words += (
                        texts[place],
                        b"" if wanted.expected is None else pack_row(wanted.expected),
                        epoch_before(wanted),
                        row_tail(wanted.silo, wanted.activation, texts[place]),
                    )
            return _Command(words, _in_turn(by_bucket), REGISTER)

        for wanted in registrations:
            check_registration(wanted)
        texts = [str(wanted.grain) for wanted in registrations]
        buckets = [(bucket_of(text), wanted.life) for text, wanted in zip(texts, registrations, strict=True)]
        rows: list[Entry | None] = [None] * len(registrations)
        over: set[int] = set()
        with _RowsRead([wanted.grain for wanted in registrations]) as reading:
            for done in await self._ask("registering activations", buckets, command):
                for place, answer in zip(done.places, cast("list[int | bytes | None]", done.answer), strict=True):
                    if isinstance(answer, int):
                        if answer == LIFE_OVER:
                            over.add(buckets[place][0])
                            continue
                        wanted = registrations[place]
                        rows[place] = Entry(wanted.grain, wanted.silo, wanted.activation, answer)
                    elif answer is not None:
                        rows[place] = reading.read(answer, place)
            if over:
                raise DirectoryLifeOver(over)
        return rows

    async def claim(self, claims: Sequence[Claim]) -> list[Standing | None]:
        def command(alone: Mapping[int, _Places]) -> _Command:
            (place,) = alone
            asked = claims[place]
            words: list[str | bytes | int] = [3, *self._keys[asked.bucket], str(asked.silo), asked.life, asked.over]
            words += (asked.new_life, int(asked.whole), row_owner(asked.silo) if asked.sweeps else "")
            words.append(asked.floor)
            for entry in asked.entries:
                words += (str(entry.grain), entry.epoch, pack_row(entry))
            return _Command(words, [place], CLAIM)

        done = await self._ask("claiming entries", range(len(claims)), command, each_alone=True)
        return [
            self._standing([entry.grain for entry in asked.entries], each)
            for asked, each in zip(claims, done, strict=True)
        ]

    async def inquire(self, inquiries: Sequence[Inquiry]) -> list[Standing | None]:
        def command(alone: Mapping[int, _Places]) -> _Command:
            (place,) = alone
            asked = inquiries[place]
            return _Command([3, *self._keys[asked.bucket], asked.life, *map(str, asked.members)], [place], INQUIRE)

        done = await self._ask("asking for lives", range(len(inquiries)), command, each_alone=True)
        return [self._standing((), each) for each in done]

    async def unregister(self, entries: Sequence[Entry]) -> list[bool]:
        def command(by_bucket: Mapping[int, _Places]) -> _Command:
            words: list[str | bytes | int] = [len(by_bucket), *(self._keys[bucket][0] for bucket in by_bucket)]
            for places in by_bucket.values():
                words.append(len(places))
                for place in places:
                    words += (texts[place], pack_row(entries[place]))
            return _Command(words, _in_turn(by_bucket), UNREGISTER)

        texts = [str(entry.grain) for entry in entries]
        removed = [False] * len(entries)
        for done in await self._ask("unregistering activations", list(map(bucket_of, texts)), command):
            for place, answer in zip(done.places, cast("list[int]", done.answer), strict=True):
                # Absent after an answer was lost: it was this very command that removed it, or somebody who did the
                # same.
                removed[place] = answer == 1 or (answer == 0 and done.in_doubt)
        return removed

    async def entries(self, silo: SiloAddress | None = None) -> AsyncIterator[list[Entry]]:
        """All rows in pages, or all that name one silo. A row that changes meanwhile may come twice, or in either form.

        Raises:
            DirectoryUnavailable: Redis could not be asked.
            DirectoryRowUnreadable: after the last page, if there were rows that this release cannot read.
        """
        unreadable: dict[str, str] = {}
        for key, _, _ in self._keys:
            cursor = -1
            while cursor != 0:
                cursor, rows = await self._page(key, max(cursor, 0))
                page: list[Entry] = []
                for text, row in rows.items():
                    try:
                        page.append(unpack_row(row))
                    except RowUnreadable as error:
                        unreadable[text.decode(errors="replace")] = str(error)
                if silo is not None:
                    page = [entry for entry in page if entry.silo == silo]
                if page:
                    yield page
        if unreadable:
            raise DirectoryRowUnreadable(unreadable)

    async def close(self) -> None:
        if self._owns_redis:
            await self._redis.aclose()

    async def _page(self, key: str, cursor: int) -> tuple[int, dict[bytes, bytes]]:
        async def scan() -> tuple[int, dict[bytes, bytes]]:
            answer = await self._redis.execute_command("HSCAN", key, cursor, "COUNT", PAGE_ENTRIES)
            return cast("tuple[int, dict[bytes, bytes]]", answer)

        return await asked(self._redis, f"reading rows of cluster {self._cluster!r}", scan)

    async def _ask(
        self,
        what: str,
        groups: Sequence[_Group],
        command: Callable[[Mapping[_Group, _Places]], _Command],
        *,
        each_alone: bool = False,
    ) -> list[_Command]:
        """Ask questions of which each belongs to a group: a command for each round; or a pipeline for each round, of a
        command for each group, where no command takes the keys of two.

        Args:
            each_alone: whether each is a command of its own, and those of a round count that were answered, though
                others were not.
        """
        what = f"{what} of cluster {self._cluster!r}"
        done: list[_Command] = []
        for start in range(0, len(groups), GRAINS_PER_ROUND_MAX):
            places: defaultdict[_Group, list[int]] = defaultdict(list)
            for place in range(start, min(start + GRAINS_PER_ROUND_MAX, len(groups))):
                places[groups[place]].append(place)
            if each_alone or spans_slots(self._redis):
                commands = [command({group: of_group}) for group, of_group in places.items()]
            else:
                commands = [command(places)]
            async with self._round_places[part_of(self._redis, str(commands[0].words[1]))]:
                try:
                    await asked(self._redis, what, lambda: self._send(commands))  # noqa: B023 - awaited within this pass
                except DirectoryUnavailable as error:
                    if not each_alone or not any(command.answered for command in commands):
                        raise
                    _log.debug("directory.asked_in_part", why=str(error))
            done += commands
        return done

    async def _send(self, commands: Sequence[_Command]) -> None:
        """Send those commands that have no answer yet; raises the first failure when all that could succeed has."""
        failures = await self._round_trip(commands)
        if any(isinstance(failure, NoScriptError) for failure in failures):
            # A new server, or one whose scripts were flushed: it keeps those that it is sent whole.
            failures = await self._round_trip(commands, scripts_whole=True)
        for failure in sorted(failures, key=is_transient):  # one that will not pass ends the tries
            raise failure

    async def _round_trip(self, commands: Sequence[_Command], *, scripts_whole: bool = False) -> list[Exception]:
        waiting = [command for command in commands if not command.answered]
        failures: list[Exception] = []
        answered = False
        try:
            answers = await self._answers([command.as_sent(whole=scripts_whole) for command in waiting])
            answered = True
        finally:
            if not answered:
                for command in waiting:
                    command.in_doubt = True
        for command, answer in zip(waiting, answers, strict=True):
            if isinstance(answer, ResponseError):
                failures.append(answer)
            elif isinstance(answer, Exception):
                command.in_doubt = True
                failures.append(answer)
            else:
                command.answered, command.answer = True, answer
        return failures

    async def _answers(self, commands: list[Sequence[str | bytes | int]]) -> list[Any]:
        """What the server says to each of them, which travel together; an error in the place of what it refused."""
        if len(commands) == 1:  # as for one grain that moves; a pipeline takes twice as many passes of the loop
            try:
                return [await self._redis.execute_command(*commands[0])]
            except ResponseError as error:
                return [error]
        pipeline = cast("RedisPipeline", self._redis.pipeline(transaction=False))
        for words in commands:
            pipeline.execute_command(*words)
        return await pipeline.execute(raise_on_error=False)

    async def _probe(self, key: str) -> tuple[str, str]:
        run, version = await self._redis.execute_command("EVAL", PROBE.text, 1, key)
        return run.decode(), version.decode()

    @classmethod
    def _standing(cls, grains: Sequence[GrainId], command: _Command) -> Standing | None:
        if not command.answered:
            return None
        life, settled, *rows = cast("list[Any]", command.answer)
        if len(rows) < len(grains):
            return Standing(life.decode(), settled == 1)
        strays = tuple(unpack_row(row) for row in rows[len(grains) :])
        try:
            with _RowsRead(grains) as reading:
                stands = [
                    None if row is None else reading.read(row, place) for place, row in enumerate(rows[: len(grains)])
                ]
        except DirectoryRowUnreadable as error:
            _log.warning("directory.row_unreadable", why=str(error))
            return None
        return Standing(life.decode(), settled == 1, tuple(stands), strays)


class _RowsRead:
    """Reads rows, each the one of a grain that was asked about; at the end it raises for those that cannot be read.

    Args:
        grains: which were asked about.
    """

    __slots__ = ("_grains", "_why")

    def __init__(self, grains: Sequence[GrainId]) -> None:
        self._grains = grains
        self._why: dict[str, str] = {}

    def __enter__(self) -> _RowsRead:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if self._why and error is None:
            raise DirectoryRowUnreadable(self._why)

    def read(self, row: bytes, place: int) -> Entry | None:
        """The entry; None where it cannot be read. Raises DirectoryUnavailable where it is another grain's."""
        try:
            entry = unpack_row(row)
        except RowUnreadable as error:
            self._why[str(self._grains[place])] = str(error)
            return None
        if entry.grain != self._grains[place]:
            raise DirectoryUnavailable(
                f"Redis answered a question about {self._grains[place]} with a row of {entry.grain}"
            )
        return entry


def _in_turn(groups: Mapping[Any, _Places]) -> _Places:
    """The places of all groups, one after the other."""
    return [place for places in groups.values() for place in places]
