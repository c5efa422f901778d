"""Trails: calls that come behind one that was sent on take its way, for as long as that may be needed."""

from __future__ import annotations

import pytest

from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.routing import trails as trails_module
from silo.routing.call import Answer, Call
from silo.routing.resolution import Destination
from silo.routing.trails import FOLLOWED_S, Trails

A, B = SiloAddress("a:1", 1), SiloAddress("b:1", 2)
GRAIN = GrainId("room", "lobby")
THERE = Destination(Entry(GRAIN, B, "activation", 3))


def ignore(call: Call, answer: Answer) -> None:
    del call, answer


def call_of(caller: str = "client", epoch: int = 2, grain: GrainId = GRAIN) -> Call:
    return Call(1, grain, "enter", caller, None, ignore, origin=A, sender_epoch=epoch)


def test_calls_of_the_same_caller_by_the_same_road_follow_and_no_others_do() -> None:
    trails = Trails()
    assert trails.of(call_of(), 0.0) is None
    trails.note(call_of(), THERE, 0.0)
    assert trails.of(call_of(), 0.0) == THERE
    assert trails.of(call_of(epoch=1), 0.0) == THERE
    assert trails.of(call_of(epoch=3), 0.0) is None  # its caller's silo has heard of the newer entry
    assert trails.of(call_of("another"), 0.0) is None
    assert trails.of(call_of(grain=GrainId("room", "hall")), 0.0) is None


def test_a_trail_is_followed_for_a_time_from_the_last_call_on_it() -> None:
    trails = Trails()
    trails.note(call_of(), THERE, 0.0)
    trails.note(call_of(epoch=1), THERE, 1.0)
    assert trails.of(call_of(), FOLLOWED_S) == THERE
    assert trails.of(call_of(), FOLLOWED_S + 1.0) is None
    assert len(trails) == 0


def test_trails_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trails_module, "TRAILS_MAX", 3)
    trails = Trails()
    for number in range(5):
        trails.note(call_of(f"client-{number}"), THERE, 0.0)
    assert len(trails) == 3
    assert trails.of(call_of("client-1"), 0.0) is None
    assert trails.of(call_of("client-4"), 0.0) == THERE
