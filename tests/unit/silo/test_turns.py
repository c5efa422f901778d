"""Which calls may run now: the admission of turns, beside a model that says it in other words."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from silo.activation.turns import Admission, Reentrancy, TurnQueue

GRAIN = "room/lobby"
WAITING_MAX = 4
WAITING_BYTES_MAX = 10


@dataclass(frozen=True, eq=False)
class Visit:
    """A call as admission sees it."""

    id: int
    path: tuple[tuple[str, int], ...] = ()
    read_only: bool = False
    always_interleave: bool = False
    size: int = 0


def opened(reentrant: Reentrancy = False, waiting_max: int = WAITING_MAX) -> TurnQueue[Visit]:
    queue: TurnQueue[Visit] = TurnQueue(reentrant, waiting_max, WAITING_BYTES_MAX)
    assert list(queue.release()) == []
    return queue


def ids(turns: Iterator[Visit] | list[Visit] | tuple[Visit, ...]) -> list[int]:
    return [turn.id for turn in turns]


def test_one_turn_runs_at_a_time_and_the_others_follow_in_order() -> None:
    queue = opened()
    first, second, third = Visit(1), Visit(2), Visit(3)
    assert queue.admit(first) is Admission.START
    assert queue.admit(second) is Admission.WAIT
    assert queue.admit(third) is Admission.WAIT
    assert ids(queue.end(first)) == [2]
    assert ids(queue.running) == [2]
    assert ids(queue.end(second)) == [3]
    assert ids(queue.end(third)) == []
    assert queue.is_idle


def test_an_idle_grain_keeps_nothing_of_what_has_run_and_waited() -> None:
    def size(queue: TurnQueue[Visit]) -> int:
        parts: list[object] = [getattr(queue, name) for name in TurnQueue.__slots__]
        return sum(sys.getsizeof(part) for part in parts if type(part) in (dict, deque))

    queue, never_used = opened(), opened()
    turns = [Visit(number) for number in range(4)]
    for turn in turns:
        queue.admit(turn)
    for turn in turns:
        ids(queue.end(turn))
    gone, running = Visit(7), Visit(8)
    queue.admit(running)
    queue.admit(gone)
    assert queue.discard(gone)
    assert ids(queue.end(running)) == []
    assert queue.is_idle
    assert size(queue) == size(never_used)


def test_readers_share_and_do_not_overtake_a_writer_that_waits() -> None:
    queue = opened()
    one, two, writer, late = Visit(1, read_only=True), Visit(2, read_only=True), Visit(3), Visit(4, read_only=True)
    assert [queue.admit(turn) for turn in (one, two)] == [Admission.START, Admission.START]
    assert [queue.admit(turn) for turn in (writer, late)] == [Admission.WAIT, Admission.WAIT]
    assert ids(queue.end(one)) == []
    assert ids(queue.end(two)) == [3]
    assert ids(queue.end(writer)) == [4]


def test_readers_start_when_the_writer_before_them_is_given_up() -> None:
    queue = opened()
    reader, writer, late = Visit(1, read_only=True), Visit(2), Visit(3, read_only=True)
    for turn in (reader, writer, late):
        queue.admit(turn)
    assert queue.discard(writer)
    assert ids(queue.startable()) == [3]


def test_what_always_interleaves_starts_beside_a_writer() -> None:
    queue = opened()
    queue.admit(Visit(1))
    queue.admit(Visit(2))
    assert queue.admit(Visit(3, always_interleave=True)) is Admission.START


def test_what_always_interleaves_keeps_nobody_waiting() -> None:
    queue = opened()
    watch = Visit(1, always_interleave=True)  # waits for a change that only a writer can make
    assert queue.admit(watch) is Admission.START
    assert queue.admit(Visit(2)) is Admission.START
    assert queue.admit(Visit(3, read_only=True)) is Admission.WAIT


def test_a_call_that_waits_for_its_own_chain_is_a_cycle() -> None:
    queue = opened(reentrant=False)
    queue.admit(Visit(1))
    assert queue.admit(Visit(2, path=((GRAIN, 1), ("other/a", 9)))) is Admission.CYCLE
    assert queue.running_count == 1
    assert queue.waiting_count == 0


def test_a_chain_that_has_left_the_grain_is_no_cycle() -> None:
    queue = opened(reentrant=False)
    first = Visit(1)
    queue.admit(first)
    list(queue.end(first))
    assert queue.admit(Visit(2, path=((GRAIN, 1),))) is Admission.START


@pytest.mark.parametrize("reentrant", [True, "call_chain"])
@pytest.mark.parametrize("holding", [False, True])
def test_a_chain_may_come_back_where_the_grain_allows_it_even_while_it_drains(
    reentrant: Reentrancy, holding: bool
) -> None:
    queue = opened(reentrant)
    queue.admit(Visit(1))
    if holding:
        queue.hold()
    assert queue.admit(Visit(2, path=((GRAIN, 1),))) is Admission.START


@pytest.mark.parametrize(
    "again", [Visit(2, ((GRAIN, 1),), read_only=True), Visit(2, ((GRAIN, 1),), always_interleave=True)]
)
def test_a_chain_may_come_back_by_what_may_run_beside_its_turn_anyway(again: Visit) -> None:
    queue = opened(reentrant=False)
    queue.admit(Visit(1, read_only=True))
    queue.admit(Visit(3))  # a writer waits, for the very turn that waits for this one
    assert queue.admit(again) is Admission.START


def test_call_chain_reentrance_lets_no_stranger_in() -> None:
    queue = opened("call_chain")
    queue.admit(Visit(1))
    assert queue.admit(Visit(2, path=(("other/a", 7),))) is Admission.WAIT


def test_a_reentrant_grain_runs_all_at_once() -> None:
    queue = opened(True)
    assert [queue.admit(Visit(number)) for number in range(3)] == [Admission.START] * 3


def test_a_queue_is_born_holding() -> None:
    queue: TurnQueue[Visit] = TurnQueue(True, WAITING_MAX, WAITING_BYTES_MAX)
    assert queue.admit(Visit(1)) is Admission.WAIT
    assert queue.admit(Visit(2, always_interleave=True)) is Admission.WAIT
    assert ids(queue.release()) == [1, 2]


def test_what_is_refused_for_want_of_room_is_not_here() -> None:
    queue = opened(waiting_max=1)
    queue.admit(Visit(1))
    queue.admit(Visit(2))
    assert queue.admit(Visit(3)) is Admission.FULL
    assert queue.admit(Visit(4), forced=True) is Admission.WAIT
    assert ids(queue.take_waiting()) == [2, 4]
    assert queue.waiting_count == 0


def test_what_waits_is_bounded_by_its_bytes_too_and_one_large_call_by_itself_may_wait() -> None:
    queue = opened()
    running, large = Visit(1, size=WAITING_BYTES_MAX), Visit(2, size=WAITING_BYTES_MAX + 1)
    assert queue.admit(running) is Admission.START
    assert queue.admit(large) is Admission.WAIT
    assert queue.admit(Visit(3, size=1)) is Admission.FULL_BYTES
    assert queue.discard(large)
    assert queue.admit(Visit(4, size=WAITING_BYTES_MAX)) is Admission.WAIT


class Model(RuleBasedStateMachine):
    """A queue and its model: a list of what runs, a list of what waits, and the rules read off the documentation."""

    @initialize(reentrant=st.sampled_from([False, True, "call_chain"]))
    def begin(self, reentrant: Reentrancy) -> None:
        self.queue: TurnQueue[Visit] = TurnQueue(reentrant, WAITING_MAX, WAITING_BYTES_MAX)
        self.reentrant = reentrant
        self.running: list[Visit] = []
        self.waiting: list[Visit] = []
        self.holding = True
        self.count = 0

    def may_join(self, visit: Visit) -> bool:
        blocking = [other for other in self.running if not other.always_interleave]
        if visit.always_interleave or self.reentrant is True:
            return True
        return not blocking or (visit.read_only and all(other.read_only for other in blocking))

    def start_what_may(self) -> list[int]:
        started: list[int] = []
        while self.waiting and not self.holding and self.may_join(self.waiting[0]):
            self.running.append(self.waiting.pop(0))
            started.append(self.running[-1].id)
        return started

    def expected(self, visit: Visit, in_chain: bool, forced: bool) -> Admission:
        if in_chain:
            return Admission.START if self.reentrant or self.may_join(visit) else Admission.CYCLE
        if not self.holding and visit.always_interleave:
            return Admission.START
        if not self.holding and not self.waiting and self.may_join(visit):
            return Admission.START
        if forced:
            return Admission.WAIT
        if len(self.waiting) >= WAITING_MAX:
            return Admission.FULL
        fits = not self.waiting or sum(each.size for each in self.waiting) + visit.size <= WAITING_BYTES_MAX
        return Admission.WAIT if fits else Admission.FULL_BYTES

    @rule(
        mode=st.sampled_from(["write", "write", "read", "interleave"]),
        chained=st.integers(0, 5),
        forced=st.booleans(),
        size=st.integers(0, WAITING_BYTES_MAX // 2),
    )
    def arrive(self, mode: str, chained: int, forced: bool, size: int) -> None:
        self.count += 1
        in_chain = chained < len(self.running)
        path = ((GRAIN, self.running[chained].id), ("other/a", -1)) if in_chain else (("other/a", -1),)
        visit = Visit(self.count, path, mode == "read", mode == "interleave", size)
        expected = self.expected(visit, in_chain, forced)
        assert self.queue.admit(visit, forced=forced) is expected
        if expected is Admission.START:
            self.running.append(visit)
        elif expected is Admission.WAIT:
            self.waiting.append(visit)

    @precondition(lambda self: bool(self.running))
    @rule(which=st.integers(0, 100))
    def end(self, which: int) -> None:
        visit = self.running.pop(which % len(self.running))
        started = ids(self.queue.end(visit))
        assert started == self.start_what_may()

    @rule(which=st.integers(0, 100))
    def give_up(self, which: int) -> None:
        if not self.waiting:
            assert not self.queue.discard(Visit(-1))
            return
        visit = self.waiting.pop(which % len(self.waiting))
        assert self.queue.discard(visit)
        assert not self.queue.discard(visit)
        assert ids(self.queue.startable()) == self.start_what_may()

    @rule()
    def hold(self) -> None:
        self.queue.hold()
        self.holding = True

    @rule()
    def release(self) -> None:
        self.holding = False
        assert ids(self.queue.release()) == self.start_what_may()

    @rule()
    def hand_over(self) -> None:
        assert ids(self.queue.take_waiting()) == ids(self.waiting)
        self.waiting.clear()

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "queue"):
            return
        assert sorted(ids(self.queue.running)) == sorted(ids(self.running))
        assert self.queue.running_count == len(self.running)
        assert self.queue.waiting_count == len(self.waiting)
        assert self.queue.waiting_bytes == sum(visit.size for visit in self.waiting)
        assert self.queue.is_idle == (not self.running and not self.waiting)
        assert self.queue.is_holding == self.holding

    @invariant()
    def keeps_nobody_waiting_for_nothing(self) -> None:
        if hasattr(self, "queue") and self.waiting and not self.holding:
            assert self.running


Model.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestTurnsAgainstTheModel = Model.TestCase
