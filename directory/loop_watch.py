"""Watches, from the lease's thread, whether the event loop still turns.

The lease has a thread of its own so that a turn that computes for long does not cost the silo its life. A loop that
never comes back must not be protected by it for ever, though: the silo would hold its grains and answer nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Final

from silo.directory.logs import get_logger

_log = get_logger("silo.membership")

LOOP_STUCK_EXIT_CODE: Final = 70
"""What a process ends with whose event loop was stuck: EX_SOFTWARE of sysexits."""
BEAT_EVERY_S: Final = 0.25
LOOP_SLOW_AFTER_S: Final = 1.0
"""A loop that is silent for longer is written about, once per stall, with what it was doing."""
FRAMES_SHOWN: Final = 6


def end_process(stuck_s: float) -> None:
    """Show all stacks on stderr and end the process at once: nothing that a stuck loop owns can be waited for."""
    _log.critical("membership.loop_stuck", silent_s=round(stuck_s), exit_code=LOOP_STUCK_EXIT_CODE)
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # stderr may be closed; ending matters more
        faulthandler.dump_traceback(all_threads=True)
    os._exit(LOOP_STUCK_EXIT_CODE)


class LoopWatch:
    """Beats on the loop; `look` is called from the other thread.

    Args:
        name_work: says what a frame works at, for the log; empty where there is nothing to say.
    """

    def __init__(
        self,
        loop_stuck_after_s: float,
        on_stuck: Callable[[float], None],
        clock: Callable[[], float],
        name_work: Callable[[FrameType | None], str] = lambda _: "",
    ) -> None:
        self._name_work = name_work
        self._loop_stuck_after_s = loop_stuck_after_s
        self._on_stuck = on_stuck
        self._clock = clock
        self._beats = 0
        self._beat_at = clock()
        self._lag_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._loop_thread = threading.get_ident()
        # of the looking thread
        self._beats_seen = -1
        self._looked_at: float | None = None
        self._silent_s = 0.0
        self._reported = False

    @property
    def lag_s(self) -> float:
        """How late the loop ran its latest timer, or how late the next one is by now; from any thread."""
        return max(self._lag_s, self._clock() - self._beat_at - BEAT_EVERY_S, 0.0)

    def start(self) -> None:
        """Begin to beat; on the loop."""
        self._loop_thread = threading.get_ident()
        self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + BEAT_EVERY_S
        self._timer = loop.call_at(due, self._beat, due)

    def _beat(self, due: float) -> None:
        self._lag_s = asyncio.get_running_loop().time() - due
        self._beat_at = self._clock()
        self._beats += 1
        self._schedule()

    def look(self, step_s_max: float) -> bool:
        """Whether the loop still turns; called at least every `step_s_max`.

        Time in which this thread did not run either, because the process was stopped or the machine suspended, is not
        held against the loop.
        """
        now = self._clock()
        if self._beats != self._beats_seen or self._looked_at is None:
            self._beats_seen, self._silent_s, self._reported = self._beats, 0.0, False
        else:
            self._silent_s += min(now - self._looked_at, step_s_max)
        self._looked_at = now
        if self._silent_s > LOOP_SLOW_AFTER_S and not self._reported:
            self._reported = True
            frame = self._frame()
            _log.warning(
                "membership.loop_slow",
                busy_s=round(self._silent_s, 1),
                work=self._work_of(frame),
                stack="".join(traceback.format_stack(frame)[-FRAMES_SHOWN:]) if frame else "(its thread is gone)",
            )
        if self._silent_s < self._loop_stuck_after_s:
            return True
        self._on_stuck(self._silent_s)
        return False

    def _work_of(self, frame: FrameType | None) -> str:
        """What runs there, by name. The thread goes on meanwhile: what is found half made may cost the name, and not
        the lease, which would end with this thread."""
        try:
            return self._name_work(frame)
        except Exception as error:
            return f"(not to be named: {error!r})"

    def _frame(self) -> FrameType | None:
        """Where the loop's thread is."""
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage] - documented, and the one way to see them
        return frames.get(self._loop_thread)
