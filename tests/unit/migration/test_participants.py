"""What participants hand over arrives, in order and whole, or the move does not happen."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest

from silo.directory.addresses import GrainId
from silo.directory.errors import InvalidGrain
from silo.grain import Grain, grain, soft_state
from silo.instances import parts_of
from silo.kinds import kind_of
from silo.migration.lifecycle import Departure
from silo.migration.participants import (
    DehydrateContext,
    DehydrationFailed,
    Participant,
    ParticipantSet,
    RehydrateContext,
    RehydrationFailed,
)
from silo.migration.payload import Dehydrated, Payload, PayloadRejected, dehydrate, rehydrate


class PlainCodec:
    """Values as msgpack, nothing else."""

    def encode(self, value: object) -> tuple[bytes, int]:
        return msgspec.msgpack.encode(value), 1

    def decode(self, payload: bytes, codec: int) -> object:
        return msgspec.msgpack.decode(payload)


CODEC = PlainCodec()
EVENTS: list[str] = []


@pytest.fixture(autouse=True)
def no_events() -> Iterator[None]:
    EVENTS.clear()
    yield
    EVENTS.clear()


class Cart:
    """A participant that keeps one list."""

    def __init__(self, name: str = "cart") -> None:
        self.name = name
        self.items: list[str] = []

    def on_dehydrate(self, context: DehydrateContext) -> None:
        EVENTS.append(f"out {self.name}")
        context["items"] = self.items

    def on_rehydrate(self, context: RehydrateContext) -> None:
        EVENTS.append(f"in {self.name}")
        self.items = context["items"]


@grain(kind="shop")
class Shop(Grain):
    visits: int = soft_state(default=0)
    labels: list[str] = soft_state(default_factory=list)

    def __init__(self) -> None:
        self.lost = "default"
        self.kept = "default"

    def on_dehydrate(self, context: DehydrateContext) -> None:
        EVENTS.append("out grain")
        context["kept"] = self.kept
        self.visits += 100  # still goes with the fields, which follow the hook

    def on_rehydrate(self, context: RehydrateContext) -> None:
        EVENTS.append(f"in grain after {self.visits} visits")
        self.kept = context["kept"]


def payload(dehydrated: Dehydrated) -> Payload:
    return Payload(1, GrainId("shop", "a"), 4, "admin", 1, "", "3.11", dehydrated.entries)


def moved(source: Shop, *participants: Participant, system: tuple[Participant, ...] = ()) -> Payload:
    return payload(
        dehydrate(parts_of(kind_of(Shop), source, participants, system), CODEC, Departure("admin", "silo-2"))
    )


def test_R409_what_is_handed_over_arrives_and_what_is_not_is_absent() -> None:
    source, target = Shop(), Shop()
    source.kept = source.lost = "changed"
    source.visits = 3
    rehydrate(parts_of(kind_of(Shop), target), moved(source), CODEC)
    assert (target.kept, target.lost, target.visits, target.labels) == ("changed", "default", 103, [])


def test_R426_rehydration_runs_in_the_reverse_order_of_dehydration() -> None:
    one, two, timers = Cart("one"), Cart("two"), Cart("timers")
    body = moved(Shop(), one, two, system=(timers,))
    assert EVENTS == ["out grain", "out one", "out two", "out timers"]
    assert [entry.name for entry in body.entries] == [
        "grain",
        "soft_state/visits",
        "participant/one",
        "participant/two",
        "system/timers",
    ]
    EVENTS.clear()
    rehydrate(parts_of(kind_of(Shop), Shop(), (one, two), (timers,)), body, CODEC)
    assert EVENTS == ["in timers", "in two", "in one", "in grain after 100 visits"]


def test_each_participant_has_names_of_its_own() -> None:
    one, two = Cart("one"), Cart("two")
    one.items, two.items = ["a"], ["b"]
    arrived = Cart("one"), Cart("two")
    rehydrate(parts_of(kind_of(Shop), Shop(), arrived), moved(Shop(), one, two), CODEC)
    assert [cart.items for cart in arrived] == [["a"], ["b"]]


def test_the_source_keeps_what_it_handed_over() -> None:
    source = Shop()
    source.labels.append("x")
    moved(source)
    assert source.labels == ["x"]


class Failing(Cart):
    """A participant that raises where it is told to."""

    def __init__(self, error: BaseException, at: str) -> None:
        super().__init__("failing")
        self.error = error
        self.at = at

    def on_dehydrate(self, context: DehydrateContext) -> None:
        context["part"] = 1
        if self.at == "dehydrate":
            raise self.error

    def on_rehydrate(self, context: RehydrateContext) -> None:
        if self.at == "rehydrate":
            raise self.error


ERRORS = [ValueError("no"), asyncio.CancelledError()]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_S002_a_participant_that_raises_at_the_source_ends_the_move_and_is_named(error: BaseException) -> None:
    source = Shop()
    with pytest.raises(
        DehydrationFailed, match=f"participant/failing could not be dehydrated: {type(error).__name__}"
    ) as caught:
        moved(source, Failing(error, "dehydrate"), Cart())
    assert caught.value.part == "participant/failing"
    assert caught.value.__cause__ is error
    assert EVENTS == ["out grain"]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_a_participant_that_raises_at_the_target_refuses_the_grain_and_is_named(error: BaseException) -> None:
    failing = Failing(error, "rehydrate")
    with pytest.raises(RehydrationFailed, match="participant/failing could not be rehydrated") as caught:
        rehydrate(parts_of(kind_of(Shop), Shop(), (failing,)), moved(Shop(), failing), CODEC)
    assert caught.value.__cause__ is error


def test_a_value_that_cannot_be_encoded_is_named_with_its_part() -> None:
    source = Shop()
    source.labels = cast("list[str]", [object()])
    with pytest.raises(DehydrationFailed, match="soft_state/labels"):
        moved(source)


def test_R427_skip_is_opt_in_leaves_only_that_part_behind_and_reports_it() -> None:
    cart, failing = Cart(), Failing(ValueError("no"), "dehydrate")
    cart.items = ["a"]
    out = dehydrate(parts_of(kind_of(Shop), Shop(), (failing, cart)), CODEC, Departure(), skip_failing=True)
    assert [(skipped.part, repr(skipped.error)) for skipped in out.skipped] == [
        ("participant/failing", "ValueError('no')")
    ]
    arrived = Cart()
    assert rehydrate(parts_of(kind_of(Shop), Shop(), (arrived,)), payload(out), CODEC) == ()
    assert arrived.items == ["a"]
    failing.at = "rehydrate"
    skipped = rehydrate(parts_of(kind_of(Shop), Shop(), (failing,)), moved(Shop(), failing), CODEC, skip_failing=True)
    assert [each.part for each in skipped] == ["participant/failing"]


def test_system_parts_are_never_skipped() -> None:
    failing = Failing(ValueError("no"), "dehydrate")
    with pytest.raises(DehydrationFailed, match="system/failing"):
        dehydrate(parts_of(kind_of(Shop), Shop(), (), (failing,)), CODEC, Departure(), skip_failing=True)
    body = moved(Shop(), system=(Cart("timers"),))
    with pytest.raises(PayloadRejected, match="system/timers"):
        rehydrate(parts_of(kind_of(Shop), Shop()), body, CODEC, skip_failing=True)


def test_an_entry_that_nothing_takes_refuses_the_grain_before_any_hook_runs() -> None:
    body = moved(Shop(), Cart())
    EVENTS.clear()
    with pytest.raises(PayloadRejected, match=r"nothing here takes the entry 'participant/cart'; .*constructed"):
        rehydrate(parts_of(kind_of(Shop), Shop()), body, CODEC)
    assert EVENTS == []
    skipped = rehydrate(parts_of(kind_of(Shop), Shop()), body, CODEC, skip_failing=True)
    assert [each.part for each in skipped] == ["participant/cart"]


def test_a_participant_that_was_not_at_the_source_is_not_called() -> None:
    rehydrate(parts_of(kind_of(Shop), Shop(), (Cart("new"),)), moved(Shop()), CODEC)
    assert "in new" not in EVENTS


def test_the_grains_hook_runs_on_arrival_even_if_its_source_had_nothing_to_hand_over() -> None:
    class Guest(Grain):
        arrived = False

        def on_rehydrate(self, context: RehydrateContext) -> None:
            self.arrived = not context

    kind, target = kind_of(grain(Guest)), Guest()
    rehydrate(parts_of(kind, target), payload(dehydrate(parts_of(kind, Guest()), CODEC, Departure())), CODEC)
    assert target.arrived


def test_values_of_a_hook_that_the_target_lacks_refuse_the_grain() -> None:
    @grain(kind="shop")
    class Bare(Grain):
        visits: int = soft_state(default=0)

    with pytest.raises(RehydrationFailed, match=r"grain could not be rehydrated.*\['kept'\] arrived"):
        rehydrate(parts_of(kind_of(Bare), Bare()), moved(Shop()), CODEC)


# Schemas.


class CartOfTwo(Cart):
    schema = 2

    def upgrade(self, from_schema: int, values: dict[str, Any]) -> dict[str, Any]:
        return {"items": [f"{item}@{from_schema}" for item in values["items"]]}


def test_older_values_are_upgraded_and_newer_ones_refuse_the_grain() -> None:
    old, new = Cart(), CartOfTwo()
    old.items = ["a"]
    rehydrate(parts_of(kind_of(Shop), Shop(), (new,)), moved(Shop(), old), CODEC)
    assert new.items == ["a@1"]
    with pytest.raises(PayloadRejected, match="participant/cart is written in schema 2, and schema 1 is the newest"):
        rehydrate(parts_of(kind_of(Shop), Shop(), (old,)), moved(Shop(), new), CODEC)


def test_an_older_soft_state_is_upgraded_or_refused_where_there_is_no_way() -> None:
    class Upgraded(Grain):
        visits: str = soft_state(default="", schema=3, upgrade=lambda schema, value: f"{schema}:{value}")

    class Stuck(Grain):
        visits: str = soft_state(default="", schema=3)

    class First(Grain):
        visits: int = soft_state(default=0)

    source, target = First(), Upgraded()
    source.visits = 9
    body = payload(dehydrate(parts_of(kind_of(grain(First)), source), CODEC, Departure()))
    rehydrate(parts_of(kind_of(grain(Upgraded)), target), body, CODEC)
    assert target.visits == "1:9"
    with pytest.raises(
        RehydrationFailed, match="written in schema 1, schema 3 is wanted here, and there is no `upgrade`"
    ):
        rehydrate(parts_of(kind_of(grain(Stuck)), Stuck()), body, CODEC)


# Contexts.


def test_R425_the_rehydrate_context_is_read_only() -> None:
    context: Any = RehydrateContext({"a": 1})
    with pytest.raises(TypeError, match="read-only"):
        context["a"] = 2
    with pytest.raises(TypeError, match="read-only"):
        del context["a"]
    assert (dict(context), len(context), "b" in context) == ({"a": 1}, 1, False)


def test_R428_the_dehydrate_context_tells_what_happened_before() -> None:
    error = ValueError("no")
    context = DehydrateContext(Departure("drain", "silo-2", error))
    assert (context.reason, context.target, context.deactivation_error) == ("drain", "silo-2", error)


def test_what_would_not_travel_cannot_be_put_into_the_context() -> None:
    context = DehydrateContext()
    context["a"] = 1
    with pytest.raises(TypeError, match="names in a dehydrate context are str"):
        cast("Any", context)[3] = 1
    del context["a"]
    context.taken()
    with pytest.raises(RuntimeError, match="would not travel"):
        context["late"] = 1


# Who may take part.


class AsyncCart(Cart):
    async def on_dehydrate(self, context: DehydrateContext) -> None: ...  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride] - the mistake


class BadSchema(Cart):
    schema = 0


@pytest.mark.parametrize(
    ("participant", "message"),
    [
        (AsyncCart(), "on_dehydrate of participant 'cart' is async"),
        (BadSchema(), "schema of participant 'cart' is an int from 1 on"),
        (Cart(""), "needs a `name`"),
        (object(), "needs a `name`"),
        (type("Half", (), {"name": "half"})(), "no method on_dehydrate"),
    ],
)
def test_R425_what_cannot_take_part_is_refused_when_it_is_added(participant: Any, message: str) -> None:
    with pytest.raises(InvalidGrain, match=message):
        ParticipantSet().add(participant)


def test_a_hook_that_turns_out_to_be_async_fails_the_move() -> None:
    class Sneaky(Cart):
        def on_dehydrate(self, context: DehydrateContext) -> Any:
            return asyncio.sleep(0)

    with pytest.raises(DehydrationFailed, match="returned an awaitable"):
        moved(Shop(), Sneaky())


def test_participants_keep_their_order_and_their_names_apart() -> None:
    participants, one, two = ParticipantSet(), Cart("one"), Cart("two")
    for each in (one, two, one):
        participants.add(each)
    assert list(participants) == [one, two]
    with pytest.raises(InvalidGrain, match="already has another participant named 'one'"):
        participants.add(Cart("one"))
    participants.remove(Cart("one"))
    participants.remove(one)
    participants.remove(one)
    assert list(participants) == [two]
