"""The parts of a run, one after the other, each with what the callers saw meanwhile: the rows of the table."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from samples.rolling.load import Tally


@dataclass(frozen=True)
class Step:
    """What happened, how long it took, and what the callers saw of it."""

    what: str
    seconds: float
    calls: int
    calls_per_s: float
    slowest_ms: float
    moves: int
    lost: int
    repeated: int


@dataclass
class _Begun:
    """The step that is going on, and what the tally said when it began."""

    what: str
    expected_s: float
    at: float
    answered: int
    moves: int
    lost: int
    repeated: int


@dataclass
class Steps:
    """The steps of a run.

    Args:
        expected_s: how long all of them may take together, for the progress bar.
        on_done: told of each step that has ended.
    """

    tally: Tally
    expected_s: float
    on_done: Callable[[Step], None] = lambda step: None
    done: list[Step] = field(default_factory=list[Step])
    _passed_s: float = 0.0
    _begun: _Begun | None = None

    @contextlib.contextmanager
    def step(self, what: str, *, expected_s: float) -> Generator[None]:
        """Do one part of the run inside the block."""
        tally = self.tally
        tally.slowest_s = 0.0
        self._begun = _Begun(
            what, expected_s, time.monotonic(), tally.answered, tally.moves, tally.lost, tally.repeated
        )
        yield
        step = self._measure(self._begun)
        self._begun = None
        self._passed_s += expected_s
        self.done.append(step)
        self.on_done(step)

    @property
    def current(self) -> Step | None:
        """The step that is going on, as far as it is."""
        return self._measure(self._begun) if self._begun is not None else None

    @property
    def progress(self) -> float:
        """From 0 to 1."""
        begun = self._begun
        within = min(time.monotonic() - begun.at, begun.expected_s) if begun is not None else 0.0
        return min(1.0, (self._passed_s + within) / self.expected_s)

    @property
    def slowest_ms(self) -> float:
        """The longest call of all steps that have ended."""
        return max((step.slowest_ms for step in self.done), default=0.0)

    def _measure(self, begun: _Begun) -> Step:
        tally = self.tally
        seconds = time.monotonic() - begun.at
        calls = tally.answered - begun.answered
        return Step(
            what=begun.what,
            seconds=round(seconds, 3),
            calls=calls,
            calls_per_s=round(calls / seconds, 1) if seconds > 0 else 0.0,
            slowest_ms=round(tally.slowest_s * 1000, 1),
            moves=tally.moves - begun.moves,
            lost=tally.lost - begun.lost,
            repeated=tally.repeated - begun.repeated,
        )
