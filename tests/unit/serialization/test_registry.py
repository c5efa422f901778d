"""The allow-list: who is on it, under which name, and how a class gets there."""

from __future__ import annotations

import collections
import dataclasses
import enum
import importlib.machinery
import sys
import types
import typing
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, NamedTuple, NewType, Protocol, TypedDict, TypeVar

import msgspec
import pytest

from silo.directory.errors import SerializationError
from silo.grain import Grain
from silo.serialization.registry import DEFAULT_REGISTRY, TypeRegistry, register
from silo.serialization.serializer import Serializer
from tests.unit.serialization.vocabulary import Color, Pair, Player, Spot

if TYPE_CHECKING:
    from tests.unit.serialization.vocabulary import Bag

HERE = __name__


@dataclasses.dataclass
class Inner:
    x: int


@dataclasses.dataclass
class Outer:
    inner: list[Inner] | None
    again: Outer | None = None


class Kind(enum.Enum):
    A = 1


class Row(NamedTuple):
    kind: Kind


class Note(msgspec.Struct):
    row: Row


class Options(TypedDict):
    note: Note


class Broken(Exception):
    pass


class Shape(Protocol):
    def area(self) -> float: ...


T = TypeVar("T", bound=Inner)


@dataclasses.dataclass
class Box(Generic[T]):
    value: T


Alias = NewType("Alias", Inner)


def known(registry: TypeRegistry, *classes: type) -> list[bool]:
    return [registry.shape(cls) is not None for cls in classes]


def test_a_class_is_named_by_module_and_qualified_name() -> None:
    registry = TypeRegistry()
    assert registry.register(Inner) is Inner
    assert registry.name_of(Inner) == f"{HERE}:Inner"
    assert registry.lookup(f"{HERE}:Inner") is Inner
    assert registry.register(Inner) is Inner


def test_register_works_as_a_decorator_with_and_without_arguments() -> None:
    registry = TypeRegistry()

    @registry.register
    @dataclasses.dataclass
    class One:
        x: int

    @registry.register(name="shop:two", aliases=["shop:deux"])
    @dataclasses.dataclass
    class Two:
        x: int

    assert registry.lookup(f"{HERE}:{One.__qualname__}") is One
    assert registry.name_of(Two) == "shop:two"
    assert registry.lookup("shop:deux") is Two


def test_registries_share_nothing_but_what_is_built_in() -> None:
    one, other = TypeRegistry(), TypeRegistry()
    one.register(Inner)
    assert known(other, Inner, ValueError) == [False, True]


def test_the_registry_of_the_process_is_filled_by_register() -> None:
    @dataclasses.dataclass
    class Local:
        x: int

    register(Local)
    assert known(DEFAULT_REGISTRY, Local) == [True]


@pytest.mark.parametrize(
    ("cls", "fix"),
    [
        (type("Plain", (), {}), "make it a dataclass"),
        (type("Words", (list,), {}), "subclass of list"),
        (dataclasses.make_dataclass("Listy", ["x"], bases=(list,)), "subclass of list"),
        (dataclasses.make_dataclass("Deque", ["x"], bases=(collections.deque,)), "make it a dataclass"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_class_that_cannot_travel_is_refused_with_the_fix(cls: type, fix: str) -> None:
    with pytest.raises(SerializationError, match=fix):
        TypeRegistry().register(cls)


def test_two_classes_cannot_have_one_name() -> None:
    registry = TypeRegistry()
    registry.register(Inner, name="x")
    with pytest.raises(SerializationError, match=r"the name 'x' belongs to class .*Inner' already"):
        registry.register(Outer, name="x")
    with pytest.raises(SerializationError, match="1 to 512 characters"):
        registry.register(Outer, name="")


def test_a_class_defined_anew_takes_the_place_of_the_former() -> None:
    def define() -> Any:
        @dataclasses.dataclass
        class Again:
            x: int

        return Again

    registry, former, newer = TypeRegistry(), define(), define()
    registry.register(former)
    registry.register(newer)
    serializer = Serializer(registry)
    arrived = [serializer.decode(*serializer.encode(former(1))), serializer.isolate(former(1)), newer(1)]
    assert [type(value) for value in arrived] == [newer] * 3


def test_a_class_of_the_main_module_is_named_as_others_import_it(monkeypatch: pytest.MonkeyPatch) -> None:
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    run: Any = dataclasses.make_dataclass("Run", ["x"])
    run.__module__ = "__main__"
    main.__spec__ = None
    by_file = TypeRegistry()
    by_file.register(run)
    assert by_file.name_of(run) == "__main__:Run"
    main.__spec__ = importlib.machinery.ModuleSpec("samples.chat", None)
    by_module = TypeRegistry()
    by_module.register(run)
    assert by_module.name_of(run) == "samples.chat:Run"
    with pytest.raises(
        SerializationError, match=r"'__main__:Run'.*registered is 'samples\.chat:Run': .* give it name="
    ):
        by_module.lookup("__main__:Run")


class Grainy:
    state: dict[str, Outer]
    _private: Spot

    async def plain(self, a: Kind, b: list[Row | None], *more: Annotated[Box[Inner], "x"]) -> Options: ...  # type: ignore[empty-body]

    async def rest(self, c: Callable[[Player], Color], d: Literal[Kind.A], e: Alias, f: type[Pair]) -> Broken: ...  # type: ignore[empty-body]

    def stream(self, s: Shape) -> AsyncIterator[Note]: ...  # type: ignore[empty-body]

    async def absent(self, a: Bag | None, i: Inner) -> None: ...

    async def _hidden(self, spot: Spot) -> None: ...


def test_every_class_that_a_method_mentions_is_registered() -> None:
    registry = TypeRegistry()
    registry.register_annotations(Grainy.plain)
    assert known(registry, Kind, Row, Box, Inner, Note, Outer) == [True, True, True, True, True, False]
    registry.register_annotations(Grainy.rest)
    assert known(registry, Player, Color, Pair, Broken) == [True] * 4
    registry.register_annotations(Grainy.stream)
    assert known(registry, Shape) == [False]


def test_every_class_that_a_grain_class_mentions_is_registered() -> None:
    registry = TypeRegistry()
    registry.register_annotations(Grainy)
    assert known(registry, Outer, Inner, Kind, Row, Note, Broken, Grainy) == [True] * 6 + [False]


def test_a_class_defined_anew_is_the_one_that_hints_mention_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Holder:
        async def take(self, inner: Inner) -> None: ...

    TypeRegistry().register_annotations(Holder)
    anew = dataclasses.make_dataclass("Inner", [("y", int)])
    anew.__module__ = HERE
    monkeypatch.setattr(sys.modules[HERE], "Inner", anew)
    registry = TypeRegistry()
    registry.register_annotations(Holder)
    assert registry.lookup(f"{HERE}:Inner") is anew


def test_what_a_grain_class_mentions_is_found_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cellar(Grain):  # hints of Grain's own methods are for type checkers only, and none of its callers' business
        async def take(self, inner: Inner) -> None: ...

    def again(*_arguments: object, **_options: object) -> None:
        pytest.fail("it was found out again")

    TypeRegistry().register_annotations(Cellar)
    with monkeypatch.context() as patch:
        patch.setattr(typing, "get_type_hints", again)
        registry = TypeRegistry()
        registry.register_annotations(Cellar)
    assert known(registry, Inner) == [True]


def test_a_hint_for_type_checkers_only_is_named_when_it_is_missed() -> None:
    registry = TypeRegistry()
    registry.register_annotations(Grainy.absent)
    assert known(registry, Inner) == [True]
    with pytest.raises(
        SerializationError, match=r"Grainy\.absent, a does, but by a name that is not defined at run time"
    ):
        registry.lookup("tests.unit.serialization.vocabulary:Bag")


def test_hints_may_use_local_names() -> None:
    @dataclasses.dataclass
    class Local:
        x: int

    async def method(a: Local) -> None: ...

    registry = TypeRegistry()
    registry.register_annotations(method, localns=locals())
    assert known(registry, Local) == [True]
