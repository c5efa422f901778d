"""What is wrong with a declaration of persistent state is said where the class is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional

import msgspec
import pytest

from silo.directory.errors import InvalidGrain
from silo.grain import Grain, grain, soft_state
from silo.grain_context import OutsideGrain
from silo.kinds import kind_of
from silo.persistence.declaration import PersistentField, persistent
from silo.persistence.persistent import Persistent


@dataclass
class Profile:
    name: str = ""


class Named(msgspec.Struct):
    name: str


@grain
class Player(Grain):
    """Every way to say what a state starts from."""

    profile: Persistent[Profile] = persistent(Profile)
    by_annotation: Persistent[Profile] = persistent()
    numbers: Persistent[list[int]] = persistent()
    named: Persistent[Named] = persistent(lambda: Named("nobody"), name="other.name")
    maybe: Persistent[Profile | None] = persistent(lambda: None)
    _private: Persistent[int] = persistent()
    later: Persistent[Later] = persistent()


class Later(msgspec.Struct):
    """Defined after the class that mentions it."""

    number: int = 3


@grain
class VeteranPlayer(Player):
    """Has what its base has, and more."""

    medals: Persistent[set[str]] = persistent(set)


def field_of(cls: type, attribute: str) -> PersistentField:
    (found,) = (each for each in kind_of(cls).persistent if each.attribute == attribute)
    return found


def test_a_kind_knows_its_states_by_name_and_inherits_them() -> None:
    names = [field.name for field in kind_of(Player).persistent]
    assert names == ["profile", "by_annotation", "numbers", "other.name", "maybe", "_private", "later"]
    assert [field.name for field in kind_of(VeteranPlayer).persistent] == [*names, "medals"]


@pytest.mark.parametrize(
    ("attribute", "wanted"),
    [
        ("profile", Profile()),
        ("by_annotation", Profile()),
        ("numbers", []),
        ("named", Named("nobody")),
        ("maybe", None),
        ("_private", 0),
        ("later", Later(3)),
    ],
)
def test_a_state_starts_from_its_factory_or_from_the_annotated_class(attribute: str, wanted: object) -> None:
    field = field_of(Player, attribute)
    field.resolve(forward_references=False)
    assert field.default() == wanted


def test_no_two_grains_share_a_default() -> None:
    field = field_of(Player, "numbers")
    assert field.default() is not field.default()


def test_states_are_no_methods_and_no_soft_state() -> None:
    kind = kind_of(Player)
    assert not kind.methods
    assert not kind.soft_state


def test_an_instance_made_by_hand_says_that_it_has_no_state() -> None:
    with pytest.raises(OutsideGrain, match=r"self\.profile is there from on_activate on"):
        _ = Player().profile
    assert repr(Player.profile) == "<persistent state 'profile'>"


def without_annotation() -> type:
    class Bare(Grain):
        profile = persistent(Profile)

    return Bare


def with_another_annotation() -> type:
    class Bare(Grain):
        profile: Profile = persistent()

    return Bare


def with_a_bare_annotation() -> type:
    class Bare(Grain):
        profile: Persistent = persistent()  # type: ignore[type-arg] # pyright: ignore[reportMissingTypeArgument] - the mistake

    return Bare


def with_a_class_that_wants_arguments() -> type:
    class Bare(Grain):
        profile: Persistent[Named] = persistent()

    return Bare


def with_a_factory_that_wants_arguments() -> type:
    class Bare(Grain):
        wrong: Any = Named
        profile: Persistent[Named] = persistent(wrong)

    return Bare


def with_nothing_to_start_from() -> type:
    class Bare(Grain):
        profile: Persistent[Profile | None] = persistent()

    return Bare


def with_nothing_to_start_from_in_other_words() -> type:
    class Bare(Grain):
        profile: Persistent[Optional[Profile]] = persistent()  # noqa: UP045 - the other words

    return Bare


def with_one_name_for_two() -> type:
    class Bare(Grain):
        profile: Persistent[Profile] = persistent(Profile)
        other: Persistent[Profile] = persistent(Profile, name="profile")

    return Bare


def with_the_name_of_soft_state() -> type:
    class Bare(Grain):
        names: list[str] = soft_state(default_factory=list, name="profile")
        profile: Persistent[Profile] = persistent(Profile)

    return Bare


def with_slots() -> type:
    class Bare:
        __slots__ = ()
        profile: Persistent[Profile] = persistent(Profile)

        async def method(self) -> None: ...

    return Bare


def with_the_name_of_something_of_the_base() -> type:
    class Bare(Grain):
        key: Persistent[str] = persistent(str)  # type: ignore[assignment] # pyright: ignore[reportIncompatibleMethodOverride] - the mistake

    return Bare


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (
            without_annotation,
            r"profile: without an annotation nobody knows what is stored; write profile: Persistent\[",
        ),
        (with_another_annotation, r"annotated as <class .*Profile'>, and not as Persistent\[…\]"),
        (with_a_bare_annotation, r"and not as Persistent\[…\]"),
        (with_a_class_that_wants_arguments, r"Named'> wants arguments .*persistent\(default_factory\)"),
        (with_a_factory_that_wants_arguments, r"Named'> wants arguments .*persistent\(default_factory\)"),
        (with_nothing_to_start_from, r"what it starts from cannot be told from .*None; say what it starts from"),
        (with_nothing_to_start_from_in_other_words, r"what it starts from cannot be told from"),
        (with_one_name_for_two, r"'profile' and the persistent state 'other' would have one name, 'profile'"),
        (with_the_name_of_soft_state, r"the soft state 'names' and the persistent state 'profile' would have one name"),
        (with_slots, r"has __slots__ and no __dict__, so the persistent state 'profile' has no place"),
        (with_the_name_of_something_of_the_base, r"'key' hides what Grain offers"),
    ],
)
def test_a_wrong_declaration_is_refused_where_it_is_written(make: Callable[[], type], what: str) -> None:
    with pytest.raises(InvalidGrain, match=what):
        grain(make())


@pytest.mark.parametrize("name", ["", "a b", "a\n", "x" * 65, "1st", 3])
def test_names_that_cannot_be_stored_are_refused(name: Any) -> None:
    with pytest.raises(InvalidGrain, match="a name of the form"):
        persistent(Profile, name=name)


def test_a_factory_that_is_none_is_refused() -> None:
    wrong: Any = Profile()
    with pytest.raises(InvalidGrain, match="without arguments is wanted"):
        persistent(wrong)


def test_a_name_that_only_type_checkers_know_is_refused_when_a_silo_would_need_it() -> None:
    class Local(msgspec.Struct):
        number: int = 0

    @grain
    class Bare(Grain):
        local: Persistent[Local] = persistent()
        told: Persistent[Local] = persistent(Local)

    with pytest.raises(InvalidGrain, match=r"not defined at run time; write persistent\(<class>\)"):
        field_of(Bare, "local").resolve(forward_references=False)
    field_of(Bare, "told").resolve(forward_references=False)
    assert field_of(Bare, "told").default() == Local()


def test_a_dataclass_refuses_it_as_a_default() -> None:
    with pytest.raises(ValueError, match="mutable default"):

        @dataclasses.dataclass
        class _Wrong:
            profile: Persistent[Profile] = persistent(Profile)  # noqa: RUF009 - the mistake
