"""The history checker: what the witness saw, held against what the runtime promises. Events in, violations out."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from silo.testing.witness import Ended, Event, What

LATE_S = 1.0
"""A call ends within its deadline plus this."""
PATIENT_S = 15.0
"""A call with this much time is to be answered within it; one with less may have waited too long in a queue."""
STATE_LOST_BECAUSE = ("idle", "application", "shutting_down")
"""An activation that was closed for one of these reasons takes its soft state with it, and rightly so."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise."""

    rule: str
    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.subject}: {self.text}"


@dataclass(slots=True)
class Call:
    """All that happened to one call."""

    sent: Event | None = None
    ended: list[Event] = field(default_factory=list[Event])
    started: list[Event] = field(default_factory=list[Event])
    finished: list[Event] = field(default_factory=list[Event])


class History:
    """The events of one run in the order of their clock, with what the checks look up in them.

    Args:
        events: in order of time; those of one moment in the order in which they happened.
        settle_s: how long after a fault a call may still end without an answer, or overtake another.
    """

    def __init__(self, events: Sequence[Event], settle_s: float = 0.0) -> None:
        self.events = events
        self.settle_s = settle_s
        self.calls: dict[str, Call] = defaultdict(Call)
        self.grains: dict[str, list[Event]] = defaultdict(list)
        self.carried: dict[str, list[Event]] = defaultdict(list)
        """What was taken out of grains and put into them."""
        self._frozen_at_start: set[int] = set()
        self.lost: dict[str, float] = {}
        self._disturbed: list[tuple[float, float]] = []
        self._paused: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self.end = events[-1].at if events else 0.0
        self._read()

    def _read(self) -> None:
        fault: float | None = None
        paused: dict[str, float] = {}
        thawed: set[str] = set()
        for event in self.events:
            if event.silo in thawed and event.what is not What.PAUSED:
                thawed.discard(event.silo)
                self._frozen_at_start.add(id(event))
            match event.what:
                case What.CALL_SENT:
                    self.calls[event.call].sent = event
                case What.CALL_ENDED:
                    self.calls[event.call].ended.append(event)
                case What.TURN_STARTED:
                    self.calls[event.call].started.append(event)
                    self.grains[event.grain].append(event)
                case What.TURN_ENDED:
                    self.calls[event.call].finished.append(event)
                    self.grains[event.grain].append(event)
                case What.OPENED | What.CLOSED:
                    self.grains[event.grain].append(event)
                case What.SILO_LOST | What.CALLER_LOST:
                    self.lost.setdefault(event.silo or event.caller, event.at)
                case What.PAUSED:
                    paused[event.silo] = event.at
                case What.RESUMED:
                    self._paused[event.silo].append((paused.pop(event.silo, event.at), event.at))
                    thawed.add(event.silo)
                case What.FAULT:
                    fault = event.at if fault is None else fault
                case What.HEALED:
                    if fault is not None:
                        self._disturbed.append((fault, event.at + self.settle_s))
                        fault = None
                case What.DEHYDRATED | What.REHYDRATED:
                    self.carried[event.grain].append(event)
                case What.HOLDING:
                    pass  # figures are made of it, no verdicts
        if fault is not None:
            self._disturbed.append((fault, self.end))
        for silo, since in paused.items():
            self._paused[silo].append((since, self.end))

    def is_disturbed(self, since: float, until: float) -> bool:
        """Whether a fault, or the time in which its traces settle, falls into this span."""
        return any(start <= until and since <= end for start, end in self._disturbed)

    def is_lost(self, process: str, at: float) -> bool:
        """Whether the silo or client was lost by then."""
        return process in self.lost and self.lost[process] <= at

    def began_before_it_was_frozen(self, event: Event) -> bool:
        """Whether this may have begun before its process was frozen, and was only told of when that went on.

        The first thing that a process tells after a pause may lie on both sides of it: no process can decide and act
        in one instant. A turn that began so must not count: then its call has no answer.
        """
        ended = self.calls[event.call].ended if event.call else []
        return id(event) in self._frozen_at_start and not any(end.outcome == Ended.VALUE for end in ended)

    def paused_s(self, process: str, since: float, until: float) -> float:
        """How long the process was frozen within this span."""
        return sum(max(0.0, min(end, until) - max(start, since)) for start, end in self._paused[process])


def check(events: Sequence[Event], settle_s: float = 0.0, excused: tuple[str, ...] = ()) -> list[Violation]:
    """Every promise that the witness can decide, over one run's events in order of time.

    Args:
        settle_s: see `History`.
        excused: errors, by the names of their classes, with which a call may end though no fault is near.
    """
    history = History(events, settle_s)
    found: list[Violation] = []
    followed_ever: dict[str, float] = {}
    for grain, story in history.grains.items():
        found += one_activation(history, grain, story)
        found += one_turn_at_a_time(history, grain, story)
        found += state_kept(history, grain, story)
        found += stays_active(history, grain, story)
        followed = followed_at(history, story)
        found += no_late_answer(history, grain, story, followed)
        followed_ever |= followed
    for grain, story in history.carried.items():
        found += state_carried(grain, story)
    for name, call in history.calls.items():
        found += executed_once(name, call)
        found += no_late_call(name, call, followed_ever)
        found += call_ended(history, name, call)
        found += call_answered(history, name, call, excused)
    found += order_kept(history)
    return found


def one_activation(history: History, grain: str, story: Sequence[Event]) -> list[Violation]:
    """No turn of one activation starts once another has opened; nor does an activation open again that was followed."""
    found: list[Violation] = []
    followed: dict[str, Event] = {}
    current: Event | None = None
    for event in story:
        if event.what not in (What.OPENED, What.TURN_STARTED):
            continue
        if current is not None and _is_only_told_late(history, event):
            continue
        if current is not None and event.activation != current.activation:
            if event.activation in followed and _is_taken_back(history, event, current):
                del followed[event.activation]
            if event.activation in followed:
                by = followed[event.activation]
                text = f"{_turn(event)} after activation {by.activation} opened on {by.silo} at {by.at:.6f}"
                found.append(Violation("one activation", grain, text))
                continue
            followed[current.activation] = event
        if current is None or event.activation != current.activation:
            current = event
    return found


def followed_at(history: History, story: Sequence[Event]) -> dict[str, float]:
    """When another activation of the grain opened after each, by activation."""
    found: dict[str, float] = {}
    current: Event | None = None
    for event in story:
        if event.what is not What.OPENED or history.is_lost(event.silo, event.at):
            continue
        if current is not None and event.activation != current.activation:
            if _is_taken_back(history, event, current):
                found.pop(event.activation, None)
            found.setdefault(current.activation, event.at)
        current = event
    return found


def _is_taken_back(history: History, event: Event, current: Event) -> bool:
    """Whether an activation, frozen since its move, opens again because the one that followed it died with its silo."""
    return event.what is What.OPENED and history.is_lost(current.silo, event.at)


def no_late_answer(
    history: History, grain: str, story: Sequence[Event], followed: Mapping[str, float]
) -> list[Violation]:
    """No turn is answered that ended after another activation had opened."""
    found: list[Violation] = []
    for event in story:
        if event.what is What.TURN_ENDED and event.at > followed.get(event.activation, math.inf):
            ended = history.calls[event.call].ended
            if ended and ended[0].outcome == Ended.VALUE:
                text = f"call {event.call} was answered though its turn on {event.silo} ended at {event.at:.6f}"
                text += f", after another activation had opened at {followed[event.activation]:.6f}"
                found.append(Violation("one activation", grain, text))
    return found


def no_late_call(name: str, call: Call, followed: Mapping[str, float]) -> list[Violation]:
    """No call is run that an activation makes after another one of its grain has opened."""
    sent = call.sent
    if sent is None or not call.started or sent.at <= followed.get(sent.activation, math.inf):
        return []
    text = f"{sent.caller} made it at {sent.at:.6f}, after another activation had opened"
    return [Violation("one activation", name, text)]


def _is_only_told_late(history: History, event: Event) -> bool:
    """Whether this activation, of a silo that was lost, does nothing here that counts."""
    return history.is_lost(event.silo, event.at) and (
        event.what is What.OPENED or history.began_before_it_was_frozen(event)
    )


def one_turn_at_a_time(history: History, grain: str, story: Sequence[Event]) -> list[Violation]:
    """Turns never overlap, unless both interleave in one activation; what a lost silo was doing counts no more."""
    found: list[Violation] = []
    running: dict[tuple[str, str], Event] = {}
    for event in story:
        if event.what is What.TURN_ENDED:
            running.pop((event.activation, event.call), None)
        if event.what is not What.TURN_STARTED:
            continue
        if _is_only_told_late(history, event):
            continue
        for other in running.values():
            side_by_side = (other.interleaves and event.interleaves) or other.anywhere or event.anywhere
            if not (side_by_side and other.activation == event.activation) and not history.is_lost(
                other.silo, event.at
            ):
                text = f"{_turn(event)} while call {other.call} is running on {other.silo} ({other.activation})"
                found.append(Violation("one turn at a time", grain, text))
        running[event.activation, event.call] = event
    return found


def state_kept(history: History, grain: str, story: Sequence[Event]) -> list[Violation]:
    """An activation starts with the count of the one before it, unless that was lost; and each increment adds one."""
    found: list[Violation] = []
    count: int | None = None
    before: Event | None = None  # the last event of the activation that has the count
    for event in story:
        if event.value is not None and event.what is What.OPENED:
            if before is not None and event.value != count and history.is_lost(event.silo, event.at):
                continue  # it opens after its silo was lost: it takes no turn
            may_be_new = before is None or _state_is_gone(history, before, event.at)
            if event.value != (count or 0) and not (may_be_new and event.value == 0):
                text = f"opened with {event.value} where {count} was, because of {event.because}"
                found.append(
                    Violation("state kept", grain, f"{event.activation} on {event.silo} at {event.at:.6f} {text}")
                )
            count, before = event.value, event
        elif event.what is What.TURN_ENDED and event.value is not None and not event.interleaves:
            if before is not None and event.activation != before.activation and _counts_no_more(history, event):
                continue
            if count is not None and event.value != count + 1:
                text = f"call {event.call} made it {event.value} where {count} was, on {event.silo}"
                found.append(Violation("state kept", grain, text))
            count, before = event.value, event
        elif event.what is What.CLOSED:
            before = event
    return found


def _counts_no_more(history: History, ended: Event) -> bool:
    """Whether a turn of an activation that was followed has rightly no effect: its silo was lost, or the grain had to
    move on without it, which its caller was told."""
    return history.is_lost(ended.silo, ended.at) or not any(
        end.outcome == Ended.VALUE for end in history.calls[ended.call].ended
    )


def stays_active(history: History, grain: str, story: Sequence[Event]) -> list[Violation]:
    """No call makes a grain anew that was active: that had not been closed, nor its silo lost."""
    found: list[Violation] = []
    before: Event | None = None
    for event in story:
        if _is_only_told_late(history, event):
            continue
        if before is not None and _is_anew(event, before) and not _state_is_gone(history, before, event.at):
            text = f"{event.activation} was made at {event.at:.6f} for a call, on {event.silo}"
            text += f", though {before.activation} was active on {before.silo}"
            found.append(Violation("stays active", grain, text))
        before = event
    return found


def _is_anew(event: Event, before: Event) -> bool:
    return event.what is What.OPENED and event.because == "call" and event.activation != before.activation


def _state_is_gone(history: History, last: Event, at: float) -> bool:
    if history.is_lost(last.silo, at):
        return True
    if last.what is not What.CLOSED:
        return False
    if last.because == "migrating":  # it may have arrived at a silo that was lost before it opened there
        return any(last.at <= lost <= at for lost in history.lost.values())
    return last.because in STATE_LOST_BECAUSE


def state_carried(grain: str, story: Sequence[Event]) -> list[Violation]:
    """What a grain is given where it arrives was taken out of it before."""
    found: list[Violation] = []
    taken: set[int | None] = set()
    for event in story:
        if event.what is What.DEHYDRATED:
            taken.add(event.value)
        elif event.value not in taken:
            text = f"it was given {event.value} at {event.at:.6f}, which nobody had taken out of it"
            found.append(Violation("state kept", grain, text))
    return found


def executed_once(name: str, call: Call) -> list[Violation]:
    """A call runs at most once, not at all where its end says so, and is answered what its turn made."""
    found: list[Violation] = []
    if len(call.started) > 1:
        where = ", ".join(f"{event.silo} at {event.at:.6f}" for event in call.started)
        found.append(Violation("executed once", name, f"it ran {len(call.started)} times: {where}"))
    if not call.ended:
        return found
    outcome = call.ended[0].outcome
    if outcome == Ended.NOT_EXECUTED and call.started:
        found.append(Violation("executed once", name, f"it was said not to run, and ran on {call.started[0].silo}"))
    if outcome == Ended.VALUE:
        if not call.finished:
            found.append(Violation("executed once", name, "it was answered, and no turn of it ended"))
        elif call.finished[0].at > call.ended[0].at:
            found.append(Violation("executed once", name, "it was answered before its turn ended"))
        elif call.ended[0].value != call.finished[0].value:
            text = f"it was answered {call.ended[0].value}, and its turn made {call.finished[0].value}"
            found.append(Violation("executed once", name, text))
    return found


def call_ended(history: History, name: str, call: Call) -> list[Violation]:
    """Every call ends once, within its deadline and a second."""
    sent = call.sent
    if sent is None:
        what = "ran" if call.started else "ended"
        return [Violation("call ended", name, f"it {what}, and nobody sent it")]
    if len(call.ended) > 1:
        return [Violation("call ended", name, f"it ended {len(call.ended)} times")]
    process = sent.silo or sent.caller
    if not call.ended:
        if history.is_lost(process, history.end):
            return []
        return [
            Violation("call ended", name, f"{sent.caller} sent it at {sent.at:.6f} to {sent.grain}; it never ended")
        ]
    if sent.deadline_s is None:
        return []
    took = call.ended[0].at - sent.at - history.paused_s(process, sent.at, call.ended[0].at)
    if took > sent.deadline_s + LATE_S:
        return [Violation("call ended", name, f"it took {took:.3f} s, its deadline was {sent.deadline_s} s")]
    return []


def call_answered(history: History, name: str, call: Call, excused: tuple[str, ...] = ()) -> list[Violation]:
    """Where no fault is near, a call is answered: no migration and no planned restart costs one."""
    if call.sent is None or not call.ended:
        return []
    end = call.ended[0]
    if end.outcome not in (Ended.NOT_EXECUTED, Ended.OUTCOME_UNKNOWN) or end.because.partition("(")[0] in excused:
        return []
    hurried = call.sent.deadline_s is not None and call.sent.deadline_s < PATIENT_S
    if hurried and end.because.startswith(("CallTimeout", "CallExpired")):
        return []  # it may have waited behind others for so long
    if history.is_disturbed(call.sent.at, end.at):
        return []
    return [Violation("call answered", name, f"no fault was near, and it ended as {end.outcome}: {end.because}")]


def order_kept(history: History) -> list[Violation]:
    """Calls from one caller to one grain start in the order sent, unless they interleave or a fault repeats them.

    A call that its caller has given up before it starts keeps no place.
    """
    found: list[Violation] = []
    lanes: dict[tuple[str, str], list[tuple[float, Event]]] = defaultdict(list)
    for call in history.calls.values():
        if call.sent is None or not call.started or call.started[0].interleaves:
            continue
        given_up = call.ended and call.ended[0].outcome == Ended.CANCELLED and call.ended[0].at < call.started[0].at
        if not given_up:
            lanes[call.sent.caller, call.sent.grain].append((call.started[0].at, call.sent))
    for (caller, grain), lane in lanes.items():
        lane.sort(key=lambda item: item[0])
        highest: Event | None = None
        for started_at, sent in lane:
            if highest is not None and sent.number < highest.number:
                if not history.is_disturbed(sent.at, started_at):
                    text = f"call {sent.call} (number {sent.number}) started after {highest.call} ({highest.number})"
                    found.append(Violation("order kept", f"{caller} to {grain}", text))
            else:
                highest = sent
    return found


@dataclass(frozen=True, slots=True, order=True)
class Placed:
    """One row of the directory, or one live activation of a catalog."""

    grain: str
    silo: str
    activation: str
    epoch: int


def bijection(rows: Iterable[Placed], live: Iterable[Placed]) -> list[Violation]:
    """After quiesce the directory's rows and the living activations are the same, one to one."""
    in_rows, alive = set(rows), list(live)
    found = [
        Violation("directory true", row.grain, f"the directory has {row}, and nothing lives there")
        for row in sorted(in_rows - set(alive))
    ]
    found += [
        Violation("directory true", one.grain, f"{one} lives, and the directory does not have it")
        for one in sorted(set(alive) - in_rows)
    ]
    seen: set[str] = set()
    for one in alive:
        if one.grain in seen:
            found.append(Violation("directory true", one.grain, "it lives twice"))
        seen.add(one.grain)
    return found


def _turn(event: Event) -> str:
    what = "opened again" if event.what is What.OPENED else f"call {event.call} started"
    return f"{what} in activation {event.activation} on {event.silo} at {event.at:.6f}"
