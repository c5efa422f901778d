"""Commands that ask a cluster: the options that say which one, and how, have their one home here."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from silo import terminal
from silo.directory.errors import CallTimeout, InvalidSettings, SiloError
from silo.logs import configure

if TYPE_CHECKING:
    from silo.client import Client

Result = TypeVar("Result")


def _above_zero(seconds: float) -> float:
    if not 0 < seconds < math.inf:
        raise typer.BadParameter(f"a time above 0 is wanted, not {seconds:g}")
    return seconds


ClusterOption = Annotated[str | None, typer.Option("--cluster", help="The name of the cluster.")]
RedisOption = Annotated[str | None, typer.Option("--redis", help="The URL of the cluster's Redis or Valkey.")]
GatewayOption = Annotated[
    list[str] | None, typer.Option("--gateway", help="host:port of a silo, instead of --redis; may be repeated.")
]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="A TOML file with settings (SILO_CONFIG).")]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", callback=_above_zero, help="Seconds until the command gives up.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")]


@dataclass(frozen=True, slots=True)
class Reach:
    """Which cluster a command asks, for how long, and how it tells the answer: the options of every such command."""

    cluster: ClusterOption = None
    redis: RedisOption = None
    gateway: GatewayOption = None
    config: ConfigOption = None
    timeout: TimeoutOption = 5.0
    as_json: JsonOption = False

    def ask(self, work: Callable[[Client], Awaitable[Result]], *, within_s: float | None = None) -> Result:
        """What the work returns, done with a client of the cluster, as an admin.

        Args:
            within_s: how long it may take; `--timeout`, if not given.

        Raises:
            InvalidSettings: no cluster is named, or a setting is wrong.
            CallTimeout: it took longer.
            NoGateway, HandshakeRefused: likewise, and no silo could be reached, or would have to do with this client.
            SiloError: what the work raises.
        """
        from silo.client import Client  # whoever only asks for help need not load the runtime, nor pydantic
        from silo.configuration import load
        from silo.messaging.certificates import Certificates

        settings = load({"cluster": self.cluster, "redis": self.redis}, file=self.config).settings
        if settings.redis is None and not self.gateway:
            raise InvalidSettings(
                "which cluster? Give --redis URL (SILO_REDIS), or --gateway HOST:PORT of one of its silos"
            )
        configure("warning", settings.telemetry.log_format)
        held = settings.cluster_token
        timeout_s = self.timeout if within_s is None else within_s

        async def do() -> Result:
            async with Client.connect(
                None if self.gateway else settings.redis,
                cluster=settings.cluster,
                gateways=list(self.gateway or ()),
                token=held.get_secret_value() if held is not None else None,
                role="admin",
                name="silo-command",
                certificates=Certificates.of(settings.tls),
            ) as client:
                try:
                    async with asyncio.timeout(timeout_s):
                        return await work(client)
                except TimeoutError as error:
                    if isinstance(error, SiloError):
                        raise
                    what = f"cluster {settings.cluster} did not answer within {timeout_s:g} s"
                    raise client.trouble or CallTimeout(what) from None

        return asyncio.run(do())

    def tell(self, found: object, text: str) -> None:
        """Say what was found: in one line of JSON where that was asked for, else by the text."""
        terminal.say(terminal.as_json(found) if self.as_json else text)

    def show(self, found: object, summary: Callable[[], dict[str, object]]) -> None:
        """Likewise, with a summary for the eye instead of a line."""
        if self.as_json:
            terminal.say(terminal.as_json(found))
        else:
            terminal.show(summary())


def asks_cluster(*, timeout_s: float = 5.0) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command the options of `Reach` behind its own; it takes what they say as its argument `reach`.

    Args:
        timeout_s: the default of `--timeout`.
    """
    hints = get_type_hints(Reach, include_extras=True)
    defaults = {each.name: each.default for each in fields(Reach)} | {"timeout": timeout_s}
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[name])
        for name, default in defaults.items()
    ]

    def extend(command: Callable[..., int]) -> Callable[..., int]:
        own = [each for each in inspect.signature(command, eval_str=True).parameters.values() if each.name != "reach"]

        @functools.wraps(command)
        def extended(**given: Any) -> int:
            reach = Reach(**{name: given.pop(name) for name in defaults})
            return command(**given, reach=reach)

        # What typer reads the options from.
        extended.__annotations__ = {each.name: each.annotation for each in (*own, *shared)}
        extended.__dict__["__signature__"] = inspect.Signature([*own, *shared])
        return extended

    return extend
