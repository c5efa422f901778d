"""Which turn this code belongs to: what a call made now inherits, and what may not be awaited."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from silo.activation.activation import Activation
    from silo.class_checks import MethodSpec
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
        return () if call is None else _path_through(call)


class QuickTurn(msgspec.Struct, eq=False):
    """A turn that is run in its caller's own pass of the loop. Its call is made when somebody asks for it: few do.

    Args:
        began: when, in the loop's time.
        timeout_s: how long it may take, by whoever called; the turn in which he did so may allow less.
        outer: that turn; None where it was none.
        make_call: makes the call that this turn answers.
    """

    activation: Activation
    began: float
    method: MethodSpec
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    timeout_s: float | None
    outer: TurnContext | QuickTurn | None
    make_call: Callable[[QuickTurn], Call]
    value: Any = None
    """What it has returned, once it has."""
    made: Call | None = None

    @property
    def call(self) -> Call:
        """The call that is being answered."""
        if self.made is None:
            self.made = self.make_call(self)
            self.outer = None  # it has been taken over: turns that are over shall not hang together
        return self.made

    @property
    def deadline(self) -> float | None:
        """As of any turn."""
        if self.made is not None:
            return self.made.deadline
        deadline = None if self.timeout_s is None else self.began + self.timeout_s
        outer = None if self.outer is None else self.outer.deadline
        return deadline if outer is None or (deadline is not None and deadline <= outer) else outer

    @property
    def path(self) -> tuple[tuple[str, int], ...]:
        """As of any turn."""
        return _path_through(self.call)


def _path_through(call: Call) -> tuple[tuple[str, int], ...]:
    return (*call.path, (str(call.grain), call.id))


current_turn: contextvars.ContextVar[TurnContext | QuickTurn | None] = contextvars.ContextVar(
    "silo_current_turn", default=None
)
