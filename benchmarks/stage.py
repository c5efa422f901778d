"""The stage of a run: the processes that its rows need, and what in this process talks to them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from benchmarks.echo import EchoClient
from benchmarks.plain import AS_IT_COMES, PlainEcho
from silo import Client, Silo, SiloSettings, with_hint
from silo.application import Loop
from silo.directory.redis_directory import RedisDirectory
from silo.embedded import EmbeddedServer
from silo.testing.processes import ProcessCluster

CLUSTER = "bench"
GRAINS = "benchmarks.grains"
BENCH = "bench"
"""This process, and the silo that is embedded in it."""
ECHO = "echo"
PLAIN = "plain echo"
"""The echo's server on asyncio, with gRPC's own settings."""
PLAIN_CALLER = "plain echo's caller"
REDIS = "redis"
GATEWAY = "silo-1"
FURTHER = "silo-2"
"""Another silo than the client's gateway."""
SILOS = (GATEWAY, FURTHER)
ECHO_TIMEOUT_S = 30.0
"""How long the echo server may take to start, or to end."""
ROOT = Path(__file__).resolve().parents[1]

G = TypeVar("G")


class Stage:
    """Used with `async with`: starts the processes that are named, and ends them.

    Args:
        processes: which of ECHO, REDIS and the silos; a silo brings REDIS along.
    """

    def __init__(self, processes: Sequence[str]) -> None:
        self._wanted = frozenset(processes)
        self._parts = contextlib.AsyncExitStack()
        self._by_way: dict[str, Silo] = {}
        self._pids: dict[str, int] = {BENCH: os.getpid()}
        self._server: EmbeddedServer | None = None
        self._silo: Silo | None = None
        self._client: Client | None = None
        self._directory: RedisDirectory | None = None
        self._echo: EchoClient | None = None
        self._echo_endpoint = ""
        self._plain: PlainEcho | None = None

    async def __aenter__(self) -> Self:
        try:
            async with asyncio.TaskGroup() as starting:
                if ECHO in self._wanted:
                    starting.create_task(self._start_echo())
                if PLAIN in self._wanted:
                    starting.create_task(self._start_plain_echo())
                if self._wanted - {BENCH, ECHO, PLAIN, PLAIN_CALLER}:
                    starting.create_task(self._start_cluster())
        except BaseException:
            await self._parts.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._parts.aclose()

    async def _start_cluster(self) -> None:
        self._server = server = await self._parts.enter_async_context(EmbeddedServer())
        self._pids[REDIS] = server.pid
        cluster = await self._parts.enter_async_context(
            ProcessCluster(
                [GRAINS],
                redis=server.url,
                cluster=CLUSTER,
                settings={"telemetry.log_level": "warning"},
                environment={"PYTHONPATH": _python_path()},
            )
        )
        async with asyncio.TaskGroup() as starting:
            for name in SILOS:
                if name in self._wanted:
                    starting.create_task(cluster.start(name, settings={"gateway": name == GATEWAY}))
        self._pids.update((silo.name, silo.pid) for silo in cluster.running)

    async def _start_echo(self) -> None:
        self._echo_endpoint, self._pids[ECHO] = await self._serve_echo(None, {})

    async def _start_plain_echo(self) -> None:
        endpoint, self._pids[PLAIN] = await self._serve_echo(Loop.ASYNCIO, AS_IT_COMES)
        self._plain = await PlainEcho.start(endpoint, _python_path())
        self._parts.push_async_callback(_end, self._plain.process)
        self._pids[PLAIN_CALLER] = self._plain.process.pid

    async def _serve_echo(self, loop: Loop | None, environment: Mapping[str, str]) -> tuple[str, int]:
        """Start an echo server on that event loop; its endpoint and process id."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "benchmarks.echo",
            *([loop] if loop is not None else []),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **environment, "PYTHONPATH": _python_path()},
        )
        self._parts.push_async_callback(_end, process)
        assert process.stdout is not None
        async with asyncio.timeout(ECHO_TIMEOUT_S):
            line = await process.stdout.readline()
        if not line:
            raise RuntimeError(f"the echo server ended with {await process.wait()} before it was ready")
        return f"127.0.0.1:{int(line)}", process.pid

    @property
    def all_pids(self) -> tuple[int, ...]:
        return tuple(self._pids.values())

    def pids(self, processes: Sequence[str]) -> tuple[int, ...]:
        return tuple(self._pids[name] for name in processes)

    async def echo(self) -> EchoClient:
        if self._echo is None:
            self._echo = await self._parts.enter_async_context(EchoClient(self._echo_endpoint))
        return self._echo

    @property
    def plain_echo(self) -> PlainEcho:
        assert self._plain is not None
        return self._plain

    async def silo(self) -> Silo:
        """The silo in this process: no gateway, so that clients go through GATEWAY."""
        if self._silo is None:
            settings = SiloSettings(cluster=CLUSTER, redis=self._redis_url(), name=BENCH, gateway=False)
            silo = Silo(*_kinds(), settings=settings)
            await silo.start()
            self._parts.push_async_callback(silo.kill)  # its grains need not move on
            self._silo = silo
        return self._silo

    async def directory(self) -> RedisDirectory:
        """A directory of another cluster's rows, on the same server."""
        if self._directory is None:
            self._directory = RedisDirectory.at(self._redis_url(), f"{CLUSTER}-rows")
            self._parts.push_async_callback(self._directory.close)
        return self._directory

    async def silo_by(self, way: str, **settings: Any) -> Silo:
        """A further silo in this process, whose links go as these settings say; the same one for the same name."""
        if way not in self._by_way:
            own = SiloSettings(
                cluster=CLUSTER, redis=self._redis_url(), name=f"{BENCH}-{way}", gateway=False, **settings
            )
            silo = Silo(*_kinds(), settings=own)
            await silo.start()
            self._parts.push_async_callback(silo.kill)
            self._by_way[way] = silo
        return self._by_way[way]

    async def client(self) -> Client:
        if self._client is None:
            self._client = await self._parts.enter_async_context(Client.connect(self._redis_url(), cluster=CLUSTER))
        return self._client

    def _redis_url(self) -> str:
        if self._server is None:
            raise RuntimeError("a row that needs a cluster must name a silo or redis among its processes")
        return self._server.url


async def grains_on(host: Silo | Client, kind: type[G], name: str, count: int, silo: str) -> list[G]:
    """References to grains that are active on the silo of that name; raises RuntimeError where one is elsewhere."""
    grains = [with_hint(host.grain(kind, f"{name}-{number}"), silo) for number in range(count)]
    answering: list[Any] = list(grains)
    places = await asyncio.gather(*(each.where() for each in answering))
    if set(places) != {silo}:
        raise RuntimeError(f"grains for {silo} are on {', '.join(sorted(set(places)))}")
    return grains


def _kinds() -> tuple[type, ...]:
    from benchmarks.grains import Counter, Fan, Mirror, Parcel, Ring

    return Counter, Fan, Mirror, Parcel, Ring


def _python_path() -> str:
    """For processes that are started elsewhere than in the project's folder."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))


async def _end(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(ECHO_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
