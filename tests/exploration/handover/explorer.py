"""The walk over all states: breadth first, so that the story of a fault is as short as it can be."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from tests.exploration.handover.play import Play
from tests.exploration.handover.world import Bounds, Violation, World, check, check_end

STATES_MAX = 5_000_000


@dataclass(frozen=True, slots=True)
class Explored:
    """What a walk has seen.

    Args:
        ends: states in which nothing more must happen.
        complete: whether every state that can be reached was walked.
    """

    states: int
    transitions: int
    ends: int
    complete: bool


class Exploration:
    """One walk over the states of one play."""

    def __init__(self, play: Play, bounds: Bounds, *, states_max: int = STATES_MAX) -> None:
        self._play = play
        self._states_max = states_max
        first = play.begin(bounds)
        self._numbers: dict[World, int] = {first: 0}
        self._came_from: list[tuple[int, str]] = [(-1, "begin")]
        self._ahead = deque([first])
        self._must_from: list[list[int]] = [[]]
        """For each state, those from which it must (or may next) come without a further fault."""
        self._ends: list[int] = []
        self._transitions = 0

    def run(self) -> Explored:
        """Walk; raises Violation with the shortest story that breaks a promise."""
        while self._ahead:
            if len(self._numbers) > self._states_max:
                return self._result(complete=False)
            self._visit(self._ahead.popleft())
        self._check_that_all_can_end()
        return self._result(complete=True)

    def _result(self, *, complete: bool) -> Explored:
        return Explored(len(self._numbers), self._transitions, len(self._ends), complete)

    def _visit(self, world: World) -> None:
        number = self._numbers[world]
        is_end = True
        try:
            check(world)
            for what, must, after in self._play.steps(world):
                self._transitions += 1
                next_number = self._number_of(after, number, what)
                if must and next_number != number:
                    is_end = False
                    self._must_from[next_number].append(number)
            if is_end:
                check_end(world)
                self._ends.append(number)
        except Violation as violation:
            raise Violation(f"{violation}, after:\n{self._story(number)}") from None

    def _number_of(self, after: World, number: int, what: str) -> int:
        known = self._numbers.get(after)
        if known is not None:
            return known
        self._numbers[after] = new = len(self._came_from)
        self._came_from.append((number, what))
        self._must_from.append([])
        self._ahead.append(after)
        return new

    def _check_that_all_can_end(self) -> None:
        """From each state the run can end well though no fault heals anything: nobody goes round for ever."""
        can_end = bytearray(len(self._came_from))
        ahead = deque(self._ends)
        for number in self._ends:
            can_end[number] = 1
        while ahead:
            for before in self._must_from[ahead.popleft()]:
                if not can_end[before]:
                    can_end[before] = 1
                    ahead.append(before)
        stuck = can_end.find(0)
        if stuck >= 0:
            raise Violation(f"from here the run never ends, after:\n{self._story(stuck)}")

    def _story(self, number: int) -> str:
        return "\n".join(reversed([f"  {what}" for what in self._steps_to(number)]))

    def _steps_to(self, number: int) -> Iterator[str]:
        while number >= 0:
            number, what = self._came_from[number]
            yield what


def explore(play: Play, bounds: Bounds, *, states_max: int = STATES_MAX) -> Explored:
    """Walk all states of a play; raises Violation with the shortest story that breaks a promise."""
    return Exploration(play, bounds, states_max=states_max).run()
