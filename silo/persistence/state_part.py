"""A persistent state as part of a migration payload: it travels with its etag, so that nothing is read on arrival."""

from __future__ import annotations

from typing import cast

from silo.migration.lifecycle import Arrival, Departure
from silo.migration.participants import SYSTEM_PREFIX
from silo.persistence.declaration import PersistentField

STATE_PREFIX = SYSTEM_PREFIX + "state/"


def is_system_part(name: str) -> bool:
    """Whether an entry is of the runtime's own, and not of a state that the kind declares."""
    return name.startswith(SYSTEM_PREFIX) and not name.startswith(STATE_PREFIX)


class StatePart:
    """One persistent state of one instance; see `silo.migration.participants.Part`.

    Args:
        weighs: whether it is only to be known how much would travel; then nothing is handed over.
    """

    __slots__ = ("_field", "_instance", "_weighs")
    skippable = False
    schema = 1

    def __init__(self, field: PersistentField, instance: object, *, weighs: bool = False) -> None:
        self._field = field
        self._instance = instance
        self._weighs = weighs

    @property
    def name(self) -> str:
        """The entry's name."""
        return STATE_PREFIX + self._field.name

    def dehydrate(self, departure: Departure) -> object:
        """The value with its etag, unsaved changes included; raises where memory and storage differ."""
        state = self._field.of(self._instance)
        return state.snapshot if self._weighs else state.hand_over()

    def rehydrate(self, value: object, schema: int, arrival: Arrival) -> None:
        """Take them back."""
        etag, exists, carried = cast("tuple[str, bool, object]", value)
        self._field.of(self._instance).restore(etag, exists, carried)
