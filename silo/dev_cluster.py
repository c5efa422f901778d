"""A whole cluster on one machine, for development: silo processes, and a real server for their directory.

Their output comes through with each silo's name in front. A silo that ends by itself is reported; the others go on, as
they would in earnest, unless it ended before it was ready: then something is wrong with all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.text import Text

from silo.application import told
from silo.configuration import without_password
from silo.directory.errors import SiloError
from silo.embedded import EmbeddedServer
from silo.lifespan import READY, StopRequest, stop_request
from silo.settings import SiloSettings

COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "red")
READ_BYTES = 64 * 1024
STOP_GRACE_S = 10.0
"""What a silo gets on top of its own `shutdown_timeout_s` before it is killed."""

Scenario = Callable[[Any], Awaitable[object]]


class ScenarioFailed(SiloError):
    """The application's `main(client)` raised an error of its own."""


@dataclass(frozen=True, slots=True)
class DevCluster:
    """What `silo dev` runs."""

    modules: Sequence[str]
    silos: int
    settings: SiloSettings
    """With the URL of the server to use."""
    options: Sequence[str] = ()
    """Further options for each `silo run`."""
    scenario: Scenario | None = None
    """Run with a client once all silos are ready."""
    once: bool = False
    """Whether the cluster ends with the scenario."""
    command: Sequence[str] = (sys.executable, "-m", "silo", "run")
    """What starts one silo, before its arguments."""
    console: Console = field(default_factory=lambda: Console(highlight=False, soft_wrap=True))


class _Child:
    """One silo process, seen from the outside."""

    def __init__(self, name: str, colour: str, process: asyncio.subprocess.Process, console: Console) -> None:
        self.name = name
        self.process = process
        self.ready = asyncio.Event()
        self._colour = colour
        self._console = console

    async def run(self) -> int:
        """Pass its output on until it ends; returns its exit code."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        await asyncio.gather(self._pass_on(self.process.stdout), self._pass_on(self.process.stderr))
        return await self.process.wait()

    async def _pass_on(self, stream: asyncio.StreamReader) -> None:
        async for line in _lines(stream):
            if line.startswith(READY):
                self.ready.set()
            self.say(line)

    def say(self, line: str) -> None:
        self._console.print(Text(f"{self.name} ", style=self._colour).append(Text.from_ansi(line)))

    async def stop(self, timeout_s: float) -> None:
        """Ask it to drain and end; kill it when it does not."""
        if self.process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        try:
            await asyncio.wait_for(self.process.wait(), timeout_s)
        except TimeoutError:
            self.say(f"did not end within {timeout_s:.0f} s and is killed")
            self.process.kill()


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """The stream by lines of any length."""
    rest = b""
    while chunk := await stream.read(READ_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", "replace")
    if rest:
        yield rest.decode("utf-8", "replace")


async def run_dev_cluster(cluster: DevCluster) -> int:
    """Run the cluster until a signal, the end of the scenario, or the end of all silos; returns the exit code."""
    lives: dict[asyncio.Task[int], _Child] = {}
    async with stop_request() as request:
        try:
            for number in range(1, cluster.silos + 1):
                child = await _spawn(cluster, number)
                lives[asyncio.create_task(child.run(), name=child.name)] = child
            return await _watch(cluster, request, lives)
        finally:
            timeout_s = cluster.settings.migration.shutdown_timeout_s + STOP_GRACE_S
            await asyncio.gather(*(child.stop(timeout_s) for child in lives.values()))
            await asyncio.gather(*lives)


async def _spawn(cluster: DevCluster, number: int) -> _Child:
    name = f"silo-{number}"
    arguments = [*cluster.modules, "--name", name, "--cluster", cluster.settings.cluster, "--listen", "127.0.0.1:0"]
    arguments.append("--bootstrap")
    process = await asyncio.create_subprocess_exec(
        *(*cluster.command, *arguments, *cluster.options, "--with-parent"),
        # Its standard input is how it learns of our end, whatever way we end.
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # By the environment: a URL may hold a password, which has no place in the list of processes.
        env={**_inherited(), "SILO_REDIS": cluster.settings.redis or "", "PYTHONUNBUFFERED": "1"},
        # Ctrl-C reaches the whole group of the terminal; to a silo it would be a second signal beside ours.
        start_new_session=True,
    )
    return _Child(name, COLOURS[(number - 1) % len(COLOURS)], process, cluster.console)


def _inherited() -> dict[str, str]:
    """Our environment, without what only one silo can be told."""
    return {name: value for name, value in os.environ.items() if name not in ("SILO_ADVERTISE", "SILO_NAME")}


async def _watch(cluster: DevCluster, request: StopRequest, lives: dict[asyncio.Task[int], _Child]) -> int:
    asked = asyncio.create_task(request.made(), name="stop request")
    story = asyncio.create_task(_tell(cluster, list(lives.values())), name="scenario")
    pending: set[asyncio.Task[Any]] = {asked, story, *lives}
    try:
        while True:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if asked in done:
                cluster.console.print(f"stopping ({request.because}); once more ends it at once")
                return 0
            for life in done & lives.keys():
                child = lives[life]
                child.say(f"ended with code {life.result()}")
                if not child.ready.is_set():
                    return life.result() or 1
            if not pending & lives.keys():
                cluster.console.print("no silo is left")
                return 1
            if story in done:
                story.result()
                if cluster.once:
                    return 0
    finally:
        for task in (asked, story):
            task.cancel()
        await asyncio.wait({asked, story})


async def _tell(cluster: DevCluster, children: Sequence[_Child]) -> None:
    for child in children:
        await child.ready.wait()
    settings = cluster.settings
    ready = "1 silo is" if len(children) == 1 else f"{len(children)} silos are"
    cluster.console.print(f"{ready} ready; Ctrl-C stops {'it' if len(children) == 1 else 'them'}")
    if not cluster.once:
        where = f"--cluster {settings.cluster} --redis {without_password(settings.redis or '')}"
        cluster.console.print(f"in another terminal: silo status {where}", markup=False)
    if cluster.scenario is None:
        return
    from silo.client import Client  # whoever only asks for help need not load the runtime
    from silo.messaging.certificates import Certificates

    token = cluster.settings.cluster_token
    async with Client.connect(
        cluster.settings.redis,
        cluster=cluster.settings.cluster,
        token=token.get_secret_value() if token else None,
        certificates=Certificates.of(cluster.settings.tls),
    ) as client:
        try:
            await cluster.scenario(client)
        except SiloError:
            raise  # the runtime's errors say in one line what is to be done
        except Exception as error:
            raise ScenarioFailed(f"main(client) failed: {told(error, __file__)}") from error


def scenario_of(module: ModuleType) -> Scenario | None:
    """The module's `async def main(client)`, if it has one."""
    found = getattr(module, "main", None)
    if not inspect.iscoroutinefunction(found) or len(inspect.signature(found).parameters) != 1:
        return None
    return found


@contextlib.asynccontextmanager
async def own_or_given(redis: str | None) -> AsyncGenerator[str]:
    """The URL of the server to use: the given one's, or that of one of our own, which lives as long as the block."""
    if redis is not None:
        yield redis
        return
    async with EmbeddedServer() as server:
        yield server.url
