"""When a process of ours serves and when it is to end, as those around it say and see it.

SIGTERM or SIGINT: drain, then exit with 0. The second of them: exit at once, with 128 plus its number (143, 130).
SIGQUIT: write the stacks of all threads and all tasks to standard error, and go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Generator

from silo.logs import get_logger

READY = "silo ready:"
"""How the one line begins that a silo process writes to standard output once it serves."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
STDERR_FD = 2

log = get_logger(__name__)


class StopRequest:
    """The wish that this process end, made by a signal or by the end of its parent; whoever waits for it acts."""

    def __init__(self, end_now: Callable[[int], None]) -> None:
        self._end_now = end_now
        self._made = asyncio.Event()
        self.because = ""

    @property
    def is_made(self) -> bool:
        return self._made.is_set()

    async def made(self) -> None:
        await self._made.wait()

    def on_signal(self, number: signal.Signals) -> None:
        """The first signal asks; the next one does not ask."""
        if self._made.is_set():
            self._end_now(128 + number)
        else:
            self.make(number.name)

    def make(self, because: str) -> None:
        if not self._made.is_set():
            self.because = because
            self._made.set()


class _Parent(asyncio.Protocol):
    """The pipe from the process that started this one; its end is the parent's."""

    def __init__(self, request: StopRequest) -> None:
        self._request = request

    def connection_lost(self, exc: Exception | None) -> None:
        self._request.make("the process that started this one has ended")


@contextlib.asynccontextmanager
async def stop_request(
    *, with_parent: bool = False, stacks: bool = False, end_now: Callable[[int], None] | None = None
) -> AsyncGenerator[StopRequest]:
    """Listen to the signals (and, if asked, to the end of standard input) for as long as the block runs.

    With `stacks`, SIGQUIT shows what all threads and tasks are doing.
    """
    loop = asyncio.get_running_loop()
    request = StopRequest(end_now if end_now is not None else _end_now)
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, request.on_signal, number)
    pipe = None
    if with_parent:
        pipe, _ = await loop.connect_read_pipe(lambda: _Parent(request), sys.stdin)
    try:
        with _stacks_on_sigquit() if stacks else contextlib.nullcontext():
            yield request
    finally:
        if pipe is not None:
            pipe.close()
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)


def _end_now(code: int) -> None:
    """The end without goodbye: others take over what was here once the lease has run out."""
    log.warning("silo.aborted", code=code)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextlib.contextmanager
def _stacks_on_sigquit() -> Generator[None]:
    """Stacks come from a handler in C, which works where the loop is stuck; it then has the loop list its tasks."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGQUIT, _dump_tasks)
    faulthandler.register(signal.SIGQUIT, file=STDERR_FD, all_threads=True, chain=True)
    try:
        yield
    finally:
        faulthandler.unregister(signal.SIGQUIT)
        loop.remove_signal_handler(signal.SIGQUIT)


def _dump_tasks() -> None:
    for task in asyncio.all_tasks():
        task.print_stack(file=sys.stderr)
    sys.stderr.flush()
