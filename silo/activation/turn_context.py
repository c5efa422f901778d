"""Which turn this code belongs to: what a call made now inherits, and what may not be awaited."""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from silo.activation.activation import Activation
    from silo.routing.call import Call


class TurnContext(msgspec.Struct, frozen=True):
    """The turn, or the lifecycle hook, in which code runs.

    Args:
        call: the call that is being answered; None in a hook.
        deadline: the loop's time by which it must be done; None for no limit.
        awaited_by: in a hook, a call that waits for its end: one that the grain is being activated for.
    """

    activation: Activation
    call: Call | None
    deadline: float | None
    awaited_by: Call | None = None

    @property
    def path(self) -> tuple[tuple[str, int], ...]:
        """The turns that wait for whatever this one calls, outermost first."""
        call = self.call or self.awaited_by
        if call is None:
            return ()
        return (*call.path, (str(self.activation.id), call.id))


current_turn: contextvars.ContextVar[TurnContext | None] = contextvars.ContextVar("silo_current_turn", default=None)
