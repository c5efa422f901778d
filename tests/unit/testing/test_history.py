"""The history checker finds each planted violation, and nothing in a history that keeps the promises."""

from __future__ import annotations

import pytest

from silo.testing.history import Placed, bijection, check
from silo.testing.witness import Ended, Event, ListWitness, What


class Story:
    """Tells events in words, a millisecond apart."""

    def __init__(self) -> None:
        self.now = 0.0
        self.witness = ListWitness(self._tick)
        self._numbers: dict[tuple[str, str], int] = {}

    def _tick(self) -> float:
        self.now += 0.001
        return self.now

    @property
    def events(self) -> list[Event]:
        return self.witness.events

    def opened(self, activation: str = "a1", silo: str = "s1", value: int = 0, because: str = "call") -> None:
        self.witness(What.OPENED, grain="g", activation=activation, silo=silo, value=value, because=because)

    def closed(self, because: str, activation: str = "a1", silo: str = "s1") -> None:
        self.witness(What.CLOSED, grain="g", activation=activation, silo=silo, because=because)

    def sent(self, call: str, caller: str = "c", grain: str = "g", silo: str = "") -> None:
        number = self._numbers[caller, grain] = self._numbers.get((caller, grain), 0) + 1
        self.witness(
            What.CALL_SENT,
            call=call,
            caller=caller,
            grain=grain,
            silo=silo,
            method="increment",
            number=number,
            deadline_s=5.0,
        )

    def started(self, call: str, activation: str = "a1", silo: str = "s1", interleaves: bool = False) -> None:
        self.witness(What.TURN_STARTED, grain="g", activation=activation, silo=silo, call=call, interleaves=interleaves)

    def finished(
        self, call: str, value: int, activation: str = "a1", silo: str = "s1", interleaves: bool = False
    ) -> None:
        self.witness(
            What.TURN_ENDED,
            grain="g",
            activation=activation,
            silo=silo,
            call=call,
            value=value,
            interleaves=interleaves,
        )

    def ended(self, call: str, value: int | None = None, outcome: str = Ended.VALUE, because: str = "") -> None:
        self.witness(What.CALL_ENDED, call=call, outcome=outcome, value=value, because=because)

    def turn(self, call: str, value: int, activation: str = "a1", silo: str = "s1") -> None:
        self.sent(call)
        self.started(call, activation, silo)
        self.finished(call, value, activation, silo)
        self.ended(call, value)

    def violations(self, settle_s: float = 0.0) -> list[str]:
        return [violation.rule for violation in check(self.events, settle_s)]


@pytest.fixture
def story() -> Story:
    return Story()


def test_a_history_that_keeps_the_promises_has_no_violation(story: Story) -> None:
    story.opened()
    story.turn("1", 1)
    story.turn("2", 2)
    story.closed("migrating")
    story.opened("a2", "s2", 2, "migration")
    story.turn("3", 3, "a2", "s2")
    story.closed("idle", "a2", "s2")
    story.opened("a3", "s1", 0, "call")
    story.turn("4", 1, "a3", "s1")
    assert check(story.events) == []


def test_a_turn_of_an_activation_that_was_followed_is_found(story: Story) -> None:
    story.opened()
    story.turn("1", 1)
    story.opened("a2", "s2", 1, "migration")
    story.sent("2")
    story.started("2", "a1", "s1")
    story.finished("2", 2, "a1", "s1")
    story.ended("2", 2)
    assert "one activation" in story.violations()


def test_a_turn_of_a_frozen_silo_that_wakes_is_found_though_it_was_declared_dead(story: Story) -> None:
    story.opened()
    story.witness(What.SILO_LOST, silo="s1")
    story.opened("a2", "s2")
    story.sent("1")
    story.started("1", "a1", "s1")
    assert "one activation" in story.violations()


def test_an_activation_that_was_never_witnessed_to_open_opens_with_its_first_turn(story: Story) -> None:
    story.turn("1", 1, "a1")
    story.turn("2", 2, "a2", "s2")
    story.turn("3", 3, "a1")
    assert "one activation" in story.violations()


def test_an_aborted_migration_opens_the_same_activation_again(story: Story) -> None:
    story.opened()
    story.turn("1", 1)
    story.closed("migrating")
    story.opened(value=1, because="migration_aborted")
    story.turn("2", 2)
    assert check(story.events) == []


def test_an_activation_is_taken_back_from_a_target_that_died_once_it_had_opened(story: Story) -> None:
    story.opened()
    story.turn("1", 1)
    story.closed("migrating")
    story.opened("a2", "s2", 1, "migration")
    story.witness(What.SILO_LOST, silo="s2", because="killed")
    story.opened(value=1, because="migration_aborted")
    story.turn("2", 2)
    assert story.violations() == []


def test_an_abort_after_the_target_opened_is_found(story: Story) -> None:
    story.opened()
    story.closed("migrating")
    story.opened("a2", "s2", because="migration")
    story.opened(because="migration_aborted")
    assert story.violations() == ["one activation"]


def test_overlapping_turns_are_found_within_and_across_activations(story: Story) -> None:
    story.opened()
    story.sent("1")
    story.sent("2")
    story.started("1")
    story.started("2")
    story.finished("1", 1)
    story.finished("2", 2)
    story.ended("1", 1)
    story.ended("2", 2)
    assert story.violations() == ["one turn at a time"]
    across = Story()
    across.sent("1")
    across.started("1")
    across.sent("2", "other")
    across.started("2", "a2", "s2")
    across.finished("1", 1)
    across.finished("2", 2, "a2", "s2")
    across.ended("1", 1)
    across.ended("2", 2)
    assert "one turn at a time" in across.violations()


def test_reads_may_run_beside_each_other_and_not_beside_a_write(story: Story) -> None:
    story.opened()
    for call in "12":
        story.sent(call)
        story.started(call, interleaves=True)
    for call in "12":
        story.finished(call, 0, interleaves=True)
        story.ended(call, 0)
    assert check(story.events) == []
    story.sent("3")
    story.started("3", interleaves=True)
    story.sent("4")
    story.started("4")
    story.finished("3", 0, interleaves=True)
    story.finished("4", 1)
    story.ended("3", 0)
    story.ended("4", 1)
    assert story.violations() == ["one turn at a time"]


def test_a_turn_that_may_run_beside_any_other_may_not_run_in_two_activations(story: Story) -> None:
    story.opened()
    story.sent("1")
    story.sent("2", caller="d")
    story.started("1")
    story.witness(What.TURN_STARTED, grain="g", activation="a1", silo="s1", call="2", interleaves=True, anywhere=True)
    story.finished("2", 0, interleaves=True)
    story.ended("2", 0)
    assert not [violation for violation in check(story.events) if violation.rule == "one turn at a time"]
    story.witness(What.TURN_STARTED, grain="g", activation="a2", silo="s2", call="3", interleaves=True, anywhere=True)
    assert "one turn at a time" in {violation.rule for violation in check(story.events)}


def test_a_one_way_call_ends_when_it_is_sent(story: Story) -> None:
    story.opened()
    story.sent("1")
    story.ended("1", outcome=Ended.SENT)
    story.started("1")
    story.finished("1", 1)
    assert check(story.events) == []


def test_an_error_that_the_application_can_bring_about_is_excused(story: Story) -> None:
    story.sent("1")
    story.ended("1", outcome=Ended.NOT_EXECUTED, because="ActivationFailed('it says no')")
    assert [violation.rule for violation in check(story.events)] == ["call answered"]
    assert check(story.events, excused=("ActivationFailed",)) == []


def test_what_a_killed_silo_was_doing_overlaps_with_nothing(story: Story) -> None:
    story.opened()
    story.sent("1")
    story.started("1")
    story.witness(What.FAULT, because="kill s1")
    story.witness(What.SILO_LOST, silo="s1")
    story.ended("1", outcome=Ended.OUTCOME_UNKNOWN)
    story.opened("a2", "s2")
    story.turn("2", 1, "a2", "s2")
    assert check(story.events) == []


def test_state_that_a_migration_loses_is_found(story: Story) -> None:
    story.opened()
    story.turn("1", 1)
    story.closed("migrating")
    story.opened("a2", "s2", 0, "migration")
    assert story.violations() == ["state kept"]


def test_a_new_activation_without_state_is_found_where_nothing_took_the_old_one(story: Story) -> None:
    story.opened()
    story.turn("1", 1)
    story.opened("a2", "s2", 0, "call")
    assert story.violations() == ["state kept", "stays active"]


@pytest.mark.parametrize(("outcome", "value"), [(Ended.OUTCOME_UNKNOWN, None), (Ended.VALUE, 1)])
def test_a_turn_that_a_move_has_left_behind_counts_no_more_unless_it_is_answered(
    story: Story, outcome: str, value: int | None
) -> None:
    story.opened()
    story.sent("1")
    story.started("1")
    story.closed("migrating")
    story.opened("a2", "s2", 0, "migration")
    story.turn("2", 1, "a2", "s2")
    story.finished("1", 1)
    story.ended("1", value, outcome)
    assert ("state kept" in story.violations()) == (outcome == Ended.VALUE)


def test_state_may_die_with_the_target_of_a_move_and_with_no_other(story: Story) -> None:
    story.opened()
    story.turn("1", 1)
    story.closed("migrating")
    story.witness(What.SILO_LOST, silo="s2")
    story.opened("a3", "s3", 0, "call")
    assert check(story.events) == []
    other = Story()
    other.witness(What.SILO_LOST, silo="s2")
    other.opened()
    other.turn("1", 1)
    other.closed("migrating")
    other.opened("a3", "s3", 0, "call")
    assert other.violations() == ["state kept", "stays active"]


def test_a_grain_that_was_active_and_is_made_anew_for_a_call_is_found_though_it_had_no_state_to_lose(
    story: Story,
) -> None:
    story.opened()
    story.opened("a2", "s2", 0, "call")
    assert story.violations() == ["stays active"]
    for because in ("idle", "application", "shutting_down"):
        closed = Story()
        closed.opened()
        closed.closed(because)
        closed.opened("a2", "s2", 0, "call")
        assert check(closed.events) == []
    died = Story()
    died.opened()
    died.witness(What.SILO_LOST, silo="s1")
    died.opened("a2", "s2", 0, "call")
    assert check(died.events) == []


def test_an_increment_that_vanishes_or_counts_twice_is_found(story: Story) -> None:
    story.opened()
    story.turn("1", 1)
    story.turn("2", 1)
    assert story.violations() == ["state kept"]
    twice = Story()
    twice.opened()
    twice.turn("1", 2)
    assert twice.violations() == ["state kept"]


def test_a_call_that_runs_twice_is_found(story: Story) -> None:
    story.opened()
    story.turn("1", 1)
    story.started("1")
    story.finished("1", 2)
    assert story.violations() == ["executed once"]


def test_a_call_said_not_to_run_that_runs_later_is_found(story: Story) -> None:
    story.witness(What.FAULT, because="reset")
    story.opened()
    story.sent("1")
    story.ended("1", outcome=Ended.NOT_EXECUTED)
    story.started("1")
    story.finished("1", 1)
    assert story.violations() == ["executed once"]


def test_an_answer_without_a_turn_or_of_another_value_is_found(story: Story) -> None:
    story.opened()
    story.sent("1")
    story.ended("1", 1)
    story.sent("2")
    story.started("2")
    story.finished("2", 1)
    story.ended("2", 7)
    assert story.violations() == ["executed once", "executed once"]


def test_an_answer_before_the_turn_ends_is_found(story: Story) -> None:
    story.opened()
    story.sent("1")
    story.started("1")
    story.ended("1", 1)
    story.finished("1", 1)
    assert story.violations() == ["executed once"]


def test_a_call_that_never_ends_or_ends_twice_or_was_never_sent_is_found(story: Story) -> None:
    story.opened()
    story.sent("1")
    assert story.violations() == ["call ended"]
    story.started("1")
    story.finished("1", 1)
    story.ended("1", 1)
    story.ended("1", 1)
    assert story.violations() == ["call ended"]
    ghost = Story()
    ghost.started("1")
    ghost.finished("1", 1)
    assert ghost.violations() == ["call ended"]


def test_a_caller_that_was_lost_need_not_learn_the_end(story: Story) -> None:
    story.sent("1", caller="c")
    story.witness(What.CALLER_LOST, caller="c")
    story.sent("2", caller="h", silo="s3")
    story.witness(What.SILO_LOST, silo="s3")
    assert check(story.events) == []


def test_a_call_that_ends_too_late_is_found_and_time_frozen_does_not_count(story: Story) -> None:
    story.witness(What.FAULT, because="everything")
    story.sent("1")
    story.now += 6.1
    story.ended("1", outcome=Ended.OUTCOME_UNKNOWN)
    assert story.violations() == ["call ended"]
    frozen = Story()
    frozen.witness(What.FAULT, because="pause c")
    frozen.sent("1")
    frozen.witness(What.PAUSED, silo="c")
    frozen.now += 20
    frozen.witness(What.RESUMED, silo="c")
    frozen.ended("1", outcome=Ended.OUTCOME_UNKNOWN)
    assert check(frozen.events) == []


def test_a_call_without_an_answer_is_found_where_no_fault_is_near(story: Story) -> None:
    story.witness(What.FAULT, because="cut")
    story.witness(What.HEALED)
    story.now += 10
    story.sent("1")
    story.ended("1", outcome=Ended.NOT_EXECUTED)
    assert story.violations(settle_s=5.0) == ["call answered"]
    assert story.violations(settle_s=20.0) == []


def test_a_call_in_a_hurry_may_run_out_of_time_and_a_patient_one_may_not(story: Story) -> None:
    for call, deadline_s in (("1", 5.0), ("2", 15.0)):
        story.witness(What.CALL_SENT, call=call, caller="c", grain="g", deadline_s=deadline_s)
        story.now += deadline_s
        story.ended(call, outcome=Ended.OUTCOME_UNKNOWN, because="CallTimeout()")
    assert [violation.subject for violation in check(story.events)] == ["2"]


def test_calls_that_overtake_each_other_are_found(story: Story) -> None:
    story.opened()
    for call in "12":
        story.sent(call)
    for value, call in enumerate("21", start=1):
        story.started(call)
        story.finished(call, value)
        story.ended(call, value)
    assert story.violations() == ["order kept"]


def test_a_call_that_was_given_up_before_it_starts_keeps_no_place(story: Story) -> None:
    story.opened()
    for call in "12":
        story.sent(call)
    story.ended("1", outcome=Ended.CANCELLED)
    story.started("2")
    story.finished("2", 1)
    story.ended("2", 1)
    story.started("1")
    story.finished("1", 2)
    assert check(story.events) == []


def test_callers_and_reads_may_overtake_and_so_may_repeats_after_a_fault(story: Story) -> None:
    story.opened()
    story.sent("1", "c")
    story.sent("2", "d")
    for value, call in enumerate("21", start=1):
        story.started(call)
        story.finished(call, value)
        story.ended(call, value)
    assert check(story.events) == []
    disturbed = Story()
    disturbed.opened()
    for call in "12":
        disturbed.sent(call)
    disturbed.witness(What.FAULT, because="reset")
    disturbed.witness(What.HEALED)
    for value, call in enumerate("21", start=1):
        disturbed.started(call)
        disturbed.finished(call, value)
        disturbed.ended(call, value)
    assert check(disturbed.events) == []


def test_state_that_is_put_in_and_was_never_taken_out_is_found(story: Story) -> None:
    story.witness(What.DEHYDRATED, grain="g", value=3)
    story.witness(What.REHYDRATED, grain="g", value=3)
    assert check(story.events) == []
    story.witness(What.REHYDRATED, grain="g", value=4)
    assert story.violations() == ["state kept"]


def frozen_in_a_turn(story: Story, *, starts: int, answered: bool) -> list[str]:
    """A silo is frozen for longer than its lease, and tells of turns when it goes on."""
    story.opened()
    for number in range(starts):
        story.sent(f"old-{number}", f"c{number}")
    story.witness(What.FAULT, because="freeze s1")
    story.witness(What.PAUSED, silo="s1")
    story.witness(What.SILO_LOST, silo="s1")
    story.opened("a2", "s2")
    story.turn("new", 1, "a2", "s2")
    story.witness(What.RESUMED, silo="s1")
    for number in range(starts):
        story.started(f"old-{number}", "a1", "s1")
        story.finished(f"old-{number}", number + 1, "a1", "s1")
        if answered:
            story.ended(f"old-{number}", number + 1)
        else:
            story.ended(f"old-{number}", outcome=Ended.OUTCOME_UNKNOWN)
    return story.violations()


def test_the_one_turn_that_was_starting_when_its_silo_was_frozen_is_no_second_one_if_it_does_not_count() -> None:
    assert frozen_in_a_turn(Story(), starts=1, answered=False) == []
    assert "one activation" in frozen_in_a_turn(Story(), starts=1, answered=True)
    assert "one activation" in frozen_in_a_turn(Story(), starts=2, answered=False)


def a_turn_that_outlives_its_activation(story: Story, *, outcome: Ended) -> list[str]:
    """A silo is lost while a turn runs; the grain opens elsewhere; then the turn ends."""
    story.witness(What.FAULT, because="freeze s1")
    story.opened()
    story.sent("1")
    story.started("1")
    story.witness(What.SILO_LOST, silo="s1")
    story.opened("a2", "s2")
    story.finished("1", 1)
    story.ended("1", 1 if outcome is Ended.VALUE else None, outcome)
    return story.violations()


def test_an_answer_of_an_activation_that_was_followed_is_found() -> None:
    assert a_turn_that_outlives_its_activation(Story(), outcome=Ended.OUTCOME_UNKNOWN) == []
    assert a_turn_that_outlives_its_activation(Story(), outcome=Ended.VALUE) == ["one activation"]


def test_a_call_that_an_activation_makes_after_it_was_followed_is_found_where_it_runs(story: Story) -> None:
    story.witness(What.FAULT, because="freeze s1")
    story.opened()
    story.witness(What.SILO_LOST, silo="s1")
    story.opened("a2", "s2")
    story.witness(What.CALL_SENT, call="n", caller="g", activation="a1", silo="s1", grain="h", number=1, deadline_s=5.0)
    assert story.violations() == []
    story.witness(What.TURN_STARTED, grain="h", activation="b1", silo="s2", call="n")
    assert story.violations() == ["one activation"]


def test_an_activation_that_a_lost_silo_opens_follows_nothing(story: Story) -> None:
    story.opened()
    story.turn("1", 1)
    story.witness(What.SILO_LOST, silo="s1")
    story.opened("a2", "s2")
    story.opened("a3", "s1", 7)
    story.turn("2", 1, "a2", "s2")
    assert check(story.events) == []


def test_rows_and_activations_match_one_to_one() -> None:
    here, there = Placed("g", "s1", "a1", 4), Placed("h", "s2", "b1", 5)
    assert bijection([here, there], [there, here]) == []
    assert [violation.subject for violation in bijection([here, there], [here])] == ["h"]
    assert [violation.subject for violation in bijection([here], [here, there])] == ["h"]
    newer = Placed("g", "s2", "a2", 6)
    assert len(bijection([newer], [here, newer])) == 2
