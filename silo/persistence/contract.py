"""The contract of grain storage: the states of grains, by name, changed by compare-and-set within a fence.

Two numbers guard a grain's states. The *etag* of a state, chosen by its writer, changes with every write; a write names
the one that it replaces. The *fence* of a grain is the highest epoch under which its states were asked for or changed;
who comes with a lower one was replaced, and neither reads nor writes any more. So nothing that a replaced activation
still sends takes effect once its successor has read, however late it arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from silo.directory.addresses import EPOCH_MAX, GrainId
from silo.directory.errors import InvalidIdentity

NO_ETAG: Final = ""
"""The etag of a state that was never written: a write that expects it inserts, and replaces nothing."""
FENCE_KEPT_S: Final = 24 * 60 * 60
"""How long the fence of a grain that has no stored state is remembered, from the last time that it was raised.

Silos send nothing that is as old as that, so no later write can need it."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Which activation asks: the holder of its grain's entry, by that entry."""

    grain: GrainId
    epoch: int
    activation: str

    def __post_init__(self) -> None:
        if not 0 < self.epoch < EPOCH_MAX:
            raise InvalidIdentity(f"epoch {self.epoch} is out of range: epochs are above 0 and below 2**53")


@dataclass(frozen=True, slots=True)
class StateBody:
    """A value as it is stored.

    Args:
        schema: the form of the value, from 1 on.
        codec: the id of the codec that wrote the bytes.
    """

    schema: int
    codec: int
    body: bytes


@dataclass(frozen=True, slots=True)
class StoredState:
    """What stands under one name. A state that was cleared has an etag, and no body."""

    etag: str = NO_ETAG
    body: StateBody | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """One compare-and-set: put this under the name, if what stands there is still as the writer knows it.

    Args:
        expected: the etag that must stand there.
        replaces: whether the writer knows of a stored value; where it knows of none, nothing at all may stand there,
            too: what is left of a state that was cleared long ago goes in time.
        etag: the new one, never used before. It tells whether a change whose answer was lost was carried out.
        body: the new value; None clears the state.
    """

    name: str
    expected: str
    replaces: bool
    etag: str
    body: StateBody | None


@dataclass(frozen=True, slots=True)
class Superseded:
    """Refused: the grain's states have been claimed under this epoch, by another activation."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Written:
    """The change was carried out, now or by an earlier try whose answer was lost."""


@dataclass(frozen=True, slots=True)
class Conflicting:
    """Refused: this etag stands there, and not the expected one."""

    etag: str


Reading = list[StoredState] | Superseded
WriteOutcome = Written | Conflicting | Superseded


class GrainStorage(Protocol):
    """The stored states of grains. Losing is no error: the answer says who was there.

    Both methods raise StorageUnavailable where nothing was read or changed, and StoredStateUnreadable for what another
    release has stored; it is left alone.
    """

    async def open(self) -> None:
        """Prove that the store can carry states, so that mistakes show at start.

        Raises:
            StorageUnavailable: it could not be asked.
            InvalidSettings: it can be asked but will not do.
        """
        ...

    async def read(self, claim: Claim, names: Sequence[str]) -> Reading:
        """The states of these names, in their order, once the fence stands at the claim's epoch."""
        ...

    async def write(self, claim: Claim, change: Change) -> WriteOutcome:
        """Carry out a change, and raise the fence to the claim's epoch; both or neither.

        The same change sent twice is carried out once, and answered alike.

        Raises:
            StorageOutcomeUnknown: the change may have been carried out, or may still be.
        """
        ...

    async def close(self) -> None:
        """Let go of connections that this storage opened itself."""
        ...
