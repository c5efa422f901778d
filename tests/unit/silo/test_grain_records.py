"""What silos say of one grain, joined into its record; over the wire and for the eye. R-216, R-217."""

from __future__ import annotations

import pytest

from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.grain_records import (
    TRANSITIONS_SHOWN_MAX,
    ActivationReport,
    DeactivationReport,
    DeactivationStatus,
    GrainReport,
    GrainState,
    SearchReport,
    Transition,
    deactivation_outcome,
    recorded,
    summary,
)
from silo.management_wire import (
    deactivate_from_wire,
    deactivate_to_wire,
    deactivation_from_wire,
    deactivation_to_wire,
    grain_asked_from_wire,
    grain_asked_to_wire,
    grain_report_from_wire,
    grain_report_to_wire,
)
from silo.wire.v1 import management_pb2

ROOM = GrainId("room", "lob/by")
A, B, C = (SiloAddress(f"{name}:7000", 7) for name in "abc")
NAMES = {A: "a", B: "b", C: "c"}
OPEN = ActivationReport("id-1", 4, GrainState.ACTIVE, 2, 1, None, 12.5)


def entry(silo: SiloAddress) -> Entry:
    return Entry(ROOM, silo, "id-1", 4)


REPORTS = [
    GrainReport(A),
    GrainReport(A, entry(B), "", OPEN, SearchReport(3, 7, 0.25), (Transition("lost", "it is dead", 1, 3.0),)),
    GrainReport(
        B,
        None,
        "the directory is away",
        ActivationReport("id", 0, GrainState.STARTING, 5, 0, 0.5, None, "c"),
        SearchReport(0, 0, None),
        (Transition("served", "by a", 1, None), Transition("not placed", "no room", 30, 1.5)),
    ),
]


@pytest.mark.parametrize("report", REPORTS)
def test_a_report_goes_over_the_wire_whole(report: GrainReport) -> None:
    assert grain_report_from_wire(ROOM, grain_report_to_wire(report)) == report


def test_what_is_asked_goes_over_the_wire_whole() -> None:
    assert grain_asked_from_wire(grain_asked_to_wire(ROOM, look_up=True)) == (ROOM, True)
    assert deactivate_from_wire(deactivate_to_wire(ROOM, 2.5)) == (ROOM, 2.5)
    for status in DeactivationStatus:
        told = DeactivationReport(A, status, "since")
        assert deactivation_from_wire(deactivation_to_wire(told)) == told


def test_a_state_that_only_a_newer_release_knows_is_unknown() -> None:
    reply = management_pb2.GrainReply.FromString(grain_report_to_wire(REPORTS[1]))
    reply.activation.state = "dreaming"
    told = grain_report_from_wire(ROOM, reply.SerializeToString()).activation
    assert told is not None
    assert told.state is GrainState.UNKNOWN


def test_R217_a_grain_that_is_active_is_told_of_by_its_silo() -> None:
    record = recorded(ROOM, [GrainReport(A, entry(B)), GrainReport(B, None, "", OPEN)], NAMES, {C})
    assert (record.state, record.silo, record.epoch) == (GrainState.ACTIVE, "b", 4)
    assert (record.queued_calls, record.running_calls, record.idle_s, record.reachable_s) == (2, 1, None, 12.5)
    assert (record.error, record.unanswered) == ("", ("c",))


def test_R217_a_grain_that_cannot_be_placed_shows_tries_the_next_one_and_the_last_error() -> None:
    tried = (Transition("not placed", "no silo may host it", 9, 0.4),)
    record = recorded(
        ROOM,
        [
            GrainReport(A, None, "", None, SearchReport(3, 9, 0.6), tried),
            GrainReport(B, None, "", None, SearchReport(1, 2, 0.2)),
        ],
        NAMES,
        (),
    )
    assert (record.state, record.silo, record.waiting_calls) == (GrainState.WAITING, None, 4)
    assert (record.failed_tries, record.retry_in_s) == (9, 0.2)
    assert record.error == "no silo may host it"
    shown = summary(record)
    assert shown["tries"] == "9 failed, the next one in 0.20 s"
    assert shown["transitions"] == [
        {"ago": "0.4 s", "state": "not placed (9 times)", "seen by": "a", "why": "no silo may host it"}
    ]


def test_R216_what_silos_saw_is_told_in_its_order_and_the_error_goes_with_success() -> None:
    before = (
        Transition("served", "by a", 1, None),
        Transition("lost", "a is dead", 1, 9.0),
        Transition("not placed", "no silo", 5, 4.0),
        Transition("found", "on c", 1, 2.0),
    )
    active = GrainReport(C, None, "", OPEN, None, (Transition("active", "under epoch 4", 1, 1.9),))
    record = recorded(ROOM, [GrainReport(B, entry(C), "", None, None, before), active], NAMES, ())
    assert [(each.state, each.silo) for each in record.transitions] == [
        ("served", "b"),
        ("lost", "b"),
        ("not placed", "b"),
        ("found", "b"),
        ("active", "c"),
    ]
    assert record.error == ""


@pytest.mark.parametrize(
    ("last", "error"),
    [("given up", "no silo"), ("found", ""), ("ordered to deactivate", ""), ("deactivated", ""), ("active", "")],
)
def test_R216_an_error_stands_until_something_better_follows(last: str, error: str) -> None:
    seen = (Transition("not placed", "no silo", 5, 4.0), Transition(last, "", 1, 1.0))
    assert recorded(ROOM, [GrainReport(A, transitions=seen)], NAMES, ()).error == error


@pytest.mark.parametrize(
    ("reports", "unanswered", "state"),
    [
        ([GrainReport(A)], (), GrainState.NOT_ACTIVE),
        ([GrainReport(A, entry(B))], {B}, GrainState.UNKNOWN),
        ([GrainReport(A, None, "the directory is away")], (), GrainState.UNKNOWN),
        ([GrainReport(A, entry(SiloAddress("z:1", 1)))], (), GrainState.LOST),
        ([GrainReport(A, None, "", None, SearchReport(1, 0, None))], (), GrainState.TRYING),
        ([GrainReport(A, None, "", None, SearchReport(1, 1, 0.1))], (), GrainState.WAITING),
    ],
)
def test_R217_where_a_grain_stands_that_is_nowhere_active(
    reports: list[GrainReport], unanswered: set[SiloAddress], state: GrainState
) -> None:
    assert recorded(ROOM, reports, NAMES, unanswered).state is state


def test_the_newest_transitions_are_shown_of_many() -> None:
    seen = tuple(Transition("found", str(number), 1, 100.0 - number) for number in range(20))
    record = recorded(ROOM, [GrainReport(A, transitions=seen), GrainReport(B, transitions=seen)], NAMES, ())
    assert len(record.transitions) == TRANSITIONS_SHOWN_MAX
    assert {each.why for each in record.transitions} == {str(number) for number in range(10, 20)}


@pytest.mark.parametrize(
    ("statuses", "whole"),
    [
        (["not_active", "not_active"], "not_active"),
        (["not_active", "deactivated"], "deactivated"),
        (["deactivated", "under_way"], "under_way"),
        (["moved", "not_active"], "under_way"),
    ],
)
def test_R213_what_is_yet_to_be_done_counts_before_what_is_done(statuses: list[str], whole: str) -> None:
    reports = [DeactivationReport(A, DeactivationStatus(status), "a turn runs") for status in statuses]
    outcome = deactivation_outcome(ROOM, reports, ["c"])
    assert outcome.status == whole
    assert "no answer from c" in str(outcome)
