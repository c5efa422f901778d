"""The load as one silo sees it: reports, what it placed since, and what age does to both."""

from __future__ import annotations

import logging

import pytest

from silo.directory.membership import SiloStatus
from silo.placement.load import STALE_AFTER_PERIODS, AttachedLoads, LoadView
from tests.unit.placement.world import Silo, address, cluster, row, view_of

A, B, C = address(0), address(1), address(2)


def test_a_choice_counts_once_for_each_silo_that_places() -> None:
    load = LoadView()
    load.period([A, B, C])
    load.report(A, 5)
    load.placed(A)
    assert load.estimate(A) == 5 + 3
    assert load.known(A) == 6


def test_R315_a_report_clears_what_was_pending_for_its_silo_alone() -> None:
    load = LoadView()
    load.period([A, B])
    load.placed(A)
    load.placed(B)
    load.report(A, 1)
    assert (load.estimate(A), load.estimate(B)) == (1, 2)


def test_R318_an_unknown_silo_counts_as_empty() -> None:
    assert LoadView().estimate(A) == 0


def test_R313_a_report_counts_for_a_few_periods_more() -> None:
    load = LoadView()
    load.report(A, 90)
    for _ in range(STALE_AFTER_PERIODS):
        load.period([A, B])
        load.report(B, 10)
    assert load.estimate(A) == 90


def test_S039_a_silo_whose_reports_stopped_counts_as_average() -> None:
    load = LoadView()
    load.report(A, 90)
    for _ in range(STALE_AFTER_PERIODS + 1):
        load.period([A, B, C])
        load.report(B, 10)
        load.report(C, 20)
    load.placed(A)
    assert load.known(A) == 15 + 1
    load.period([A, B, C])
    assert load.known(A) == 15


@pytest.mark.parametrize("nonsense", [-1, float("nan"), float("inf"), 2**60])
def test_S039_an_impossible_report_is_ignored(nonsense: float) -> None:
    load = LoadView()
    load.report(A, 7)
    load.placed(A)
    load.report(A, nonsense)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - what a broken peer may send
    assert load.known(A) == 8


def test_R375_a_silo_that_leaves_is_forgotten_with_all_that_was_pending_and_rejoins_cold() -> None:
    silo = Silo(A, cluster(2))
    silo.reported[B] = 40
    loads = AttachedLoads()
    loads.attach(silo)
    load = loads.at(A)
    assert load is not None
    load.placed(B)
    assert load.estimate(B) == 42

    silo.current = view_of([row(0), row(1, status=SiloStatus.LEAVING)], version=2)
    silo.tick()
    assert load.estimate(B) == 0


def test_R377_silence_of_all_peers_is_warned_of_once_per_window(caplog: pytest.LogCaptureFixture) -> None:
    silo = Silo(A, cluster(3))
    AttachedLoads().attach(silo)
    with caplog.at_level(logging.WARNING):
        for _ in range(STALE_AFTER_PERIODS + 3):
            silo.tick()
        assert len(caplog.records) == 2
        silo.hear(B, 3)
        silo.tick()
    assert len(caplog.records) == 2


def test_a_lone_silo_warns_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    silo = Silo(A, cluster(1))
    AttachedLoads().attach(silo)
    for _ in range(20):
        silo.tick()
    assert not caplog.records


def test_two_silos_of_one_process_keep_their_own_view_of_the_load() -> None:
    loads = AttachedLoads()
    end_a = loads.attach(Silo(A, cluster(2)))
    loads.attach(Silo(B, cluster(2)))
    at_a, at_b = loads.at(A), loads.at(B)
    assert at_a is not None
    assert at_b is not None
    at_a.placed(B)
    assert at_b.estimate(B) == 0
    end_a()
    assert loads.at(A) is None
    assert loads.at(B) is at_b


def test_R322_a_teardown_leaves_nothing_subscribed_and_so_does_a_start_that_fails_half_way() -> None:
    class Failing(Silo):
        def self_load(self) -> int:
            raise RuntimeError("no catalog yet")

    silo, failing = Silo(A, cluster(2)), Failing(B, cluster(2))
    loads = AttachedLoads()
    end = loads.attach(silo)
    assert not silo.is_quiet()
    end()
    assert silo.is_quiet()
    with pytest.raises(RuntimeError, match="no catalog yet"):
        loads.attach(failing)
    assert failing.is_quiet()
    assert loads.at(B) is None
