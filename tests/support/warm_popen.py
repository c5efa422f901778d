"""Processes that need not import everything once more: where a test starts `python -m silo …`, a warm one forks it.

They are processes like any other: children of this one, with a pid to signal, an exit code to wait for, and the streams
that they were given. Only the second or so of processor time is gone that each took for its imports. What a
sample starts is forked, too; what another process starts itself, and what a test marks as `fresh`, begins as
everywhere else.
"""

from __future__ import annotations

import ctypes
import inspect
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

from tests.support.warm_server import FAULT_HANDLER, ORDER_BYTES_MAX, PATH, UNBUFFERED, WARM, Order

ROOT: Final = Path(__file__).resolve().parents[2]
FORKED: Final = ("silo", "tests.process.callers", "tests.chaos.callers")
"""The modules that a warm process is asked for."""
SAMPLES: Final = "samples."
"""Before the name of a module that is asked for, too, and that starts silos itself: it has them forked likewise."""
IMPORTS_OURS: Final = "from silo."
"""Likewise a text with `-c`, if it has this."""
READ_AT_IMPORT: Final = ("PYTHON", "OTEL_", "GRPC_")
"""Beginnings of the names of variables that count before `main` does; who sets one gets a fresh process."""
SET_LATER: Final = {PATH, UNBUFFERED, FAULT_HANDLER}
TAKE_IN_ORPHANS: Final = 36
"""PR_SET_CHILD_SUBREAPER of Linux's prctl."""
ANSWER_BYTES_MAX: Final = 32
ANSWERS_WITHIN_S: Final = 60.0
"""On a machine that is busy with other tests."""
ENDED: Final = "the warm process has ended; what it had to say stands in the output of these tests"


class WarmServer:
    """The process that forks.

    Args:
        at: where it can be asked, if somebody else has started it.
    """

    def __init__(self, at: socket.socket | None = None) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket = at
        self._turn = threading.Lock()
        self.forked: list[int] = []
        """The pids of all that it has begun."""

    def begin(self, order: Order, streams: Sequence[int]) -> int:
        """Have it fork one, which becomes a child of ours; its pid."""
        data = order.to_bytes()
        assert len(data) < ORDER_BYTES_MAX
        with self._turn, _taking_in_orphans():
            assert self._socket is not None, "it was not started"
            socket.send_fds(self._socket, [data], streams)
            answer = self._socket.recv(ANSWER_BYTES_MAX)
        assert answer, ENDED
        self.forked.append(int(answer))
        return self.forked[-1]

    def start(self) -> None:
        """Wait until it is warm, unless it is."""
        if self._socket is not None:
            return
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.warm_server", str(its.fileno())],
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                env={**os.environ, PATH: str(ROOT)},
                start_new_session=True,
            )
        ours.settimeout(ANSWERS_WITHIN_S)
        self._socket = ours
        assert ours.recv(ANSWER_BYTES_MAX) == WARM, ENDED

    def stop(self) -> None:
        """It ends when nobody can ask any more."""
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.wait()


class WarmPopen(subprocess.Popen[Any]):
    """A `Popen` that has its process forked by the warm one where it can, and else does what all others do."""

    server: WarmServer

    def _execute_child(self, *given: Any) -> None:
        inherited: Any = super()
        asked = inspect.signature(inherited._execute_child).bind(*given).arguments
        order = order_of(asked)
        if order is None:
            inherited._execute_child(*given)
            return
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        streams = [asked["p2cread"], asked["c2pwrite"], asked["errwrite"]]
        try:
            self.pid = self.server.begin(order, [own if own >= 0 else fd for fd, own in enumerate(streams)])
            self._child_created = True
        finally:
            inherited._close_pipe_fds(*(asked[pipe] for pipe in pipes))


def order_of(asked: Mapping[str, Any]) -> Order | None:
    """The order to the warm process for what Popen was asked for; None where that takes a fresh one."""
    command = asked["args"]
    if isinstance(command, str | bytes | os.PathLike) or not asked["start_new_session"] or asked["pass_fds"]:
        return None
    python, option, program, *arguments = [str(each) for each in cast("Sequence[object]", command)] + [""] * 3
    environment: Mapping[str, str] = os.environ if asked["env"] is None else asked["env"]
    is_sample = option == "-m" and program.startswith(SAMPLES)
    known = is_sample or (option == "-m" and program in FORKED) or (option == "-c" and IMPORTS_OURS in program)
    if python != sys.executable or not known or _early(environment) != _early(os.environ):
        return None
    return Order(option, program, arguments[:-3], environment, os.fspath(asked["cwd"] or os.getcwd()), is_sample)


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in environment.items() if name.startswith(READ_AT_IMPORT) and name not in SET_LATER
    }


@contextmanager
def _taking_in_orphans() -> Generator[None]:
    """For so long what loses its parent below this process becomes its child, and not that of pid 1."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(TAKE_IN_ORPHANS, 1, 0, 0, 0) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        prctl(TAKE_IN_ORPHANS, 0, 0, 0, 0)
