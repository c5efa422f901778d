"""More than one server for tests: a master and its replica behind Sentinel, and a Redis Cluster whose slots move."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections import Counter as Tally
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from redis.crc import key_slot
from redis.exceptions import ConnectionError

from silo.directory.redis_connection import open_sync
from silo.embedded import EmbeddedServer, find_server, free_port
from tests.support.redis_server import ask_until, server_for_tests

SERVICE = "main"
"""What the sentinels call the master and its replica."""
SENTINEL_PERIODS = ("info-period", 500, "publish-period", 200)
"""In ms: how soon sentinels see that a server has not the role that it should have; by default in 8 to 20 s."""
SLOTS = 16384
NODE_TIMEOUT_MS = 1000
"""After how long without an answer the servers of a Redis Cluster suspect one of them."""
KEYS_AT_ONCE = 100
MIGRATE_TIMEOUT_MS = 1000
ASK_TIMEOUT_S = 1.0


def ask(url: str, *command: str | int) -> Any:
    """The answer of one server, which is asked alone."""
    with contextlib.closing(cast("Any", open_sync(url, ASK_TIMEOUT_S))) as client:
        return client.execute_command(*command)


def is_in_role(server: EmbeddedServer, role: str) -> bool:
    """Whether the server says that it is a `master` or a `slave`; sentinels that change it hang up its clients."""
    try:
        return _text(ask(server.url, "ROLE")[0]) == role
    except ConnectionError:
        return False


@dataclass
class Replicated:
    """A master, its replica, and the sentinels that watch both."""

    master: EmbeddedServer
    replica: EmbeddedServer
    sentinels: Sequence[str]
    """Their addresses."""

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join(self.sentinels)}/{SERVICE}"

    def await_copies(self, master: EmbeddedServer | None = None) -> None:
        """Wait until the other server has all that the master, by default the first one, was told before this."""
        url = (master or self.master).url
        with contextlib.closing(cast("Any", open_sync(url, ASK_TIMEOUT_S))) as client:
            client.execute_command("SET", "silo:test:copied", "1")  # WAIT is about the writes of its own connection
            ask_until(lambda: client.execute_command("WAIT", 1, 100) == 1)


@contextlib.contextmanager
def replicated(folder: Path, sentinels: int = 1) -> Generator[Replicated]:
    """A master with a replica behind so many sentinels, of which a majority has to agree on a failover."""
    with (
        server_for_tests(arguments=["--repl-diskless-sync-delay", "0"]) as master,
        server_for_tests(arguments=["--replicaof", "127.0.0.1", str(master.port)]) as replica,
        contextlib.ExitStack() as running,
    ):
        ask_until(lambda: bool(ask(master.url, "WAIT", 1, 10) == 1))
        ports = [free_port() for _ in range(sentinels)]
        for port in ports:
            running.enter_context(_sentinel(folder, port, master.port, quorum=sentinels // 2 + 1))
        for port in ports:
            ask_until(partial(_knows_all, port, sentinels))
            ask(f"redis://127.0.0.1:{port}", "SENTINEL DEBUG", *SENTINEL_PERIODS)
        yield Replicated(master, replica, [f"127.0.0.1:{port}" for port in ports])


@contextlib.contextmanager
def _sentinel(folder: Path, port: int, master_port: int, quorum: int) -> Generator[None]:
    configuration = folder / f"sentinel-{port}.conf"
    configuration.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
        f"sentinel monitor {SERVICE} 127.0.0.1 {master_port} {quorum}\n"
        f"sentinel down-after-milliseconds {SERVICE} 300\nsentinel failover-timeout {SERVICE} 2000\n"
    )
    program = os.environ.get("SILO_TEST_REDIS_SERVER") or str(find_server())
    log = (folder / f"sentinel-{port}.log").open("wb")
    with log, subprocess.Popen([program, str(configuration), "--sentinel"], stdout=log, stderr=log) as sentinel:
        try:
            yield
        finally:
            sentinel.terminate()


def _knows_all(port: int, sentinels: int) -> bool:
    url = f"redis://127.0.0.1:{port}"
    try:
        others = ask(url, "SENTINEL SENTINELS", SERVICE)
        return bool(ask(url, "SENTINEL REPLICAS", SERVICE)) and len(others) == sentinels - 1
    except ConnectionError:  # not yet listening
        return False


class SlotCluster:
    """The masters of a Redis Cluster. Its methods block."""

    def __init__(self, servers: Sequence[EmbeddedServer]) -> None:
        self.servers = list(servers)
        self.ids: dict[int, str] = {server.port: _text(ask(server.url, "CLUSTER MYID")) for server in servers}

    @property
    def url(self) -> str:
        """All of them by name, so that any of them may be away when a client begins."""
        return f"redis+cluster://{','.join(f'127.0.0.1:{server.port}' for server in self.servers)}"

    def owner(self, slot: int) -> EmbeddedServer:
        """The master that has this slot, as the first master says."""
        for first, last, (_, port, *_), *_ in ask(self.servers[0].url, "CLUSTER SLOTS"):
            if first <= slot <= last:
                return next(server for server in self.servers if server.port == port)
        raise AssertionError(f"nobody has slot {slot}")

    def without_slots(self) -> list[EmbeddedServer]:
        """The masters that have none."""
        owners = {port for _, _, (_, port, *_), *_ in ask(self.servers[0].url, "CLUSTER SLOTS")}
        return [server for server in self.servers if server.port not in owners]

    def begin_move(self, slot: int, to: EmbeddedServer) -> EmbeddedServer:
        """From now on the slot's old owner says ASK for each key that it does not have; returns who that is."""
        source = self.owner(slot)
        assert source is not to
        ask(to.url, "CLUSTER SETSLOT", slot, "IMPORTING", self.ids[source.port])
        ask(source.url, "CLUSTER SETSLOT", slot, "MIGRATING", self.ids[to.port])
        return source

    def carry_keys(self, slot: int, source: EmbeddedServer, to: EmbeddedServer) -> int:
        """Carry the slot's keys over; how many there were."""
        carried = 0
        while keys := ask(source.url, "CLUSTER GETKEYSINSLOT", slot, KEYS_AT_ONCE):
            ask(source.url, "MIGRATE", "127.0.0.1", to.port, "", 0, MIGRATE_TIMEOUT_MS, "KEYS", *keys)
            carried += len(keys)
        return carried

    def end_move(self, slot: int, to: EmbeddedServer) -> None:
        """From now on the others say MOVED; the new owner is told first, that no key is lost."""
        for server in (to, *(server for server in self.servers if server is not to)):
            ask(server.url, "CLUSTER SETSLOT", slot, "NODE", self.ids[to.port])

    def errors(self) -> Tally[str]:
        """How often servers have answered with which error."""
        found: Tally[str] = Tally()
        for server in self.servers:
            for name, counted in ask(server.url, "INFO", "errorstats").items():
                found[name.removeprefix("errorstat_")] += counted["count"]
        return found


def slot_of(key: str) -> int:
    return key_slot(key.encode())


@contextlib.contextmanager
def slot_cluster(masters: int = 3, empty: int = 0) -> Generator[SlotCluster]:
    """A Redis Cluster of so many masters that share the slots, and others that have none.

    It goes on without the slots of a master that is down.
    """
    with contextlib.ExitStack() as running:
        servers = [running.enter_context(_cluster_server()) for _ in range(masters + empty)]
        for number, server in enumerate(servers[:masters]):
            first, last = number * SLOTS // masters, (number + 1) * SLOTS // masters - 1
            ask(server.url, "CLUSTER ADDSLOTSRANGE", first, last)
        for number, server in enumerate(servers):
            ask(server.url, "CLUSTER SET-CONFIG-EPOCH", number + 1)
        for server in servers[1:]:
            ask(servers[0].url, "CLUSTER MEET", "127.0.0.1", server.port, _bus_port(server))
        ask_until(lambda: _all_agree(servers))
        yield SlotCluster(servers)


@contextlib.contextmanager
def _cluster_server() -> Generator[EmbeddedServer]:
    arguments = ["--cluster-enabled", "yes", "--cluster-node-timeout", str(NODE_TIMEOUT_MS)]
    arguments += ["--cluster-require-full-coverage", "no", "--cluster-port", str(free_port())]
    with server_for_tests(arguments=arguments) as server:
        yield server


def _bus_port(server: EmbeddedServer) -> int:
    return int(ask(server.url, "CONFIG GET", "cluster-port")["cluster-port"])


def _all_agree(servers: Iterable[EmbeddedServer]) -> bool:
    states = [ask(server.url, "CLUSTER INFO") for server in servers]
    return all(
        state["cluster_state"] == "ok"
        and state["cluster_slots_assigned"] == str(SLOTS)
        and state["cluster_known_nodes"] == str(len(states))
        for state in states
    )


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
