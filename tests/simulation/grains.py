"""The grains of simulated clusters: counters that tell the witness all that they do.

A counter's soft state is how often it ran; the checker knows what that must be at any time.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from silo.directory.errors import NotExecuted, OutcomeUnknown
from silo.grain import Grain, grain, read_only, soft_state
from silo.grain_context import current_activation
from silo.migration.lifecycle import ActivationReason, DeactivationReason
from silo.reference import with_timeout
from silo.testing.witness import Ended, ListWitness, What


@dataclass
class Stage:
    """What the grains and callers of one run share: the witness, and the numbers they give out."""

    witness: ListWitness
    activations: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    calls: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _sent: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])

    def next_number(self, caller: str, grain: str) -> int:
        """The place of a call among those of its caller to its grain."""
        number = self._sent[caller, grain] = self._sent.get((caller, grain), 0) + 1
        return number


_stages: list[Stage] = []


@contextmanager
def staged(stage: Stage) -> Generator[Stage, None, None]:
    """Let the grains of this process tell their story to this stage."""
    _stages.append(stage)
    try:
        yield stage
    finally:
        _stages.remove(stage)


def current_stage() -> Stage:
    """The stage of the run that goes on."""
    return _stages[-1]


async def witnessed(
    send: Callable[[str], Awaitable[int]],
    *,
    caller: str,
    target: str,
    deadline_s: float,
    silo: str = "",
    interleaves: bool = False,
) -> int | None:
    """Make one call and tell the witness when it was sent and how it ended.

    Args:
        send: makes the call, given its id.
        interleaves: whether it is free of its caller's order.

    Returns:
        The answer; None where there was none.
    """
    stage = current_stage()
    call = f"call-{next(stage.calls)}"
    number = 0 if interleaves else stage.next_number(caller, target)
    stage.witness(
        What.CALL_SENT, call=call, caller=caller, grain=target, silo=silo, number=number, deadline_s=deadline_s
    )
    outcome, value, because = Ended.CANCELLED, None, ""
    try:
        value = await send(call)
        outcome = Ended.VALUE
    except NotExecuted as error:
        outcome, because = Ended.NOT_EXECUTED, repr(error)
    except OutcomeUnknown as error:
        outcome, because = Ended.OUTCOME_UNKNOWN, repr(error)
    except Exception as error:  # whatever it is, it is how the call ended
        outcome, because = Ended.APPLICATION_ERROR, repr(error)
    finally:
        stage.witness(What.CALL_ENDED, call=call, caller=caller, outcome=outcome, value=value, because=because)
    return value


class WitnessedGrain(Grain):
    """A counter of its own turns."""

    count: int = soft_state(default=0)

    def __init__(self) -> None:
        self._witness = current_stage().witness
        self._activation = f"{self.silo}#{next(current_stage().activations)}"
        self._silo = ""  # the incarnation; known once the entry is

    async def on_activate(self, reason: ActivationReason) -> None:
        activation: Any = current_activation()
        self._silo = str(activation.entry.silo)
        self._witness(
            What.OPENED,
            grain=str(self.id),
            activation=self._activation,
            silo=self._silo,
            value=self.count,
            because=reason.value,
        )

    async def on_deactivate(self, reason: DeactivationReason) -> None:
        self._witness(
            What.CLOSED, grain=str(self.id), activation=self._activation, silo=self._silo, because=reason.value
        )

    @contextmanager
    def _turn(self, call: str, *, interleaves: bool = False) -> Generator[None, None, None]:
        name, value = str(self.id), None
        self._witness(
            What.TURN_STARTED,
            grain=name,
            activation=self._activation,
            silo=self._silo,
            call=call,
            interleaves=interleaves,
        )
        try:
            yield
            value = self.count
        finally:
            self._witness(
                What.TURN_ENDED,
                grain=name,
                activation=self._activation,
                silo=self._silo,
                call=call,
                value=value,
                interleaves=interleaves,
            )


@grain(kind="counter", collect_after=4.0)
class Counter(WitnessedGrain):
    """Counts, at once or slowly; reads; moves itself."""

    async def increment(self, call: str, takes_s: float = 0.0) -> int:
        with self._turn(call):
            if takes_s > 0:
                await asyncio.sleep(takes_s)
            self.count += 1
        return self.count

    async def increment_and_move(self, call: str) -> int:
        with self._turn(call):
            self.count += 1
            self.migrate()
        return self.count

    @read_only
    async def read(self, call: str, takes_s: float = 0.0) -> int:
        with self._turn(call, interleaves=True):
            if takes_s > 0:
                await asyncio.sleep(takes_s)
        return self.count


@grain(kind="relay", collect_after=4.0)
class Relay(WitnessedGrain):
    """Calls counters in its turns."""

    async def forward(self, call: str, target: str, times: int) -> int:
        with self._turn(call):
            counter = self.grain(Counter, target)
            for _ in range(times):
                await witnessed(
                    with_timeout(counter, 3.0).increment,
                    caller=str(self.id),
                    target=f"counter/{target}",
                    deadline_s=3.0,
                    silo=self._silo,
                )
            self.count += 1
        return self.count


GRAINS = (Counter, Relay)
