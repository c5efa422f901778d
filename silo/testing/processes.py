"""Real silo processes for tests, demonstrations and benchmarks: started, stopped, killed, frozen, and always ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from silo.lifespan import READY

START_TIMEOUT_S = 30.0
"""How long a silo process may take until it says that it is ready."""
STOP_TIMEOUT_S = 60.0
"""How long it may take to drain and end before it is killed."""
LOG_TAIL_BYTES = 4000
"""How much of its log goes into the error about a process that did not start."""


class SiloProcessFailed(RuntimeError):
    """A silo process ended, or stayed silent, where it should have become ready."""


class SiloProcess:
    """One silo in a process of its own."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, endpoint: str, log: Path) -> None:
        self.name = name
        self.process = process
        self.endpoint = endpoint
        self.log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process.returncode is None

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """SIGTERM: it drains and ends; returns its exit code. It is killed if that takes too long."""
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(timeout_s):
                return await self.process.wait()
        except TimeoutError:
            return await self.kill()

    async def kill(self) -> int:
        """SIGKILL: a crash."""
        self.signal(signal.SIGKILL)
        return await self.process.wait()

    def pause(self) -> None:
        """SIGSTOP: it is frozen."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: it goes on, and does not know that time has passed."""
        self.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, by its own id; one that has ended gets none."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)


class ProcessCluster:
    """Silo processes of one cluster on this machine.

    ```python
    async with ProcessCluster(["app.rooms"], redis=server.url) as cluster:
        await cluster.start("silo-1")
        await cluster.start("silo-2")
        await cluster["silo-1"].kill()
    ```
    Whatever still runs at the end of the block is killed.

    Args:
        modules: what `silo run` is told to host.
        redis: the URL of a server.
        settings: settings by their dotted names, for every silo.
        environment: more variables for the processes.
        logs: where each process's log goes; a temporary directory if none is given.
    """

    def __init__(
        self,
        modules: Sequence[str],
        *,
        redis: str,
        cluster: str = "test",
        settings: Mapping[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
        logs: Path | None = None,
    ) -> None:
        self.redis = redis
        self.cluster = cluster
        self._modules = list(modules)
        self._settings = dict(settings or {})
        self._environment = dict(environment or {})
        self._logs = logs
        self._own_logs: tempfile.TemporaryDirectory[str] | None = None
        self._silos: dict[str, SiloProcess] = {}
        """By name; empty until one has served, which is to say that there is no cluster yet."""
        self._all: list[SiloProcess] = []

    async def __aenter__(self) -> ProcessCluster:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(silo.kill() for silo in self._all if silo.is_running))
        if self._own_logs is not None:
            self._own_logs.cleanup()

    def __getitem__(self, name: str) -> SiloProcess:
        return self._silos[name]

    @property
    def running(self) -> list[SiloProcess]:
        return [silo for silo in self._silos.values() if silo.is_running]

    @property
    def processes(self) -> Sequence[SiloProcess]:
        """Every process that was begun, in order; those that are not ready yet and those that have ended included."""
        return tuple(self._all)

    async def start(
        self,
        name: str,
        *,
        listen: str = "127.0.0.1:0",
        settings: Mapping[str, object] | None = None,
        options: Sequence[str] = (),
    ) -> SiloProcess:
        """Start a silo and wait until it serves; a name may be used again once its process has ended.

        Until one has served, it is started with `--bootstrap`: as the first of a new cluster.

        Args:
            options: more options of `silo run`, such as `["--advertise", "127.0.0.1:7000"]`.

        Raises:
            SiloProcessFailed: it ended or said nothing; the end of its log is in the message.
        """
        log = self._log_file(name)
        with log.open("ab") as stderr:
            process = await asyncio.create_subprocess_exec(
                *self._command(name, listen, settings or {}),
                *options,
                stdin=asyncio.subprocess.PIPE,  # how it learns of our end, whatever way we end
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, "SILO_REDIS": self.redis, "PYTHONUNBUFFERED": "1", **self._environment},
                start_new_session=True,
            )
        silo = SiloProcess(name, process, "", log)
        self._all.append(silo)
        silo.endpoint = await self._ready(silo)
        self._silos[name] = silo
        return silo

    async def start_all(self, names: Sequence[str]) -> None:
        """Start several at once."""
        await asyncio.gather(*(self.start(name) for name in names))

    def _command(self, name: str, listen: str, settings: Mapping[str, object]) -> list[str]:
        command = [sys.executable, "-m", "silo", "run", *self._modules, "--with-parent"]
        command += ["--cluster", self.cluster, "--name", name, "--listen", listen]
        command += [] if self._silos else ["--bootstrap"]
        for setting, value in {**self._settings, **settings}.items():
            command += ["--set", f"{setting}={value}"]
        return command

    def _log_file(self, name: str) -> Path:
        if self._logs is None:
            self._own_logs = self._own_logs or tempfile.TemporaryDirectory(prefix="silo-logs-")
            return Path(self._own_logs.name) / f"{name}.log"
        self._logs.mkdir(parents=True, exist_ok=True)
        return self._logs / f"{name}.log"

    async def _ready(self, silo: SiloProcess) -> str:
        """Wait for the line that says where it listens."""
        assert silo.process.stdout is not None
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                async for line in silo.process.stdout:
                    text = line.decode("utf-8", "replace").strip()
                    if text.startswith(READY):
                        return text.rsplit(" ", 1)[-1]
        except TimeoutError:
            await silo.kill()
            raise SiloProcessFailed(f"{silo.name} was not ready in {START_TIMEOUT_S} s:\n{_tail(silo.log)}") from None
        code = await silo.process.wait()
        raise SiloProcessFailed(f"{silo.name} ended with code {code} before it was ready:\n{_tail(silo.log)}")


def _tail(log: Path) -> str:
    return log.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace")
