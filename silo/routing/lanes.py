"""The order of calls: what one caller sends to one grain is admitted in the order it was sent.

A lane is the road that one caller's calls to one grain take at the moment. While some of them are out on it and not
known to be admitted, a call that would go another way (the grain has moved, the gateway has changed) waits until they
are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from silo.directory.addresses import GrainId
from silo.directory.errors import Overloaded
from silo.routing.call import Call

SCATTERED: Final = ""
"""The target of a lane whose calls are on several roads: nobody's name."""


class Lane:
    """One caller's calls to one grain: where they go, which are out, which wait for those."""

    __slots__ = ("held", "key", "out", "target", "writing")

    def __init__(self, key: tuple[str, GrainId], target: str) -> None:
        self.key = key
        self.target = target
        self.out = 0
        """How many are out; each knows its lane."""
        self.held: list[Call] | None = None  # these two are made when first needed: most lanes are for one call
        self.writing: set[int] | None = None
        """Which of them are large and still being written, piece by piece."""


class Lanes:
    """All lanes with calls out on them.

    Args:
        reroute: sends a call that was held, by what is known now.
        held_max: how many calls one lane may hold back.
    """

    def __init__(self, reroute: Callable[[Call], None], held_max: int) -> None:
        self._reroute = reroute
        self._held_max = held_max
        self._lanes: dict[tuple[str, GrainId], Lane] = {}
        self.out: Mapping[tuple[str, GrainId], Lane] = self._lanes
        """The lanes on which calls are out, or held: by caller and grain."""

    def __len__(self) -> int:
        return len(self._lanes)

    def enter(self, call: Call, target: str, *, tracked: bool) -> bool:
        """Whether the call may go to this target now; if not it is held, and sent when those before it are admitted.

        Args:
            tracked: whether the call will be out for a while on this road; False for one that is admitted at once,
                here.

        Raises:
            Overloaded: too many calls are held back already.
        """
        key = (call.caller, call.grain)
        lane = self._lanes.get(key)
        if lane is None:
            if not tracked:
                return True
            lane = self._lanes[key] = Lane(key, target)
        elif lane.held or lane.writing or (lane.target != target and lane.out):
            self._hold(lane, call)
            return False
        elif not tracked:
            return True
        lane.target = target
        lane.out += 1
        call.lane = lane
        return True

    def road_of(self, call: Call) -> str | None:
        """The target of those calls of the same caller to the same grain that are out; None where none is."""
        lane = self._lanes.get((call.caller, call.grain))
        return lane.target if lane is not None and lane.out else None

    def scatter(self, call: Call) -> None:
        """The call was sent on: until all that are out are admitted, no other goes by any road."""
        if call.lane is not None:
            call.lane.target = SCATTERED

    def leave(self, call: Call) -> None:
        """The call is admitted, answered, or given up: it holds back nothing any more."""
        lane = call.lane
        if lane is None:
            return
        if not lane.writing and not lane.held:  # as for nearly all: what follows has nothing to do but this
            call.lane = None
            lane.out -= 1
            if not lane.out and self._lanes.get(lane.key) is lane:
                del self._lanes[lane.key]
            return
        was_written = self._leave(lane, call)
        if not lane.out or not was_written:
            self._open(lane)

    def again(self, call: Call) -> None:
        """The call came back unexecuted: send it again, before those that were made after it."""
        lane = call.lane
        if lane is not None:
            was_written = self._leave(lane, call)
            if lane.held:
                self._insert(lane, call)
                if not lane.out or not was_written:
                    self._open(lane)
                return
            self._close(lane)
        self._reroute(call)

    def block(self, call: Call) -> Callable[[], None]:
        """The call, which is out, is large: later ones wait until it is written. Returns what says that it is.

        They wait no longer once it has left its lane, for it may be answered or given up before it is written.
        """
        lane = call.lane
        assert lane is not None
        call_id = call.id
        writing = lane.writing
        if writing is None:
            writing = lane.writing = set()
        writing.add(call_id)

        def written() -> None:
            if call_id in writing:
                writing.discard(call_id)
                if not writing:
                    self._open(lane)

        return written

    def drop(self, call: Call) -> None:
        """Forget a call that was held and will not be sent."""
        lane = self._lanes.get((call.caller, call.grain))
        if lane is not None and lane.held and call in lane.held:
            lane.held.remove(call)

    @staticmethod
    def _leave(lane: Lane, call: Call) -> bool:
        """Take the call off the lane; False if it was still being written."""
        call.lane = None
        lane.out -= 1
        if not lane.writing or call.id not in lane.writing:
            return True
        lane.writing.discard(call.id)
        return False

    def _hold(self, lane: Lane, call: Call) -> None:
        held = len(lane.held or ())
        if held >= self._held_max and call.tries == 0:
            raise Overloaded(
                f"{held} calls of {call.caller} to {call.grain} wait for earlier ones to be admitted",
                "lane_calls_max",
            )
        self._insert(lane, call)

    def _insert(self, lane: Lane, call: Call) -> None:
        held = lane.held
        if held is None:
            held = lane.held = []
        at = len(held)
        while at and held[at - 1].id > call.id:  # one that is tried again goes before those made after it
            at -= 1
        held.insert(at, call)

    def _open(self, lane: Lane) -> None:
        """Send what was held: the road is free."""
        if lane.writing:
            return
        held, lane.held = lane.held, None
        self._close(lane)
        for call in held or ():
            if not call.answered:
                self._reroute(call)

    def _close(self, lane: Lane) -> None:
        if not lane.out and not lane.held and not lane.writing and self._lanes.get(lane.key) is lane:
            del self._lanes[lane.key]
