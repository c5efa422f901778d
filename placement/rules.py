"""What people write where a placement is asked for, made into policies and filters.

A rule is a policy, the name of a shipped one, a filter, or several filters and at most one policy in a list:
`"prefer-local"`, `ActivationCountPlacement(choose_out_of=3)`, `[Require(zone="a"), "consistent-hash"]`.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from silo.directory.errors import InvalidSettings
from silo.placement.policies import (
    ActivationCountPlacement,
    ConsistentHashPlacement,
    PreferLocalPlacement,
    RandomPlacement,
)
from silo.placement.policy import PlacementFilter, PlacementPolicy
from silo.placement.resources import ResourceOptimizedPlacement

PlacementRule = PlacementPolicy | PlacementFilter | str | Sequence[PlacementPolicy | PlacementFilter | str]

SHIPPED: Mapping[str, Callable[[], PlacementPolicy]] = {
    RandomPlacement.name: RandomPlacement,
    PreferLocalPlacement.name: PreferLocalPlacement,
    ConsistentHashPlacement.name: ConsistentHashPlacement,
    ActivationCountPlacement.name: ActivationCountPlacement,
    ResourceOptimizedPlacement.name: ResourceOptimizedPlacement,
}
"""The policies that can be asked for by name."""


@dataclass(frozen=True, slots=True)
class ParsedRule:
    """A checked rule: its policy, if it has one, and its filters in the order in which they apply."""

    policy: PlacementPolicy | None = None
    filters: tuple[PlacementFilter, ...] = ()


def policy_named(name: str) -> PlacementPolicy:
    """A new policy of this name; raises InvalidSettings with a suggestion."""
    make = SHIPPED.get(name)
    if make is None:
        near = difflib.get_close_matches(name.lower().replace("_", "-"), SHIPPED, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else f": the names are {', '.join(map(repr, SHIPPED))}"
        raise InvalidSettings(f"there is no placement policy named {name!r}{hint}")
    return make()


def parse_rule(
    rule: PlacementRule | None, where: str, named: Callable[[str], PlacementPolicy] = policy_named
) -> ParsedRule:
    """The policy and the filters of a rule.

    Args:
        rule: as written; None asks for nothing.
        where: who wrote it, for messages, such as `@grain(placement=…) of kind 'room'`.
        named: makes a policy of a name.

    Raises:
        InvalidSettings: the rule is not one; the message says what is wrong and how to write it.
    """
    policy: PlacementPolicy | None = None
    filters: list[PlacementFilter] = []
    for part in _parts(rule):
        try:
            parsed = _parse_part(part, named)
        except InvalidSettings as error:
            raise InvalidSettings(f"{where}: {error}") from None
        if _is_filter(parsed):
            filters.append(cast("PlacementFilter", parsed))
        elif policy is None:
            policy = cast("PlacementPolicy", parsed)
        else:
            first, second = policy.name, cast("PlacementPolicy", parsed).name
            raise InvalidSettings(f"{where}: two policies, {first!r} and {second!r}; one rule has at most one")
    return ParsedRule(policy, tuple(filters))


def _parts(rule: object) -> Sequence[object]:
    if rule is None:
        return ()
    if isinstance(rule, (list, tuple)):
        return cast("Sequence[object]", rule)
    return (rule,)


def _parse_part(part: object, named: Callable[[str], PlacementPolicy]) -> PlacementPolicy | PlacementFilter:
    if isinstance(part, str):
        return named(part)
    if isinstance(part, type):
        raise InvalidSettings(f"{part.__name__} is a class: write {part.__name__}(...)")
    if _is_filter(part):
        return cast("PlacementFilter", part)
    choose: Any = getattr(part, "choose", None)
    if not callable(choose):
        raise InvalidSettings(f"{part!r} is no placement policy (it has no method choose), filter, or name")
    if inspect.iscoroutinefunction(choose):
        raise InvalidSettings(f"{type(part).__name__}.choose is async; a policy chooses without waiting for anything")
    if inspect.iscoroutinefunction(getattr(part, "attach", None)):
        raise InvalidSettings(f"{type(part).__name__}.attach is async; start what it needs and return the teardown")
    if not isinstance(getattr(part, "name", None), str):
        raise InvalidSettings(f"{type(part).__name__} has no name: give it one, such as name = 'by-tenant'")
    return cast("PlacementPolicy", part)


def _is_filter(part: object) -> bool:
    return callable(getattr(part, "exclude", None)) and isinstance(getattr(part, "advisory", None), bool)
