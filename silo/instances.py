"""Grain instances: how the runtime makes one, and what it asks of one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Any, cast

from silo.grain import bound
from silo.grain_context import GrainContext, being_built
from silo.kinds import GrainKind
from silo.migration.participants import (
    GRAIN_PART,
    HOOK_ERRORS,
    SYSTEM_PREFIX,
    ContextPart,
    Part,
    Participant,
    participant_part,
)
from silo.persistence.state_part import StatePart
from silo.soft_state import SoftStatePart

MIGRATION_COST_DEFAULT = 1.0
"""What an ordinary grain costs to move; a plain figure for comparing grains with each other."""


def build_instance(kind: GrainKind, context: GrainContext) -> object:
    """A new instance that knows its activation before its `__init__` runs; raises what that raises."""
    cls: Any = kind.cls
    instance: Any = bound(cls.__new__(cls), context)
    token = being_built.set(context)
    try:
        instance.__init__()
    finally:
        being_built.reset(token)
    return cast("object", instance)


def parts_of(
    kind: GrainKind,
    instance: object,
    participants: Iterable[Participant] = (),
    system: Iterable[Participant] = (),
) -> tuple[Part, ...]:
    """All that hands over soft state, in the order of dehydration: the grain's hook, fields, participants, system."""
    hooks = kind.hooks
    own = ContextPart(
        GRAIN_PART,
        hooks.on_dehydrate and partial(hooks.on_dehydrate, instance),
        hooks.on_rehydrate and partial(hooks.on_rehydrate, instance),
    )
    return (
        own,
        *(SoftStatePart(field, instance) for field in kind.soft_state),
        *(participant_part(each) for each in participants),
        *(participant_part(each, SYSTEM_PREFIX) for each in system),
        *(StatePart(field, instance) for field in kind.persistent),
    )


def refusal_to_migrate(kind: GrainKind, instance: object) -> str:
    """Why the grain does not want to be moved now, by its own `can_migrate`; empty where it agrees. Moves nothing."""
    if kind.hooks.can_migrate is None:
        return ""
    try:
        agrees = kind.hooks.can_migrate(instance)
    except HOOK_ERRORS as error:
        return f"can_migrate raised {type(error).__name__}: {error}"
    return "" if agrees else "can_migrate said no"


def migration_cost(kind: GrainKind, instance: object) -> float:
    """What moving the grain costs, by its own `migration_cost`; raises ValueError where that is no number from 0 on."""
    if kind.hooks.migration_cost is None:
        return MIGRATION_COST_DEFAULT
    cost = kind.hooks.migration_cost(instance)
    if isinstance(cost, bool) or not isinstance(cost, (int, float)) or not 0 <= cost < math.inf:
        raise ValueError(f"migration_cost of {kind.name!r} gave {cost!r}; a finite number from 0 on is wanted")
    return float(cost)
