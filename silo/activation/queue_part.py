"""The queue of a grain that moves, by the numbers of its calls: what did not run at the old place is known at the new.

The calls themselves follow one by one. Should the old place die before that, their callers' silos ask the new one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from silo.directory.addresses import SiloAddress
from silo.migration.participants import DehydrateContext, RehydrateContext
from silo.routing.forwarded_calls import ForwardedCalls, Key

if TYPE_CHECKING:
    from silo.activation.activation import Activation


class QueuePart:
    """The calls of other silos that wait at an activation, and those that it shall never run."""

    name = "queue"
    schema = 1

    def __init__(self, activation: Activation, forwarded: ForwardedCalls) -> None:
        self._activation = activation
        self._forwarded = forwarded

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to tell."""
        return not (self._activation.turns.waiting_count or self._refused())

    def _refused(self) -> list[tuple[Key, float | None]]:
        return self._forwarded.refused_of(self._activation.id, self._activation.loop.time())

    def on_dehydrate(self, context: DehydrateContext) -> None:
        waiting = [call for call in self._activation.turns.waiting if call.task is None and not call.interrupted]
        context["waiting"] = [(str(call.origin), call.id) for call in waiting if call.origin is not None]
        context["refused"] = [(str(key.origin), key.id, left_s) for key, left_s in self._refused()]

    def on_rehydrate(self, context: RehydrateContext) -> None:
        now = self._activation.loop.time()
        self._activation.left_waiting = frozenset(
            Key(SiloAddress.parse(origin), call_id) for origin, call_id in context["waiting"]
        )
        for origin, call_id, left_s in context["refused"]:
            key, deadline = Key(SiloAddress.parse(origin), call_id), None if left_s is None else now + left_s
            self._forwarded.refuse(key, self._activation.id, deadline, now)
