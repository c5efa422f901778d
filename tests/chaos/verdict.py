"""The verdict on a chaos run: the history against the promises, in counts."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from silo.testing.history import History, Violation, check, order_kept
from silo.testing.witness import Ended, Event, What
from tests.chaos.schedule import PLANNED, Act

COUNTS: Final[Mapping[str, str]] = {
    "one activation": "overlaps",
    "one turn at a time": "overlaps",
    "state kept": "lost",
    "stays active": "deactivated",
    "executed once": "repeated",
    "call ended": "overdue",
    "order kept": "disorder",
    "call answered": "unanswered",
    "directory true": "disagreements",
    "no leak": "leaks",
    "process runs": "ended_by_themselves",
    "moves end": "endless_moves",
}
"""Under which name the violations of a rule are counted."""


class Verdict(msgspec.Struct, frozen=True):
    """What a run showed."""

    violations: list[Violation]
    counts: dict[str, Any]

    @property
    def is_good(self) -> bool:
        return not self.violations


def judge(
    events: Sequence[Event],
    violations: Sequence[Violation],
    settle_s: float,
    acts: Mapping[Act, int],
    moves: Mapping[str, int],
    more: Mapping[str, object],
) -> Verdict:
    """The verdict, from all that was witnessed and what the bench found by itself.

    Args:
        violations: those that no history shows: of processes, directory and leaks.
        acts, moves: how often each act was played, and how moves have ended by the word of who asked for them.
        more: counts to be shown beside them.
    """
    found = [*check(events, settle_s), *given_up(events, settle_s), *raised(events), *violations]
    by_name: Tally[str] = Tally(COUNTS[violation.rule] for violation in found)
    ended = Tally(event.outcome for event in events if event.what is What.CALL_ENDED)
    opened = Tally(event.because for event in events if event.what is What.OPENED)
    closed = Tally(event.because for event in events if event.what is What.CLOSED)
    counts: dict[str, Any] = {
        "migrations": opened["migration"],
        "faults": sum(count for act, count in acts.items() if act not in PLANNED),
        "acts": {str(act): acts[act] for act in Act if acts.get(act)},
        "calls": {str(outcome): ended[outcome] for outcome in Ended},
        "moves_asked": dict(sorted(moves.items())),
        "activations_begun": opened["call"],
        "moves_taken_back": opened["migration_aborted"],
        "given_up_at_shutdown": closed["shutting_down"],
        "overtaken_near_faults": len(order_kept(History(_without_faults(events)))),
        **more,
        **{name: by_name[name] for name in dict.fromkeys(COUNTS.values())},
        "violations": len(found),
    }
    return Verdict(found, counts)


def given_up(events: Sequence[Event], settle_s: float) -> list[Violation]:
    """A silo that stops takes nothing with it, where no fault is near and others run."""
    history = History(events, settle_s)
    return [
        Violation("state kept", event.grain, f"{event.silo} gave it up when it stopped at {event.at:.6f}")
        for event in events
        if event.what is What.CLOSED and event.because == "shutting_down"
        if not history.is_disturbed(event.at - settle_s, event.at)
    ]


def raised(events: Sequence[Event]) -> list[Violation]:
    """The grains of the bench raise nothing of their own, so no call may end so.

    What an activation that is no longer its grain's still tries is refused as GrainMoved, and rightly so.
    """
    of_grains = {event.call for event in events if event.what is What.CALL_SENT and event.silo}
    return [
        Violation("call answered", event.call, f"it ended with an exception that no grain raises: {event.because}")
        for event in events
        if event.what is What.CALL_ENDED and event.outcome == Ended.APPLICATION_ERROR
        if not (event.call in of_grains and event.because.startswith("GrainMoved"))
    ]


def _without_faults(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if event.what not in (What.FAULT, What.HEALED)]
