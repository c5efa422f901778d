"""The samples' account of calls notices a call that was lost, and one that ran twice."""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samples.rolling.ledger import Finding, Ledger
from samples.rolling.load import Load, Tally
from samples.rolling.meter import Meter, Reading
from silo import Client, NotExecuted, OutcomeUnknown


class MeterOfThisTest:
    """What a meter is, without a cluster."""

    def __init__(self) -> None:
        self.turns = self.last = 0

    def run(self, number: int) -> Reading:
        before, self.last = self.last, number
        self.turns += 1
        return Reading(self.turns, before, 0, "silo-1")


def test_calls_that_ran_once_are_as_expected() -> None:
    meter, ledger = MeterOfThisTest(), Ledger()
    assert [ledger.answered(number, meter.run(number)) for number in (1, 2, 3)] == [Finding.AS_EXPECTED] * 3


def test_a_call_that_ran_twice_is_noticed() -> None:
    meter, ledger = MeterOfThisTest(), Ledger()
    ledger.answered(1, meter.run(1))
    meter.run(1)
    assert ledger.answered(2, meter.run(2)) is Finding.REPEATED


def test_a_call_that_ran_twice_before_its_answer_is_noticed() -> None:
    meter, ledger = MeterOfThisTest(), Ledger()
    meter.run(1)
    assert ledger.answered(1, meter.run(1)) is Finding.REPEATED


def test_an_answered_call_that_left_no_trace_is_lost() -> None:
    meter, ledger = MeterOfThisTest(), Ledger()
    ledger.answered(1, meter.run(1))
    ledger.answered(2, meter.run(2))
    meter.turns, meter.last = 1, 1
    assert ledger.answered(3, meter.run(3)) is Finding.LOST


def test_a_grain_that_began_again_is_lost_unless_a_crash_excuses_it() -> None:
    for excused, finding in ((False, Finding.LOST), (True, Finding.BEGAN_AGAIN)):
        meter, ledger = MeterOfThisTest(), Ledger()
        ledger.answered(1, meter.run(1))
        assert ledger.answered(2, MeterOfThisTest().run(2), may_begin_again=excused) is finding


@given(st.lists(st.sampled_from(["answered", "ran unheard", "did not run", "ran late"]), max_size=30))
def test_calls_of_unknown_outcome_may_have_run_or_not_and_accuse_nobody(story: list[str]) -> None:
    meter, ledger = MeterOfThisTest(), Ledger()
    late: list[int] = []
    for number, what in enumerate([*story, "answered"], start=1):
        match what:
            case "answered":
                assert ledger.answered(number, meter.run(number)) is Finding.AS_EXPECTED
                for each in late:
                    meter.run(each)
                late.clear()
            case "ran unheard":
                meter.run(number)
                ledger.unknown(number)
            case "ran late":
                late.append(number)
                ledger.unknown(number)
            case _:
                ledger.unknown(number)


def test_an_unknown_call_excuses_one_turn_and_not_two() -> None:
    meter, ledger = MeterOfThisTest(), Ledger()
    ledger.unknown(1)
    meter.run(1)
    meter.run(1)
    assert ledger.answered(2, meter.run(2)) is Finding.REPEATED


class ClientOfThisTest:
    """Gives out meters of which one fails at its third call."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def grain(self, kind: type[Meter], key: str) -> Any:
        meter, error = MeterOfThisTest(), self.error if key == "0" else None

        class Reference:
            async def read(self, number: int) -> Reading:
                await asyncio.sleep(0)
                if error is not None and number == 3:
                    raise error
                return meter.run(number)

        return Reference()


@pytest.mark.parametrize("error", [NotExecuted("refused"), OutcomeUnknown("gone")])
async def test_a_failed_call_is_lost_unless_a_silo_was_killed(error: Exception) -> None:
    for killed in (False, True):
        tally = Tally()
        client = cast("Client", ClientOfThisTest(error))
        load = Load(client, tally, grains=3, calls_per_s=3000, rng=random.Random(1))
        if killed:
            load.crashes("silo-2")
        async with load.running():
            await load.round()
            await load.round()
        assert tally.lost == (0 if killed else 1), tally.problems
        assert tally.unknown + tally.refused == (1 if killed else 0)
        assert tally.made == tally.answered + 1
