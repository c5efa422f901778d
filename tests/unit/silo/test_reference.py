"""References: typed as the grain, compared by identity, wrong calls refused where they are made."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
from collections.abc import Awaitable
from typing import Any, cast

import pytest

from silo.class_checks import DEFAULT_TIMEOUT, MethodSpec
from silo.directory.addresses import GrainId
from silo.directory.errors import InvalidIdentity, NotExecuted
from silo.grain import Grain, grain, soft_state
from silo.kinds import GrainKind, KindRegistry, kind_of
from silo.reference import (
    CallOptions,
    Reference,
    ReferenceUnbound,
    grain_id,
    make_reference,
    reference_binder,
    reference_to,
    with_hint,
    with_timeout,
)


@grain(kind="counter")
class Counter(Grain):
    total: int = soft_state(default=0)
    note: str

    async def add(self, amount: int, times: int = 1) -> int:
        """Add it up."""
        return amount * times

    async def tag(self, *names: str, colour: str) -> None: ...

    async def reset(self) -> None: ...

    async def on_activate(self) -> None: ...


class Recorder:
    """A call target that answers with what it was asked."""

    at_once = None

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def call(
        self,
        grain: GrainId,
        kind: GrainKind,
        method: MethodSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: CallOptions,
    ) -> Awaitable[Any]:
        self.calls.append((str(grain), method.name, args, kwargs))
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.set_result((method.name, options))
        return answer


@pytest.fixture
def target() -> Recorder:
    return Recorder()


@pytest.fixture
def counter(target: Recorder) -> Counter:
    return cast("Counter", make_reference(kind_of(Counter), "a", target))


async def test_a_call_goes_to_the_target_when_it_is_awaited(counter: Counter, target: Recorder) -> None:
    pending = counter.add(2, times=3)
    assert target.calls == []
    await pending
    assert target.calls == [("counter/a", "add", (2,), {"times": 3})]


async def test_calls_can_be_run_as_tasks_and_are_sent_in_order(counter: Counter, target: Recorder) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(counter.add(number))
    assert [args for _, _, args, _ in target.calls] == [(number,) for number in range(5)]


@pytest.mark.parametrize(
    ("method", "args", "kwargs"),
    [
        ("add", (), {}),
        ("add", (1, 2, 3), {}),
        ("add", (1,), {"tiems": 2}),
        ("add", (1,), {"amount": 2}),
        ("tag", ("a",), {}),
        ("reset", (1,), {}),
    ],
)
async def test_wrong_arguments_are_refused_before_anything_is_sent(
    counter: Counter, target: Recorder, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    with pytest.raises(TypeError, match=rf"Counter\.{method}\(\): .*it takes \("):
        await getattr(counter, method)(*args, **kwargs)
    assert target.calls == []


async def test_arguments_that_fit_are_sent_as_they_were_written(counter: Counter, target: Recorder) -> None:
    await counter.add(1)
    await counter.add(amount=1)
    await counter.tag("x", "y", colour="red")
    assert [call[1:] for call in target.calls] == [
        ("add", (1,), {}),
        ("add", (), {"amount": 1}),
        ("tag", ("x", "y"), {"colour": "red"}),
    ]


def test_a_references_methods_look_like_the_grains(counter: Counter) -> None:
    assert inspect.iscoroutinefunction(counter.add)
    assert inspect.signature(counter.add) == inspect.signature(Counter().add)
    assert (counter.add.__name__, counter.add.__doc__) == ("add", "Add it up.")
    assert "CounterReference" in type(counter).__name__
    assert kind_of(counter) is kind_of(Counter)


def test_references_are_compared_by_identity_alone(counter: Counter) -> None:
    same = make_reference(kind_of(Counter), "a", Recorder())
    other = make_reference(kind_of(Counter), "b", Recorder())
    untyped = reference_to(GrainId("counter", "a"), None, Recorder())
    assert counter == same == untyped == with_timeout(counter, 3)
    assert counter != other
    assert cast("object", counter) != GrainId("counter", "a")
    assert len({counter, same, other, untyped}) == 2
    assert sorted([cast("Reference", other), cast("Reference", same)])[0] == counter
    assert repr(counter) == "<reference counter/a>"


def test_a_reference_says_which_grain_it_stands_for(counter: Counter) -> None:
    assert grain_id(counter) == counter.id == grain_id(counter.id) == GrainId("counter", "a")
    assert counter.key == "a"
    for no_reference in (Counter, 3, Counter()):
        with pytest.raises(TypeError, match="a reference to a grain is wanted"):
            grain_id(no_reference)


def test_a_reference_is_immutable(counter: Counter) -> None:
    with pytest.raises(AttributeError, match="immutable"):
        counter.total = 3
    with pytest.raises(AttributeError, match="immutable"):
        del counter.total
    assert copy.copy(counter) is counter
    assert copy.deepcopy([counter])[0] is counter


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ad", "Counter has no method 'ad'; did you mean 'add'"),
        ("nothing_like_it", "Counter has no method 'nothing_like_it' .grain counter/a"),
        ("total", "no method for callers; a reference has only the grain's public async methods"),
        ("note", "no method for callers"),
        ("migrate", "for the grain counter/a itself, not for those who hold a reference"),
        ("on_activate", "a lifecycle hook; the runtime alone calls it"),
    ],
)
def test_what_a_reference_has_not_is_explained(counter: Counter, name: str, message: str) -> None:
    with pytest.raises(AttributeError, match=message):
        getattr(counter, name)
    assert not hasattr(counter, name)


async def test_options_belong_to_a_derived_reference(counter: Counter) -> None:
    patient = with_hint(with_timeout(counter, 3), "silo-2")
    assert cast("Any", await patient.add(1)) == ("add", CallOptions(3, "silo-2"))
    assert cast("Any", await counter.add(1)) == ("add", CallOptions(DEFAULT_TIMEOUT, None))
    assert cast("Any", await with_timeout(counter, None).add(1)) == ("add", CallOptions(None))
    with pytest.raises(ValueError, match="finite seconds above 0"):
        with_timeout(counter, 0)
    with pytest.raises(TypeError, match="a reference to a grain is wanted"):
        with_timeout(3, 1)


def test_a_key_that_is_none_is_refused(target: Recorder) -> None:
    with pytest.raises(InvalidIdentity):
        make_reference(kind_of(Counter), "", target)


async def test_a_reference_that_nobody_bound_says_so_when_it_is_called(counter: Counter) -> None:
    loose = pickle.loads(pickle.dumps(counter))
    assert loose == counter
    with pytest.raises(ReferenceUnbound, match=r"counter/a\.add: .*client\.grain\(Counter, 'a'\)"):
        await loose.add(1)
    assert issubclass(ReferenceUnbound, NotExecuted)


async def test_decoded_references_are_bound_and_those_of_unknown_kinds_can_be_passed_on(target: Recorder) -> None:
    bind = reference_binder(KindRegistry([Counter]), target)
    await cast("Counter", bind(GrainId("counter", "z"))).add(1)
    assert target.calls == [("counter/z", "add", (1,), {})]
    stranger = bind(GrainId("alien", "z"))
    assert grain_id(stranger) == GrainId("alien", "z")
    assert pickle.loads(pickle.dumps(stranger)) == stranger
    with pytest.raises(AttributeError, match="does not know the kind 'alien'"):
        _ = cast("Any", stranger).add


def test_a_kind_has_one_reference_type(counter: Counter, target: Recorder) -> None:
    assert type(counter) is type(make_reference(kind_of(Counter), "b", target))

    @grain(kind="sub")
    class Sub(Counter): ...

    assert kind_of(make_reference(kind_of(Sub), "b", target)) is kind_of(Sub)
