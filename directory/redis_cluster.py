"""Clients for a Redis Cluster: each command goes to the server that has its slot, and follows where that moves.

redis-py knows the cluster's shape and keeps the connections; the redirections are followed here, because its asyncio
client sends ASKING by one connection and the command that it is meant for by another, because an ASK that names a
server which has no slot yet ends in an AttributeError, and because in its pipelines one server that stands still fails
what the others have answered.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

import redis
import redis.asyncio
import redis.cluster
from redis.asyncio.cluster import ClusterNode, ClusterPubSub, PipelineCommand
from redis.exceptions import (
    AskError,
    ClusterDownError,
    ConnectionError,
    MovedError,
    RedisClusterException,
    RedisError,
    SlotNotCoveredError,
    TimeoutError,
)

from silo.directory.logs import get_logger

REDIRECTIONS_MAX: Final = 16
"""How often one command is sent on; longer chains are a cluster that changes faster than it can be followed."""
REFRESH_EVERY_S: Final = 0.5
"""The cluster's shape is not asked for sooner again: each time, all connections are made anew."""
PRIMARY: Final = "primary"
"""What redis-py calls a master."""

_SCRIPTS: Final = ("EVAL", "EVALSHA")
_log = get_logger("silo.directory.redis")

Words = Sequence[str | bytes | int]


class ClusterClient:
    """An asyncio client of a Redis Cluster, for commands whose first key tells their slot.

    Args:
        nodes: where to ask for the cluster's shape, as (host, port); one that answers is enough.
        connections_max: connections to one server; further commands for it wait for one.
        options: of redis-py's connections.
    """

    def __init__(self, nodes: Iterable[tuple[str, int]], connections_max: int, **options: Any) -> None:
        startup = [ClusterNode(host, port) for host, port in nodes]
        self._cluster: Any = redis.asyncio.RedisCluster(
            startup_nodes=startup, require_full_coverage=False, **options
        )  # Any: half of redis-py is not annotated
        self._cluster.commands_parser = cast("Any", _NoCommands())
        self._places: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(connections_max))
        self._is_old = False
        """Whether a failure has shown that the shape may have changed."""
        self._failed: str | None = None
        """The server that failed last, which is asked for the new shape last."""
        self._refreshed_at = 0.0
        self._refreshing = asyncio.Lock()

    async def execute_command(self, *words: str | bytes | int) -> Any:
        """The answer to one command."""
        (answer,) = await self.send([words])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def server_of(self, key: str) -> str:
        """Where the key lies, as far as is known: the server's address, or nothing."""
        try:
            return str(self._server_for(("", key), None).name)
        except RedisClusterException:  # nobody has its slot, or nobody was asked yet
            return ""

    def pipeline(self, transaction: bool = False) -> ClusterPipeline:
        """Commands that travel together to each server, and succeed or fail alone."""
        return ClusterPipeline(self)

    def pubsub(self) -> Any:
        """A subscription at one of the servers, which each get what is published at any."""
        return _Subscription(self._cluster)

    async def aclose(self) -> None:
        await self._cluster.aclose()

    async def send(self, commands: Sequence[Words]) -> list[Any]:
        """The answers to all commands, an exception in the place of each that has none.

        Raises:
            RedisClusterException: no server tells the cluster's shape.
        """
        await self._know_shape()
        answers: list[Any] = [None] * len(commands)
        waiting = list(range(len(commands)))
        asking: dict[int, AskError] = {}
        for _ in range(1 + REDIRECTIONS_MAX):
            by_server: defaultdict[ClusterNode, list[int]] = defaultdict(list)
            for place in waiting:
                try:
                    by_server[self._server_for(commands[place], asking.get(place))].append(place)
                except RedisClusterException as error:  # nobody has its slot
                    answers[place] = error
                    self._is_old = True
            parts = (self._send_to(server, commands, places, asking) for server, places in by_server.items())
            for answered in await asyncio.gather(*parts):
                for place, answer in answered.items():
                    answers[place] = answer
            waiting = self._redirected(answers, asking)
            if not waiting:
                break
        return answers

    def _redirected(self, answers: Sequence[Any], asking: dict[int, AskError]) -> list[int]:
        """The places of the answers that say to ask elsewhere; `asking` is theirs afterwards."""
        asking.clear()
        again: list[int] = []
        shape = self._cluster.nodes_manager
        for place, answer in enumerate(answers):
            match answer:
                case MovedError():  # before AskError, of which redis-py makes it a kind
                    shape.slots_cache[answer.slot_id] = [self._server_named_by(answer)]
                case AskError():
                    asking[place] = answer
                case _:
                    continue
            again.append(place)
        return again

    def _server_for(self, words: Words, asked: AskError | None) -> ClusterNode:
        if asked is not None:
            return self._server_named_by(asked)
        key = words[3] if words[0] in _SCRIPTS else words[1]
        slot = self._cluster.keyslot(key)
        servers = cast("dict[int, list[ClusterNode]]", self._cluster.nodes_manager.slots_cache).get(slot)
        if not servers:
            raise SlotNotCoveredError(f"no server is known to have slot {slot}")
        return servers[0]

    def _server_named_by(self, redirection: AskError) -> ClusterNode:
        """Where to ask instead: be it a server that has no slot yet, and is in nobody's answer to CLUSTER SLOTS."""
        named: Any = redirection  # its fields are not annotated
        host, port = named.host, named.port
        shape = self._cluster.nodes_manager
        known = shape.get_node(host=host, port=port)
        if known is None:
            known = ClusterNode(host, port, PRIMARY, **shape.connection_kwargs)
            shape.set_nodes(shape.nodes_cache, {known.name: known})
        return cast("ClusterNode", known)

    async def _send_to(
        self, server: ClusterNode, commands: Sequence[Words], places: Sequence[int], asking: dict[int, AskError]
    ) -> dict[int, Any]:
        """The answers of one server to the commands of these places, sent by one connection."""
        sent: list[PipelineCommand] = []
        of_places: dict[int, PipelineCommand] = {}
        for place in places:
            if place in asking:
                sent.append(PipelineCommand(len(sent), "ASKING"))  # holds for the next command of the same connection
            of_places[place] = PipelineCommand(len(sent), *commands[place])
            sent.append(of_places[place])
        try:
            async with self._places[server.name]:
                await server.execute_pipeline(sent)
        except (RedisError, OSError) as error:
            answers: dict[int, Any] = dict.fromkeys(places, error)
        else:
            answers = {place: command.result for place, command in of_places.items()}
        if any(isinstance(answer, ConnectionError | TimeoutError | OSError) for answer in answers.values()):
            self._is_old, self._failed = True, server.name
            await server.disconnect_free_connections()  # they lead to the same server, which is dead or cut off
        elif any(isinstance(answer, ClusterDownError) for answer in answers.values()):
            self._is_old = True
        return answers

    async def _know_shape(self) -> None:
        """Ask for the cluster's shape, at first and after failures."""
        await self._cluster.initialize()
        now = asyncio.get_running_loop().time()
        if not self._is_old or self._refreshing.locked() or now < self._refreshed_at + REFRESH_EVERY_S:
            return
        async with self._refreshing:
            try:
                await self._cluster.nodes_manager.initialize(last_failed_node_name=self._failed)
                self._is_old = False
            except (RedisError, RedisClusterException, OSError) as error:  # what is known of it is still the best guess
                _log.debug("directory.shape_unknown", why=str(error))
            finally:
                self._refreshed_at = asyncio.get_running_loop().time()


class _NoCommands:
    """In the place of what redis-py asks a server first, by COMMAND: where commands have their keys.

    Here that is known. And it asks the first master, and none but that: while it is away, no client would come to know
    the cluster's shape.
    """

    async def initialize(self, _server: object) -> None:
        """There is nothing to ask."""


class ClusterPipeline:
    """Commands for a Redis Cluster, collected until they are sent."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._commands: list[Words] = []

    def execute_command(self, *words: str | bytes | int) -> None:
        self._commands.append(words)

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        commands, self._commands = self._commands, []
        answers = await self._client.send(commands)
        for answer in answers:
            if raise_on_error and isinstance(answer, Exception):
                raise answer
        return answers


class _Subscription(ClusterPubSub):
    """redis-py's subscription, which also may be a client's first use of the cluster."""

    async def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        await cast("Any", self.cluster).initialize()
        return await super().execute_command(*args, **kwargs)


class BlockingCluster(redis.RedisCluster):
    """redis-py's blocking client, which also follows an ASK to a server that has no slot yet.

    It runs scripts, and nothing else whose keys would have to be found.
    """

    def command(self, **_: object) -> dict[str, Any]:
        """Nothing, and nobody is asked; see `_NoCommands`."""
        return {}

    def get_node(
        self, host: str | None = None, port: str | int | None = None, node_name: str | None = None
    ) -> redis.cluster.ClusterNode | None:
        shape: Any = self.nodes_manager  # not annotated
        known: redis.cluster.ClusterNode | None = shape.get_node(host, port, node_name)
        if known is None and node_name is not None:
            named_host, _, named_port = node_name.rpartition(":")
            known = redis.cluster.ClusterNode(named_host, int(named_port), PRIMARY)
            shape.nodes_cache[known.name] = known
        return known
