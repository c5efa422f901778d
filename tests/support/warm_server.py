"""A warm process: it has imported what the processes of the tests begin with, and forks one of them when asked.

`python -m tests.support.warm_server FD`. What it forks goes on as `python -m MODULE …` or `python -c TEXT …` would:
with arguments, environment, working directory, session and standard streams of its own, and it ends as a Python process
does. No thread runs here, no event loop, and nothing of gRPC but its import: the forked share memory that nobody
changes, and no more.

Who forks is not to be the parent. A process in between forks once more and ends; what it leaves behind falls to the
nearest ancestor that takes in orphans, which is the asker (`tests.support.warm_popen`). So the asker waits for its
child, and kills it, as it does for one that it has started itself.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

IMPORTED: Final = (
    "silo.cli",
    "silo.client",
    "silo.configuration",
    "silo.dev_cluster",
    "silo.directory.members_reader",
    "silo.management",
    "silo.management_service",
    "silo.messaging.direct_transport",
    "silo.messaging.local_transport",
    "silo.messaging.grpc_transport",
    "silo.serving",
    "silo.testing.witness",
    "typer._adapters",
    "uvloop",
    "tests.support.warm_popen",
)
"""What silos and callers import, and what they, typer too, import only when it is used. No grains: a process has those
that it is told to have."""
ORDER_BYTES_MAX: Final = 1 << 17
STREAMS: Final = 3
WARM: Final = b"warm"
"""What it says once it can be asked; then it answers with pids."""
UNBUFFERED: Final = "PYTHONUNBUFFERED"
FAULT_HANDLER: Final = "PYTHONFAULTHANDLER"
PATH: Final = "PYTHONPATH"
LINES, BLOCKS = 1, -1
"""How much a stream keeps back, as `open` takes it."""
ROOT: Final = os.getcwd()


@dataclass(frozen=True, slots=True)
class Order:
    """A process to begin, in a session of its own."""

    option: str
    """`-m` or `-c`."""
    program: str
    """The module of the one, the text of the other."""
    arguments: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    forks: bool = False
    """Whether what it starts is forked by a warm one, too."""

    def to_bytes(self) -> bytes:
        fields = [self.option, self.program, list(self.arguments), dict(self.environment), self.folder, self.forks]
        return json.dumps(fields).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Order:
        return cls(*json.loads(data))


def warm_up() -> Mapping[str, str]:
    """Import it all; returns the variables that the imports have set, for those who begin without them.

    The garbage collector is kept off it: it would have every child copy what it looks at.
    """
    before = set(os.environ)
    for name in IMPORTED:
        with contextlib.suppress(ModuleNotFoundError):  # uvloop is not to be had everywhere
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    return {name: value for name, value in os.environ.items() if name not in before}


def serve(asker: socket.socket, defaults: Mapping[str, str]) -> Order | None:
    """Fork what is ordered until the asker hangs up: None. In what was forked it returns, too: with the order."""
    asker.send(WARM)
    while True:
        data, streams, _, _ = socket.recv_fds(asker, ORDER_BYTES_MAX, STREAMS)
        if not data:
            return None
        answer, to_answer = os.pipe()
        between = os.fork()
        if between == 0:
            pid = os.fork()
            if pid != 0:
                os.write(to_answer, str(pid).encode())
                os._exit(0)
            for each in (answer, to_answer):
                os.close(each)
            asker.close()
            order = Order.from_bytes(data)
            _become(order, defaults, streams)
            return order
        os.close(to_answer)
        for stream in streams:
            os.close(stream)
        os.waitpid(between, 0)  # from here on the process is the asker's
        asker.send(os.read(answer, 32))
        os.close(answer)


def beside_a_warm_one(begun: Order, defaults: Mapping[str, str]) -> Order | None:
    """Leave a warm process beside this one, which has it fork what it starts; in what was forked it returns, too.

    It goes without uvloop, which starts processes in a way of its own.
    """
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        return serve(its, defaults)
    its.close()
    assert ours.recv(len(WARM)) == WARM
    warm_popen = importlib.import_module("tests.support.warm_popen")
    warm_popen.WarmPopen.server = warm_popen.WarmServer(ours)
    setattr(subprocess, "Popen", warm_popen.WarmPopen)  # noqa: B010 - what a type checker would not have assigned
    sys.modules["uvloop"] = cast("Any", None)
    return begun


def _become(order: Order, defaults: Mapping[str, str], streams: Sequence[int]) -> None:
    """Take on what the exec of a fresh process would have given this one."""
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in streams:
        os.close(stream)
    os.chdir(order.folder)
    former = os.environ.get(PATH, "").split(os.pathsep)
    os.environ.clear()
    os.environ.update({**defaults, **order.environment})
    found = [path for path in sys.path if path not in (ROOT, *former)]
    sys.path[:] = [order.folder, *filter(None, order.environment.get(PATH, "").split(os.pathsep)), *found]
    importlib.invalidate_caches()
    lines = bool(order.environment.get(UNBUFFERED))
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - for as long as the process lives
    sys.stdout = open(1, "w", LINES if lines else BLOCKS, "utf-8", closefd=False)  # noqa: SIM115 - likewise
    sys.stderr = open(2, "w", LINES, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115 - likewise
    if order.environment.get(FAULT_HANDLER):
        faulthandler.enable(2)
    sys.argv[:] = [order.option, *order.arguments]


if __name__ == "__main__":
    set_by_imports = warm_up()
    begun = serve(socket.socket(fileno=int(sys.argv[1])), set_by_imports)
    if begun is not None and begun.forks:
        begun = beside_a_warm_one(begun, set_by_imports)
    if begun is not None and begun.option == "-m":
        runpy.run_module(begun.program, run_name="__main__", alter_sys=True)
    elif begun is not None:
        exec(compile(begun.program, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 - it is what -c does
