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
from benchmarks.idle import IdleSilo
from benchmarks.peers.known import PREFIX as PEER_PREFIX
from benchmarks.peers.process import NotHere, PeerProcess, pids_of
from benchmarks.plain import AS_IT_COMES, PlainEcho
from benchmarks.tcp import TcpEcho
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
TCP = "tcp echo"
PLAIN = "plain echo"
"""The echo's server on asyncio, with gRPC's own settings."""
PLAIN_CALLER = "plain echo's caller"
REDIS = "redis"
GATEWAY = "silo-1"
FURTHER = "silo-2"
"""Another silo than the client's gateway."""
THIRD = "silo-3"
COLLECTOR = "collector"
"""Takes what telemetry exports, and comes with OBSERVED. No row counts its processor time."""
OBSERVED = "silo-observed"
"""A silo with telemetry on, which exports to COLLECTOR; so does the embedded silo of `Stage.observed_silo`."""
IDLE = "idle silo"
SILO_PREFIX = "silo-"
ECHO_TIMEOUT_S = 30.0
"""How long a server of ours may take to start, or to end."""
LOG_LEVEL, OTEL = "telemetry.log_level", "telemetry.otel"
ROOT = Path(__file__).resolve().parents[1]

G = TypeVar("G")


class Stage:
    """Used with `async with`: starts the processes that are named, and ends them.

    Args:
        processes: which of ECHO, TCP, PLAIN, IDLE, REDIS and the silos, whose names all begin alike; a silo
            brings REDIS along. Peers, whose names begin alike, too, are started when they are first asked for.
        settings: of all silos. GATEWAY alone serves clients where they say nothing else.
    """

    def __init__(self, processes: Sequence[str], settings: Mapping[str, object] | None = None) -> None:
        self._wanted = frozenset(processes)
        self._settings = dict(settings or {})
        self._parts = contextlib.AsyncExitStack()
        self._by_way: dict[str, Silo] = {}
        self._pids: dict[str, int] = {BENCH: os.getpid()}
        self._server: EmbeddedServer | None = None
        self._cluster: ProcessCluster | None = None
        self._silo: Silo | None = None
        self._observed: dict[float, Silo] = {}
        self._collector = ""
        self._idle: IdleSilo | None = None
        self._client: Client | None = None
        self._directory: RedisDirectory | None = None
        self._echo: EchoClient | None = None
        self._echo_endpoint = ""
        self._tcp: TcpEcho | None = None
        self._tcp_port = 0
        self._plain: PlainEcho | None = None
        self._peers: dict[str, PeerProcess | NotHere] = {}

    async def __aenter__(self) -> Self:
        try:
            if OBSERVED in self._wanted:  # before the silos, which are told where it is
                port, self._pids[COLLECTOR] = await self._serve("benchmarks.collector", [], {})
                self._collector = f"127.0.0.1:{port}"
            async with asyncio.TaskGroup() as starting:
                if ECHO in self._wanted:
                    starting.create_task(self._start_echo())
                if TCP in self._wanted:
                    starting.create_task(self._start_tcp_echo())
                if PLAIN in self._wanted:
                    starting.create_task(self._start_plain_echo())
                apart = {each for each in self._wanted if each.startswith(PEER_PREFIX)}
                if self._wanted - apart - {BENCH, ECHO, TCP, PLAIN, PLAIN_CALLER}:
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
        if IDLE in self._wanted:
            self._idle = await IdleSilo.start(server.url, _python_path())
            self._parts.push_async_callback(_end, self._idle.process)
            self._pids[IDLE] = self._idle.process.pid
        self._cluster = cluster = await self._parts.enter_async_context(
            ProcessCluster(
                [GRAINS],
                redis=server.url,
                cluster=CLUSTER,
                settings={LOG_LEVEL: "warning", **self._settings},
                environment={"PYTHONPATH": _python_path(), **self._exporting()},
            )
        )
        async with asyncio.TaskGroup() as starting:
            for name in self.silos:
                own = {"gateway": name == GATEWAY, OTEL: name == OBSERVED}
                starting.create_task(cluster.start(name, settings={**own, **self._settings}))
        self._pids.update((silo.name, silo.pid) for silo in cluster.running)

    def _exporting(self) -> dict[str, str]:
        """What tells OBSERVED where to export to, and the others that they are not meant."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{self._collector}"} if self._collector else {}

    @property
    def silos(self) -> list[str]:
        """The names of the silos that are processes of their own."""
        return sorted(name for name in self._wanted if name.startswith(SILO_PREFIX))

    async def _start_echo(self) -> None:
        port, self._pids[ECHO] = await self._serve("benchmarks.echo", [], {})
        self._echo_endpoint = f"127.0.0.1:{port}"

    async def _start_tcp_echo(self) -> None:
        self._tcp_port, self._pids[TCP] = await self._serve("benchmarks.tcp", [], {})

    async def _start_plain_echo(self) -> None:
        port, self._pids[PLAIN] = await self._serve("benchmarks.echo", [Loop.ASYNCIO], AS_IT_COMES)
        self._plain = await PlainEcho.start(f"127.0.0.1:{port}", _python_path())
        self._parts.push_async_callback(_end, self._plain.process)
        self._pids[PLAIN_CALLER] = self._plain.process.pid

    async def _serve(self, module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[int, int]:
        """Start a server that prints its port, and ends with its standard input; its port and process id."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **environment, "PYTHONPATH": _python_path()},
        )
        self._parts.push_async_callback(_end, process)
        assert process.stdout is not None
        async with asyncio.timeout(ECHO_TIMEOUT_S):
            line = await process.stdout.readline()
        if not line:
            raise RuntimeError(f"{module} ended with {await process.wait()} before it was ready")
        return int(line), process.pid

    @property
    def all_pids(self) -> tuple[int, ...]:
        peers = [peer for peer in self._peers.values() if isinstance(peer, PeerProcess)]
        return (*self._pids.values(), *pids_of(peers))

    def pids(self, processes: Sequence[str]) -> tuple[int, ...]:
        """Their processes; not those of peers, which know their own."""
        return tuple(self._pids[name] for name in processes if not name.startswith(PEER_PREFIX))

    async def peer(self, name: str, apart: str = "") -> PeerProcess:
        """The caller of that peer; or another, which shares nothing with it. Raises NotHere where the peer is not
        installed."""
        key = f"{name}-{apart}"
        if key not in self._peers:
            try:
                self._peers[key] = peer = await PeerProcess.start(name, apart)
                self._parts.push_async_callback(peer.end)
            except NotHere as error:
                self._peers[key] = error
        found = self._peers[key]
        if isinstance(found, NotHere):
            raise found
        return found

    async def echo(self) -> EchoClient:
        if self._echo is None:
            self._echo = await self._parts.enter_async_context(EchoClient(self._echo_endpoint))
        return self._echo

    async def tcp_echo(self) -> TcpEcho:
        if self._tcp is None:
            self._tcp = await TcpEcho.connect(self._tcp_port)
            self._parts.callback(self._tcp.close)
        return self._tcp

    @property
    def plain_echo(self) -> PlainEcho:
        assert self._plain is not None
        return self._plain

    async def silo(self) -> Silo:
        """The silo in this process: no gateway, so that clients go through GATEWAY."""
        if self._silo is None:
            settings = SiloSettings(cluster=CLUSTER, redis=self._redis_url(), name=BENCH, gateway=False, bootstrap=True)
            silo = Silo(*_kinds(), settings=settings)
            await silo.start()
            self._parts.push_async_callback(silo.kill)  # its grains need not move on
            self._silo = silo
        return self._silo

    async def observed_silo(self, ratio: float = 1.0) -> Silo:
        """Another silo in this process, with traces and metrics as a user has them, exported to COLLECTOR.

        Args:
            ratio: how much of the traces that begin at it is sampled.
        """
        if ratio not in self._observed:
            from benchmarks.observing import observer

            name = f"{BENCH}-observed-{len(self._observed)}"
            settings = SiloSettings(cluster=CLUSTER, redis=self._redis_url(), name=name, gateway=False, bootstrap=True)
            telemetry, stop = observer(self._collector, ratio)
            silo = Silo(*_kinds(), settings=settings, telemetry=telemetry)
            await silo.start()
            self._parts.push_async_callback(asyncio.to_thread, stop)
            self._parts.push_async_callback(silo.kill)
            self._observed[ratio] = silo
        return self._observed[ratio]

    async def drain(self, name: str) -> None:
        """Have the silo of that name leave as a restart has it leave, by SIGTERM, and wait for the end of its process.

        Raises:
            RuntimeError: it did not end in order.
        """
        assert self._cluster is not None
        code = await self._cluster[name].stop()
        if code != 0:
            raise RuntimeError(f"{name} ended with {code} instead of leaving")

    @property
    def idle_silo(self) -> IdleSilo:
        assert self._idle is not None
        return self._idle

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
