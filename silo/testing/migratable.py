"""Whether anybody notices that a grain moves: one script, run with the grain at home, afar, and on the move."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, TypeVar

from silo.activation.activation import Activation
from silo.kinds import GrainKind, kind_of
from silo.migration.outcome import MoveStatus
from silo.reference import make_reference
from silo.serialization.registry import DEFAULT_REGISTRY, TypeRegistry
from silo.testing.cluster import Cluster
from silo.testing.recording import Heard, RecordingTarget, Sameness
from silo.testing.simulated import SECONDS_MAX, run_simulated

G = TypeVar("G")
SILOS: Final = 3
KEY: Final = "under-test"
"""The grain's key; each mode has a cluster of its own."""
MOVED_ALONE_MAX: Final = 64
"""Up to so many calls, a script is also run once for each place between two of them, with one move there."""
FIRST_SILO: Final = "silo-1"
SECOND_SILO: Final = "silo-2"
CONTEXT: Final = "_silo_context"
"""The attribute by which a grain reaches its runtime."""


class NotMigratable(AssertionError):
    """A script did not give the same results once its grain was elsewhere, or the grain could not be moved.

    Args:
        call: the number of the first call that ended otherwise, from 1 on; 0 for the script as a whole.
        mode: how the grain was placed and moved.
        lost: attributes that did not travel, and would explain it.
    """

    def __init__(self, text: str, *, call: int, mode: str, lost: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.call = call
        self.mode = mode
        self.lost = tuple(lost)


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to run the script."""

    name: str
    home: str = FIRST_SILO
    """Where the grain begins; the script always runs at the first silo."""
    moves_before: Callable[[int], bool] = lambda _number: False
    """Whether the grain is moved before the call of this number is made."""
    moves_during: bool = False
    """Whether it is moved while each call is out."""


@dataclass(frozen=True, slots=True)
class Account:
    """What one run of the script showed."""

    calls: Sequence[Heard]
    result: Heard
    lost: Mapping[str, object]
    """Plain attributes that were not the same after a move, with the value that they had before it."""
    moves: int


LOCAL: Final = Mode("local")


def check_migratable(
    kind: type[G],
    script: Callable[[G], Awaitable[object]],
    *,
    kinds: Sequence[type | ModuleType] = (),
    key: str = KEY,
    seed: int = 0,
    registry: TypeRegistry = DEFAULT_REGISTRY,
) -> None:
    """Run a script with its grain at home, afar, and moved between and during its calls; all must give the same.

    ```python
    async def script(room: Room) -> object:
        await room.enter("ada")
        return await room.players()


    check_migratable(Room, script)
    ```
    The result of each call is compared, and what the script returns. Under virtual time; call it from a plain test.

    Args:
        script: given a reference to one grain of the kind, nowhere active yet. It does the same each time it is run.
        kinds: what else the cluster is to host, such as the grains that this one calls.
        key: the grain's.

    Raises:
        NotMigratable: the first call that ended otherwise, in which mode, with both ends; and what to do about it.
        Exception: what the script raises though the grain never moves.
    """
    check = _Check(kind_of(kind), script, kinds, key, seed, registry)
    expected = check.run(LOCAL)
    if expected.result.error is not None:
        raise expected.result.error
    moves = 0
    for mode in modes(len(expected.calls)):
        found = check.run(mode)
        check.compare(mode, expected, found)
        moves += found.moves
    if not moves:
        text = f"{kind.__name__} was not active whenever it was to be moved: the script shows nothing of moves"
        raise NotMigratable(text, call=0, mode="any")


def modes(calls: int) -> Iterator[Mode]:
    """The ways to run a script of so many calls, beside the local one."""
    yield Mode("remote", home=SECOND_SILO)
    if calls <= MOVED_ALONE_MAX:
        for number in range(2, calls + 1):
            yield Mode(f"moved before call {number}", moves_before=number.__eq__)
    yield Mode("moved before every call", moves_before=lambda number: number > 1)
    yield Mode("moved during every call", moves_during=True)


@dataclass(frozen=True, slots=True)
class _Check:
    """One kind, one script, and what both need."""

    kind: GrainKind
    script: Callable[[Any], Awaitable[object]]
    kinds: Sequence[type | ModuleType]
    key: str
    seed: int
    registry: TypeRegistry

    def run(self, mode: Mode) -> Account:
        """Run the script in a cluster of its own."""
        return run_simulated(
            lambda cluster: _Course(self, cluster, mode).play(),
            kinds=[self.kind.cls, *self.kinds],
            silos=SILOS,
            seed=self.seed,
            registry=self.registry,
            checks=False,
        ).result

    def compare(self, mode: Mode, expected: Account, found: Account) -> None:
        """Raise NotMigratable for the first difference."""
        same = Sameness(self.registry)
        for number, (one, other) in enumerate(zip(expected.calls, found.calls, strict=False), start=1):
            if one.what != other.what:
                raise self._difference(mode, number, f"call {number}", one.what, other.what, found.lost)
            if not same.of_calls(one, other):
                raise self._difference(mode, number, f"call {number}, {one.what}", str(one), str(other), found.lost)
        if len(expected.calls) != len(found.calls):
            one_made, other_made = (f"{len(account.calls)} calls" for account in (expected, found))
            raise self._difference(mode, 0, "the script", one_made, other_made, found.lost)
        if not same.of_calls(expected.result, found.result):
            one_end, other_end = str(expected.result), str(found.result)
            raise self._difference(mode, 0, "the script's result", one_end, other_end, found.lost)

    def _difference(
        self, mode: Mode, call: int, what: str, expected: str, found: str, lost: Mapping[str, object]
    ) -> NotMigratable:
        width = max(len(LOCAL.name), len(mode.name)) + 2
        name = self.kind.cls.__name__
        lines = [
            f"{name} is not the same to its callers wherever it is: {what} ended otherwise",
            f"  {LOCAL.name + ':':<{width}}{expected}",
            f"  {mode.name + ':':<{width}}{found}",
            *(
                f"`{each}` is a plain attribute: declare it with soft_state, as in {remedy(each, lost[each])}"
                for each in lost
            ),
        ]
        return NotMigratable("\n".join(lines), call=call, mode=mode.name, lost=tuple(lost))


class _Course:
    """One run of the script in one mode."""

    def __init__(self, check: _Check, cluster: Cluster, mode: Mode) -> None:
        self._check = check
        self._cluster = cluster
        self._mode = mode
        self._process = cluster.processes[FIRST_SILO]
        self._calls = RecordingTarget(
            self._process.silo.runtime.caller, mode.home, self._move_before, self._move_during
        )
        self._reference: Any = make_reference(check.kind, check.key, self._calls)
        self._lost: dict[str, object] = {}
        self._moves = 0
        self._refusal: NotMigratable | None = None

    async def play(self) -> Account:
        async def run() -> object:
            return await self._check.script(self._reference)

        try:
            result = Heard("the script", await self._process.node.run(run(), name="script"))
        except Exception as error:  # it is how the script ended, and may be what differs
            result = Heard("the script", error=error)
        if self._refusal is not None:
            raise self._refusal
        return Account(self._calls.heard, result, self._lost, self._moves)

    async def _move_before(self, number: int) -> None:
        if self._mode.moves_before(number):
            await self._move(number, others=self._calls.running)

    async def _move_during(self, number: int, call: asyncio.Future[Any]) -> None:
        if self._mode.moves_during:
            # its first call is what activates it
            await self._cluster.seen(lambda: self._cluster.live(self._reference) or call.done(), within_s=SECONDS_MAX)
            await self._move(number, others=self._calls.running - 1)

    async def _move(self, number: int, others: int) -> None:
        """Move the grain to the next silo, where it is active, and note which of its attributes stay behind.

        Args:
            others: how many calls are out for which the move may have waited in vain: one may wait for the next.
        """
        cluster, mode = self._cluster, self._mode
        before = await self._live()
        if before is None:
            return
        names = cluster.silos
        to = names[(names.index(before.silo_name) + 1) % len(names)]
        instance = before.instance
        outcome = await self._process.silo.migrate(self._reference, to=to, force=True)
        if outcome.moved:
            self._moves += 1
            after = await self._live()
            if after is not None:
                self._lost.update(self._left_behind(instance, after.instance))
        elif outcome.status is not MoveStatus.NOT_ACTIVE and not others and self._refusal is None:
            text = f"{self._check.kind.cls.__name__} could not be moved ({mode.name}, at call {number}): {outcome}"
            self._refusal = NotMigratable(text, call=number, mode=mode.name)

    async def _live(self) -> Activation | None:
        """The grain's activation once it is open; None where it has none."""
        cluster, grain = self._cluster, self._reference
        await cluster.seen(lambda: cluster.live(grain) or not cluster.is_active(grain))
        return next(iter(cluster.live(grain)), None)

    def _left_behind(self, before: object, after: object) -> dict[str, object]:
        """Plain attributes that are not the same in the instance that goes on."""
        own = {field.attribute for field in self._check.kind.soft_state} | {CONTEXT}
        same, now = Sameness(self._check.registry), vars(after)
        return {
            name: value
            for name, value in vars(before).items()
            if name not in own and not (name in now and same.of_values(value, now[name]))
        }


def remedy(name: str, value: object) -> str:
    """The declaration that makes an attribute travel."""
    kind = type(value).__name__
    start = "default=…" if type(value).__hash__ is not None else f"default_factory={kind}"
    return f"{name}: {kind} = soft_state({start})"
