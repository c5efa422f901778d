"""The order rule: calls of one caller to one grain depart in the order they were made, whatever way each must go."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from silo.directory.addresses import GrainId
from silo.directory.errors import Overloaded
from silo.routing.call import Answer, Call
from silo.routing.lanes import Lanes

ROOM = GrainId("room", "lobby")
HELD_MAX = 3
HERE = "here"


def unheard(_call: Call, _answer: Answer) -> None:
    """These calls are answered by the test itself."""


class Crossroads:
    """A router as lanes see it, with one place where the grain is at the moment."""

    def __init__(self, held_max: int = HELD_MAX) -> None:
        self.lanes = Lanes(self.route, held_max)
        self.place = "a"
        self.large: set[int] = set()
        self.departed: list[tuple[int, str]] = []
        self.out: dict[int, tuple[Call, str]] = {}
        """Sent, and neither known to be admitted nor answered."""
        self.writing: dict[int, Callable[[], None]] = {}
        self.refused: set[int] = set()
        self._ids = 0

    def make(self, caller: str = "c1", *, large: bool = False) -> Call:
        self._ids += 1
        call = Call(self._ids, ROOM, "enter", caller=caller, deadline=None, on_answer=unheard)
        if large:
            self.large.add(call.id)
        self.route(call)
        return call

    def route(self, call: Call) -> None:
        assert not call.answered, "sent after its end"
        assert call.id not in self.out, "sent twice"
        place = self.place
        try:
            if not self.lanes.enter(call, place, tracked=place != HERE):
                return
        except Overloaded:
            self.refused.add(call.id)
            call.answered = True
            return
        self.departed.append((call.id, place))
        if place != HERE:
            self.out[call.id] = (call, place)
            call.target = place
            if call.id in self.large:
                self.writing[call.id] = self.lanes.block(call)

    def admitted(self, call: Call) -> None:
        self.out.pop(call.id, None)
        self.lanes.leave(call)

    def answered(self, call: Call) -> None:
        call.answered = True
        self.admitted(call)

    def comes_back(self, call: Call) -> None:
        self.out.pop(call.id, None)
        call.tries += 1
        call.target = None
        self.lanes.again(call)

    def is_sent_on(self, call: Call) -> None:
        self.out[call.id] = call, "elsewhere"
        self.lanes.scatter(call)

    def written(self, call: Call) -> None:
        self.writing.pop(call.id)()

    @property
    def order(self) -> list[int]:
        return [number for number, _ in self.departed]


def test_calls_by_one_road_go_without_waiting() -> None:
    world = Crossroads()
    for _ in range(3):
        world.make()
    assert world.departed == [(1, "a"), (2, "a"), (3, "a")]


def test_a_call_by_another_road_waits_for_those_that_are_out() -> None:
    world = Crossroads()
    first, second = world.make(), world.make()
    world.place = "b"
    world.make()
    world.admitted(first)
    assert world.order == [1, 2]
    world.admitted(second)
    assert world.departed[-1] == (3, "b")


def test_a_call_to_a_grain_that_has_come_here_waits_for_those_that_are_out() -> None:
    world = Crossroads()
    first = world.make()
    world.place = HERE
    world.make()
    assert world.order == [1]
    world.answered(first)
    assert world.departed == [(1, "a"), (2, HERE)]
    assert len(world.lanes) == 0


def test_no_call_goes_by_any_road_while_one_is_out_that_was_sent_on() -> None:
    world = Crossroads()
    first, second = world.make(), world.make()
    world.is_sent_on(first)
    world.make()
    world.admitted(second)
    assert world.order == [1, 2]
    world.admitted(first)
    assert world.departed[-1] == (3, "a")


def test_callers_do_not_wait_for_each_other() -> None:
    world = Crossroads()
    world.make("c1")
    world.place = "b"
    world.make("c2")
    assert world.departed == [(1, "a"), (2, "b")]


def test_a_call_that_comes_back_goes_before_those_that_wait() -> None:
    world = Crossroads()
    first = world.make()
    world.place = "b"
    world.make()
    world.comes_back(first)
    assert world.departed == [(1, "a"), (1, "b"), (2, "b")]


def test_a_large_call_holds_back_only_later_calls_of_its_caller() -> None:
    world = Crossroads()
    large = world.make(large=True)
    world.make()
    world.make("c2")
    assert world.order == [1, 3]
    world.written(large)
    assert world.order == [1, 3, 2]


def test_a_written_call_lets_others_go_while_earlier_ones_are_still_out_on_the_same_road() -> None:
    world = Crossroads()
    world.make()
    large = world.make(large=True)
    world.make()
    world.written(large)
    assert world.order == [1, 2, 3]


@pytest.mark.parametrize("end", [Crossroads.answered, Crossroads.comes_back], ids=["answered", "came back"])
def test_a_large_call_that_is_never_written_holds_nobody_back_for_ever(
    end: Callable[[Crossroads, Call], None],
) -> None:
    world = Crossroads()
    world.make()
    large = world.make(large=True)
    late = world.make()
    world.large.clear()
    end(world, large)  # withdrawn or expired in the queue of its link; or the link was lost before it was written
    assert late.id in world.order
    world.written(large)  # a late word of it changes nothing
    assert len(world.lanes) == 1


def test_a_held_call_that_is_given_up_is_not_sent() -> None:
    world = Crossroads()
    first = world.make()
    world.place = "b"
    second, _third = world.make(), world.make()
    second.answered = True
    world.lanes.drop(second)
    world.answered(first)
    assert world.departed == [(1, "a"), (3, "b")]


def test_a_held_call_that_was_answered_is_not_sent() -> None:
    world = Crossroads()
    first = world.make()
    world.place = "b"
    world.make().answered = True  # as when the whole book is failed
    world.answered(first)
    assert world.order == [1]
    assert len(world.lanes) == 0


def test_a_lane_holds_a_bounded_number_of_calls_but_refuses_none_that_comes_back() -> None:
    world = Crossroads(held_max=2)
    first, second = world.make(), world.make()
    world.place = "b"
    held = [world.make() for _ in range(3)]
    assert world.refused == {held[-1].id}
    world.comes_back(second)
    assert world.refused == {held[-1].id}
    world.answered(first)
    assert world.order == [1, 2, 2, 3, 4]


class Traffic(RuleBasedStateMachine):
    """Random traffic at the crossroads; each departure is held to the order rule."""

    @initialize()
    def begin(self) -> None:
        self.world = Crossroads()
        self.calls: dict[int, Call] = {}
        self.admitted: set[int] = set()
        self.checked = 0

    def some(self, which: int) -> Call:
        out = list(self.world.out.values())
        return out[which % len(out)][0]

    @rule(caller=st.sampled_from(["c1", "c1", "c2"]), large=st.integers(0, 3))
    def call(self, caller: str, large: int) -> None:
        made = self.world.make(caller, large=large == 0)
        self.calls[made.id] = made

    @rule(place=st.sampled_from(["a", "b", HERE]))
    def moves(self, place: str) -> None:
        self.world.place = place

    @precondition(lambda self: bool(self.world.out))
    @rule(which=st.integers(0, 100))
    def is_admitted(self, which: int) -> None:
        self.world.admitted(self.some(which))

    @precondition(lambda self: bool(self.world.out))
    @rule(which=st.integers(0, 100))
    def is_sent_on(self, which: int) -> None:
        self.world.is_sent_on(self.some(which))

    @precondition(lambda self: bool(self.world.out))
    @rule(which=st.integers(0, 100))
    def is_answered(self, which: int) -> None:
        self.world.answered(self.some(which))

    @precondition(lambda self: bool(self.world.out))
    @rule(which=st.integers(0, 100))
    def comes_back(self, which: int) -> None:
        call = self.some(which)
        if call.tries < 2:
            self.world.comes_back(call)

    @precondition(lambda self: bool(self.world.writing))
    @rule(which=st.integers(0, 100))
    def is_written(self, which: int) -> None:
        numbers = list(self.world.writing)
        self.world.written(self.calls[numbers[which % len(numbers)]])

    @rule(which=st.integers(0, 100), forgotten=st.booleans())
    def is_given_up(self, which: int, forgotten: bool) -> None:
        gone = {number for number, _ in self.world.departed} | self.world.refused
        held = [call for call in self.calls.values() if call.id not in gone and not call.answered]
        if held:
            call = held[which % len(held)]
            call.answered = True
            if not forgotten:
                self.world.lanes.drop(call)

    @invariant()
    def each_departure_keeps_the_order(self) -> None:
        if not hasattr(self, "world"):
            return
        departed = self.world.departed
        for position in range(self.checked, len(departed)):
            self.check(*departed[position], {number for number, _ in departed[:position]})
        self.checked = len(departed)

    def check(self, number: int, place: str, before: set[int]) -> None:
        call = self.calls[number]
        if call.tries:
            return
        for other in self.calls.values():
            if other.caller != call.caller or other.id >= number or other.tries or other.answered:
                continue
            assert other.id in before, f"{number} has overtaken {other.id}"
            held_by = self.world.out.get(other.id)
            assert held_by is None or held_by[1] == place, f"{number} to {place} may overtake {other.id} to {held_by}"
            assert held_by is None or other.id not in self.world.writing, f"{number} overtakes the pieces of {other.id}"

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        while self.world.out:
            self.world.answered(self.some(0))
        assert len(self.world.lanes) == 0, "a lane was left behind"
        gone = {number for number, _ in self.world.departed} | self.world.refused
        assert not [call for call in self.calls.values() if call.id not in gone and not call.answered], "held for ever"


Traffic.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestTheOrderRuleUnderRandomTraffic = Traffic.TestCase
