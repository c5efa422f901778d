"""What is explored: which faults may come together, in the short form and in the long one."""

from __future__ import annotations

from tests.exploration.handover.world import Bounds

SHORT = {
    "no fault, a call": Bounds(calls=1),
    "a call whose caller crashes": Bounds(calls=1, caller_crashes=1),
    "a crash, a call": Bounds(crashes=1, calls=1),
    "a crash, a lost answer": Bounds(crashes=1, answer_losses=1),
    "a crash, the row swept": Bounds(crashes=1, sweeps=1, calls=1),
    "two crashes": Bounds(crashes=2),
    "a crash, a lost link": Bounds(crashes=1, link_losses=1),
    "a lost link, a call": Bounds(link_losses=1, calls=1),
    "a lost link, a lost answer": Bounds(link_losses=1, answer_losses=1),
    "a verdict on one that lives": Bounds(verdicts=1, calls=1),
    "a move after one that was taken back": Bounds(moves=1),
    "another target, twice": Bounds(retargets=2, calls=1),
    "the directory fails, a call": Bounds(failures=1, calls=1),
    "a crash, the directory fails": Bounds(crashes=1, failures=1),
}
"""In seconds, by the tests."""

LONG = {
    "a lost link, a lost answer, a call": Bounds(link_losses=1, answer_losses=1, calls=1),
    "two lost links, a call": Bounds(link_losses=2, calls=1),
    "two lost links, two lost answers": Bounds(link_losses=2, answer_losses=2),
    "a crash, a lost link, a call": Bounds(crashes=1, link_losses=1, calls=1),
    "a crash, a lost link, a lost answer": Bounds(crashes=1, link_losses=1, answer_losses=1),
    "a crash, a lost answer, a call": Bounds(crashes=1, answer_losses=1, calls=1),
    "two crashes, a call, the row swept": Bounds(crashes=2, sweeps=1, calls=1),
    "two crashes, a lost link, a lost answer": Bounds(crashes=2, link_losses=1, answer_losses=1),
    "a verdict on one that lives, a lost answer, a call": Bounds(verdicts=1, answer_losses=1, calls=1),
    "a verdict on one that lives, the row swept, a call": Bounds(verdicts=1, sweeps=1, calls=1),
    "a verdict on one that lives, a crash, a call": Bounds(verdicts=1, crashes=1, calls=1),
    "a move after one that was taken back, a call": Bounds(moves=1, calls=1),
    "two moves after one that was taken back, a lost answer": Bounds(moves=2, answer_losses=1),
    "a move after one that was taken back, a lost link": Bounds(moves=1, link_losses=1),
    "a move after one that was taken back, a crash": Bounds(moves=1, crashes=1),
    "a crash of the caller, a lost link": Bounds(caller_crashes=1, link_losses=1, calls=1),
    "another target, a lost link": Bounds(retargets=1, link_losses=1, calls=1),
    "a lost link, the directory fails twice, a call": Bounds(link_losses=1, failures=2, calls=1),
    "a crash, a lost link, the row swept, a call": Bounds(crashes=1, link_losses=1, sweeps=1, calls=1),
}
"""In minutes, by `python -m tests.exploration.handover`."""
