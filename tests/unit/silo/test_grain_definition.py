"""What is wrong with a grain class is said where the class is written; what is right becomes a kind."""

from __future__ import annotations

import abc
import asyncio
import dataclasses
import functools
import math
import types
from collections.abc import AsyncIterator, Coroutine
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, TypeVar, cast

import pytest

from silo.activation.timers import GrainTimer, TimerCallback
from silo.class_checks import DEFAULT_TIMEOUT
from silo.directory.addresses import GrainId, SiloAddress
from silo.directory.errors import GrainKindUnknown, InvalidGrain
from silo.grain import Grain, always_interleave, current_grain, grain, one_way, read_only, soft_state, timeout
from silo.grain_context import MoveRequest, OutsideGrain, current_activation
from silo.instances import build_instance, migration_cost, refusal_to_migrate
from silo.kinds import KindRegistry, OnBusy, collect_kinds, kind_of
from silo.migration.lifecycle import ActivationReason
from silo.migration.participants import DehydrateContext, Participant, RehydrateContext

T = TypeVar("T")


@grain(kind="room", reentrant="call_chain", collect_after=timedelta(minutes=2), on_busy="stay", version=3)
class Room(Grain):
    """A room with people in it."""

    taken: set[str] = soft_state(default_factory=set)
    topic: str = soft_state(default="nothing", name="subject", schema=2, upgrade=lambda schema, value: f"{value}!")
    capacity = 10

    async def enter(self, player: str, loud: bool = False) -> int:
        self.taken.add(player)
        return len(self.taken)

    @read_only
    async def players(self) -> list[str]:
        return sorted(self.taken)

    @one_way
    @always_interleave
    async def wave(self, *, at: str) -> None: ...

    @timeout(2.5)
    async def slow(self, *names: str) -> None: ...

    @timeout(None)
    async def endless(self) -> None: ...

    async def on_activate(self, reason: ActivationReason) -> None: ...

    @property
    def is_full(self) -> bool:
        return len(self.taken) >= self.capacity

    @staticmethod
    def normalized(name: str) -> str:
        return name.strip()

    def _private(self) -> None: ...


class FakeContext:
    """A GrainContext that writes down what its grain asked for."""

    def __init__(self, key: str = "lobby") -> None:
        self.id = GrainId("room", key)
        self.epoch = 7
        self.silo_name = "silo-1"
        self.asked: list[Any] = []

    def reference(self, kind: type[Any], key: str) -> Any:
        return (kind, key)

    def request_move(
        self, to: str | SiloAddress | None, reason: str, force: bool, on_busy: OnBusy | None
    ) -> MoveRequest:
        self.asked.append(("move", to, reason, force, on_busy))
        return None  # type: ignore[return-value] # pyright: ignore[reportReturnType] - nobody awaits it here

    def create_task(self, coroutine: Coroutine[Any, Any, T], name: str | None) -> asyncio.Task[T]:
        raise NotImplementedError

    def register_timer(
        self,
        callback: TimerCallback | str,
        due_s: float,
        period_s: float | None,
        *,
        name: str | None,
        interleave: bool,
        keep_alive: bool,
    ) -> GrainTimer:
        raise NotImplementedError

    def block_migration(self, why: str) -> AbstractContextManager[None]:
        self.asked.append(("block", why))
        return nullcontext()

    def request_deactivation(self) -> None:
        self.asked.append("deactivate")

    def add_participant(self, participant: Participant) -> None:
        self.asked.append(participant)

    def remove_participant(self, participant: Participant) -> None:
        self.asked.remove(participant)


def declare(members: dict[str, Any], **options: Any) -> Any:
    """A grain class as if written with these members, for mistakes that a type checker would see."""
    return grain(**options)(type("Mistaken", (Grain,), members))


# Kinds.


def test_a_kind_knows_its_methods_and_what_their_decorators_said() -> None:
    kind = kind_of(Room)
    assert kind.name == "room"
    assert sorted(kind.methods) == ["endless", "enter", "players", "slow", "wave"]
    assert kind.methods["players"].read_only
    assert not kind.methods["enter"].read_only
    assert kind.methods["wave"].one_way
    assert kind.methods["wave"].always_interleave
    assert kind.methods["slow"].timeout_s == 2.5
    assert kind.methods["endless"].timeout_s is None
    assert kind.methods["enter"].timeout_s is DEFAULT_TIMEOUT


def test_options_become_the_kinds_own_and_absent_ones_leave_it_to_the_silo() -> None:
    kind = kind_of(Room)
    assert (kind.reentrant, kind.collect_after_s, kind.on_busy, kind.version) == ("call_chain", 120.0, "stay", 3)
    assert (kind.migratable, kind.placement, kind.queue_calls_max, kind.drain_timeout_s) == (True, None, None, None)
    assert kind.on_participant_error == "abort"
    assert kind_of(declare({}, collect_after=math.inf)).collect_after_s == math.inf
    assert kind.queue_bytes_max is None
    assert kind_of(declare({}, queue_bytes_max=1_000)).queue_bytes_max == 1_000


def test_the_kinds_name_defaults_to_the_class_name() -> None:
    @grain
    class Plain:
        async def ping(self) -> None: ...

    assert kind_of(Plain).name == "Plain"
    assert kind_of(Plain()) is kind_of(Plain)


def test_methods_are_inherited_and_overridden_and_a_subclass_is_a_kind_only_by_its_own_decorator() -> None:
    class Hall(Room):
        async def enter(self, player: str, loud: bool = False) -> int:
            return -1

    with pytest.raises(InvalidGrain, match="Hall derives from the grain class Room; write @grain on it"):
        kind_of(Hall)
    kind = kind_of(grain(kind="hall")(Hall))
    assert set(kind.methods) == set(kind_of(Room).methods)
    assert kind.methods["enter"].function is Hall.enter
    assert kind.methods["players"].read_only
    assert kind_of(Room).name == "room"


def test_a_class_without_the_decorator_is_no_kind() -> None:
    with pytest.raises(InvalidGrain, match=r"int is no grain class; write @grain on it"):
        kind_of(3)


# Mistakes, where the class is written.


async def _public(self: Any) -> None: ...
async def _pages(self: Any) -> AsyncIterator[int]:
    yield 1


def _plain(self: Any, *_: Any) -> None: ...
async def _wants(self: Any, one: int, two: int) -> None: ...
async def _no_self() -> None: ...
def _constructor(self: Any, size: int) -> None: ...


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"enter": _plain}, r"enter is not async; make it `async def`.*underscore"),
        ({"enter": functools.lru_cache(_plain)}, "enter is not async"),
        ({"enter": functools.partialmethod(_plain)}, "enter is a partial"),
        ({"pages": _pages}, "pages is an async generator.*pages"),
        ({"enter": staticmethod(_public)}, "enter is async and takes no instance"),
        ({"enter": _no_self}, "takes no self"),
        ({"key": _public}, "'key' hides what Grain offers"),
        ({"migrate": _public}, "'migrate' hides what Grain offers"),
        ({"silo": "north"}, "'silo' hides what Grain offers"),
        ({"on_activate": _plain}, r"on_activate has to be async.*`async def on_activate\(self, reason"),
        ({"on_deactivate": _plain}, "on_deactivate has to be async"),
        ({"on_migrating": _plain}, "on_migrating has to be async"),
        ({"on_dehydrate": _wants}, r"on_dehydrate must not be async.*`def on_dehydrate\(self, context"),
        ({"on_rehydrate": _wants}, "on_rehydrate must not be async"),
        ({"can_migrate": _public}, "can_migrate must not be async"),
        ({"migration_cost": _public}, "migration_cost must not be async"),
        ({"on_activate": _pages}, "on_activate is not a method"),
        ({"on_activate": 3}, "on_activate is not a method"),
        ({"on_activate": _wants}, "on_activate takes other arguments"),
        ({"on_activated": _public}, "on_activated is no hook; did you mean 'on_activate'"),
        ({"on_dehydrate": _plain}, "no on_rehydrate: what it hands over would be lost"),
        ({"__init__": _constructor}, "makes grains without arguments, but __init__ wants size"),
    ],
)
def test_a_wrong_member_is_refused_with_the_fix(members: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidGrain, match=message):
        declare(members)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"re_entrant": True}, "unknown option 're_entrant'; did you mean 'reentrant'"),
        ({"colour": 1}, "unknown option 'colour' .known: kind"),
        ({"kind": "9lives"}, "kind='9lives': a name of the form"),
        ({"kind": 9}, "kind=9"),
        ({"reentrant": "call_chains"}, "one of False, True, 'call_chain' is wanted; did you mean 'call_chain'"),
        ({"reentrant": 1}, "reentrant=1"),
        ({"migratable": None}, "migratable=None"),
        ({"collect_after": 0}, "collect_after=0: seconds above 0"),
        ({"collect_after": True}, "collect_after=True"),
        ({"drain_timeout": math.nan}, "drain_timeout=nan"),
        ({"version": 0}, "version=0"),
        ({"queue_calls_max": 1.5}, "queue_calls_max=1.5"),
        ({"on_busy": "waits"}, "did you mean 'wait'"),
        ({"on_participant_error": "ignore"}, "on_participant_error='ignore'"),
        ({"placement": 3}, "placement=3"),
        ({"placement": FakeContext}, "the name of a policy or a policy object"),
    ],
)
def test_a_wrong_option_is_refused_with_what_is_wanted(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidGrain, match=message):
        declare({}, **options)


def test_a_decorator_on_the_wrong_thing_is_refused() -> None:
    for decorator in (read_only, always_interleave, one_way, timeout(1)):
        with pytest.raises(InvalidGrain, match="is not async"):
            decorator(_plain)  # type: ignore[type-var] # pyright: ignore[reportArgumentType] - the mistake
    with pytest.raises(InvalidGrain, match="a class"):
        grain(_plain)  # type: ignore[call-overload] # pyright: ignore[reportArgumentType] - the mistake

    async def _hidden(self: Any) -> None: ...

    with pytest.raises(InvalidGrain, match=r"private, so a method decorator has no effect"):
        declare({"_hidden": read_only(_hidden)})

    async def on_activate(self: Any) -> None: ...

    with pytest.raises(InvalidGrain, match="the runtime only"):
        declare({"on_activate": read_only(on_activate)})


def test_a_one_way_method_with_a_result_is_refused() -> None:
    async def answers(self: Any) -> int:
        return 1

    with pytest.raises(InvalidGrain, match="one-way, so nobody gets its result"):
        declare({"answers": one_way(answers)})  # type: ignore[type-var] # pyright: ignore[reportArgumentType] - the mistake


@pytest.mark.parametrize("seconds", [0, -1, math.inf, math.nan, True, "5"])
def test_a_timeout_is_finite_seconds_above_zero(seconds: Any) -> None:
    with pytest.raises(InvalidGrain, match=r"finite seconds above 0|not supported"):
        timeout(seconds)


def test_an_abstract_class_is_refused_since_it_cannot_be_activated() -> None:
    class Shape(Grain, abc.ABC):
        @abc.abstractmethod
        async def area(self) -> float: ...

    with pytest.raises(InvalidGrain, match=r"abstract and cannot be activated; it lacks area"):
        grain(Shape)


def test_without_the_base_only_the_names_that_a_reference_has_are_taken() -> None:
    @grain
    class Bare:
        async def migrate(self) -> None: ...

    assert list(kind_of(Bare).methods) == ["migrate"]
    with pytest.raises(InvalidGrain, match="every reference has"):
        grain(type("Bad", (), {"key": _public}))


def test_hooks_may_leave_their_argument_out() -> None:
    class Quiet(Grain):
        async def on_activate(self) -> None: ...
        async def on_deactivate(self, reason: object) -> None: ...

    hooks = kind_of(grain(Quiet)).hooks
    assert hooks.on_activate is not None
    assert not hooks.on_activate.takes_argument
    assert hooks.on_deactivate is not None
    assert hooks.on_deactivate.takes_argument
    assert hooks.on_migrating is None
    hooks.on_activate(Quiet(), ActivationReason.CALL).close()


# Soft state.


def test_soft_state_is_made_per_instance_when_it_is_first_read() -> None:
    one, other = Room(), Room()
    assert "taken" not in vars(one)
    one.taken.add("ada")
    assert other.taken == set()
    assert one.topic == "nothing"
    one.topic = "chess"
    assert (one.topic, other.topic) == ("chess", "nothing")
    del one.topic
    assert one.topic == "nothing"


def test_soft_state_is_part_of_the_kind() -> None:
    assert [(each.attribute, each.name, each.schema) for each in kind_of(Room).soft_state] == [
        ("taken", "taken", 1),
        ("topic", "subject", 2),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either default=… or default_factory=…"),
        ({"default": 1, "default_factory": int}, "either default=… or default_factory=…"),
        ({"default": []}, "every grain would share this one list; write default_factory=list"),
        ({"default_factory": 3}, "a function without arguments"),
        ({"default": 1, "schema": 0}, "an int from 1 on"),
        ({"default": 1, "name": ""}, "a str that is not empty"),
    ],
)
def test_wrong_soft_state_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidGrain, match=message):
        soft_state(**arguments)


def test_soft_state_needs_a_dict_in_the_instance() -> None:
    with pytest.raises(InvalidGrain, match=r"__slots__ and no __dict__.*remove __slots__"):
        grain(type("Slotted", (), {"__slots__": (), "taken": soft_state(default=1)}))


def test_two_soft_states_do_not_travel_under_one_name() -> None:
    with pytest.raises(InvalidGrain, match="'a' and 'b' would travel under one name"):
        declare({"a": soft_state(default=1, name="x"), "b": soft_state(default=1, name="x")})


def test_a_dataclass_does_not_take_the_descriptor_for_the_value() -> None:
    with pytest.raises(ValueError, match="mutable default"):

        @dataclasses.dataclass
        class Confused:
            taken: int = soft_state(default=1)


# Instances.


def test_a_grain_reaches_its_activation_from_its_constructor_on() -> None:
    class Cart(Grain):
        def __init__(self) -> None:
            self.at_birth = (self.key, self.silo, current_grain().id)

    context = FakeContext()
    made = build_instance(kind_of(grain(Cart)), context)
    assert isinstance(made, Cart)
    assert made.at_birth == ("lobby", "silo-1", GrainId("room", "lobby"))
    assert cast("object", made.grain(Room, "hall")) == (Room, "hall")
    made.migrate(to="silo-2")
    made.deactivate()
    assert context.asked == [("move", "silo-2", "self", False, None), "deactivate"]
    assert current_activation() is None


def test_a_class_without_the_base_asks_for_the_current_grain() -> None:
    @grain
    class Bare:
        def __init__(self) -> None:
            self.key = current_grain().key

    made = build_instance(kind_of(Bare), FakeContext("a/b"))
    assert isinstance(made, Bare)
    assert made.key == "a/b"


def test_outside_of_a_silo_the_runtime_is_out_of_reach_and_the_error_says_so() -> None:
    with pytest.raises(OutsideGrain, match="this Room was made by hand"):
        _ = Room().key
    with pytest.raises(OutsideGrain, match="where no grain runs"):
        current_grain()


def test_R416_cost_and_consent_are_the_grains_own_and_have_defaults() -> None:
    class Heavy(Grain):
        busy = False

        def can_migrate(self) -> bool:
            return not self.busy

        def migration_cost(self) -> float:
            return 12

    kind, made = kind_of(grain(Heavy)), Heavy()
    assert refusal_to_migrate(kind, made) == ""
    assert migration_cost(kind, made) == 12.0
    made.busy = True
    assert refusal_to_migrate(kind, made) == "can_migrate said no"
    assert (refusal_to_migrate(kind_of(Room), Room()), migration_cost(kind_of(Room), Room())) == ("", 1.0)


def test_a_consent_hook_that_raises_refuses() -> None:
    def can_migrate(self: Any) -> bool:
        raise KeyError("lock")

    cls = declare({"can_migrate": can_migrate})
    assert refusal_to_migrate(kind_of(cls), cls()) == "can_migrate raised KeyError: 'lock'"


# Kinds of one process.


def test_two_kinds_of_one_name_are_refused_and_both_are_named() -> None:
    kinds = KindRegistry([Room])
    assert kinds.add(Room) is kind_of(Room)
    with pytest.raises(InvalidGrain, match=r"two grain classes have the kind 'room'.*:Room and .*:Mistaken"):
        kinds.add(declare({}, kind="room"))


def test_the_same_class_imported_again_takes_the_place_of_its_earlier_form() -> None:
    first, second = declare({}, kind="same"), declare({"ping": _public}, kind="same")
    kinds = KindRegistry([first, second])
    assert kinds["same"] is kind_of(second)
    assert (kinds.names, len(kinds), "same" in kinds) == (("same",), 1, True)


def test_an_unknown_kind_or_method_is_named_with_what_is_close_to_it() -> None:
    kinds = KindRegistry([Room])
    assert kinds.get("rom") is None
    with pytest.raises(GrainKindUnknown, match="'rom' is not known here; did you mean 'room'"):
        kinds["rom"]
    assert "no method 'entre'; did you mean 'enter'" in str(kinds["room"].unknown_method("entre"))


def test_a_module_stands_for_the_kinds_that_it_defines() -> None:
    module = types.ModuleType("game")
    own = declare({"__module__": "game"}, kind="own")
    inner = declare({"__module__": "game.rooms"}, kind="inner")
    vars(module).update(Own=own, Room=Room, Inner=inner, again=own, number=3)
    assert [kind.name for kind in collect_kinds(module)] == ["own"]
    vars(module).update(__path__=[])
    assert [kind.name for kind in collect_kinds(module)] == ["own", "inner"]
    vars(module).update(__all__=["Room"])
    assert [kind.name for kind in collect_kinds(module)] == ["room"]


def test_a_hook_of_the_context_kind_is_kept() -> None:
    class Movable(Grain):
        def on_dehydrate(self, context: DehydrateContext) -> None: ...
        def on_rehydrate(self, context: RehydrateContext) -> None: ...

    assert kind_of(grain(Movable)).hooks.on_dehydrate is not None
