"""What an activation offers its grain: the one door through which grain code reaches the runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from silo.activation.turn_context import current_turn
from silo.directory.addresses import GrainId, SiloAddress
from silo.directory.errors import SiloError
from silo.migration.outcome import MigrationOutcome
from silo.migration.participants import Participant

if TYPE_CHECKING:
    from silo.activation.timers import GrainTimer, TimerCallback
    from silo.kinds import OnBusy

T = TypeVar("T")


class OutsideGrain(SiloError, RuntimeError):
    """Something that only a grain in a silo can do was tried elsewhere."""


class MoveRequest(Protocol):
    """A move that was asked for. It happens whether or not anybody awaits it.

    Awaiting it gives the outcome. A turn that awaits the move of its own grain would wait for itself; that is refused
    at once.
    """

    def __await__(self) -> Generator[Any, None, MigrationOutcome]: ...


class GrainContext(Protocol):
    """The runtime's side of one activation, as its grain sees it."""

    @property
    def id(self) -> GrainId:
        """Which grain this is."""
        ...

    @property
    def epoch(self) -> int:
        """The epoch of the entry that this activation holds."""
        ...

    @property
    def silo_name(self) -> str:
        """The name of the silo that hosts it."""
        ...

    def reference(self, kind: type[T], key: str) -> T:
        """A reference to another grain, whose calls come from this one."""
        ...

    def request_move(
        self, to: str | SiloAddress | None, reason: str, force: bool, on_busy: OnBusy | None
    ) -> MoveRequest:
        """Move this activation once its current turn has ended; placement decides where `to` is None."""
        ...

    def create_task(self, coroutine: Coroutine[Any, Any, T], name: str | None) -> asyncio.Task[T]:
        """Run a coroutine beside the turns, no longer than the activation."""
        ...

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
        """Call a method of the grain later, and again, as turns of it."""
        ...

    def block_migration(self, why: str) -> AbstractContextManager[None]:
        """Do not move the grain while the block is open."""
        ...

    def request_deactivation(self) -> None:
        """End this activation once its current turn has ended."""
        ...

    def add_participant(self, participant: Participant) -> None:
        """Let the object take part in moves; raises InvalidGrain."""
        ...

    def remove_participant(self, participant: Participant) -> None:
        """No longer let it take part."""
        ...


being_built: ContextVar[GrainContext | None] = ContextVar("being_built", default=None)
"""The activation whose grain's constructor runs in this task."""


def current_activation() -> GrainContext | None:
    """The activation whose turn, hook or constructor runs in this task; None outside of grains."""
    built = being_built.get()
    if built is not None:
        return built
    turn = current_turn.get()
    return None if turn is None else turn.activation
