"""The command `silo`: run a silo, run a cluster for development, look at one, move a grain.

Exit codes: 0 done · 1 the condition was not met · 2 the cluster or its Redis is out of reach · 3 refused · 4 done in
part · 5 timed out · 64 not understood (arguments, settings, names) · 130 and 143 ended by a second SIGINT or SIGTERM.
"""

from __future__ import annotations

import enum
import gc
import secrets
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.exceptions import Abort, TyperException

from silo import terminal
from silo.application import COLLECTED_WHILE_IMPORTING, Loop, import_application, run_on
from silo.cluster_command import ClusterOption, ConfigOption, JsonOption, Reach, RedisOption, asks_cluster
from silo.directory.addresses import GrainId, SiloAddress
from silo.directory.errors import (
    CallExpired,
    CallTimeout,
    DirectoryUnavailable,
    EndpointUnusable,
    HandshakeRefused,
    InvalidGrain,
    InvalidIdentity,
    InvalidSettings,
    MembershipUnavailable,
    MigrationRefused,
    NoGateway,
    PermissionRefused,
    SiloError,
    SiloUnavailable,
    StorageUnavailable,
)
from silo.kinds import OnBusy
from silo.logs import configure

# What only some commands use, they import: whoever asks for help need not wait for pydantic, Redis's client and gRPC.
if TYPE_CHECKING:
    from silo.client import Client
    from silo.grain_records import DeactivationOutcome, GrainRecord
    from silo.management_values import ClusterStatus
    from silo.migration.outcome import MigrationOutcome


class ExitCode(enum.IntEnum):
    """How a command ended, for scripts."""

    DONE = 0
    NOT_MET = 1
    UNREACHABLE = 2
    REFUSED = 3
    PARTLY_DONE = 4
    TIMED_OUT = 5
    USAGE = 64
    INTERRUPTED = 130


EXIT_CODES: Sequence[tuple[tuple[type[SiloError], ...], ExitCode]] = (
    ((InvalidSettings, InvalidIdentity, InvalidGrain), ExitCode.USAGE),
    ((HandshakeRefused, PermissionRefused, EndpointUnusable, MigrationRefused), ExitCode.REFUSED),
    ((CallTimeout, CallExpired), ExitCode.TIMED_OUT),
    (
        (NoGateway, DirectoryUnavailable, MembershipUnavailable, SiloUnavailable, StorageUnavailable),
        ExitCode.UNREACHABLE,
    ),
)

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


grains_app = typer.Typer(no_args_is_help=True, help="Look at grains.")
app.add_typer(grains_app, name="grains")

LOG_LEVEL = "telemetry.log_level"
FROM_PYDANTIC = "Value error, "
"""What typer leaves of pydantic in front of its own words about a value."""
DEACTIVATE_ANSWER_S = 5.0
"""How long, beyond the time for the grain to end, `silo deactivate` waits for the silos to say so."""


class TokenRole(enum.StrEnum):
    """The roles that a token can be made for; the cluster token itself is a silo's."""

    CLIENT = "client"
    ADMIN = "admin"


Modules = Annotated[list[str], typer.Argument(metavar="MODULE", help="Modules with @grain classes, as in `import`.")]
Grains = Annotated[list[str], typer.Argument(metavar="GRAIN", help="Grains as kind/key.")]
SiloArgument = Annotated[str, typer.Argument(metavar="SILO", help="A silo's name, endpoint or address.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any setting by its name; `silo config` lists them."),
]
LogLevelOption = Annotated[str | None, typer.Option("--log-level", help="debug, info, warning or error.")]
LogFormatOption = Annotated[str | None, typer.Option("--log-format", help="auto, json or console.")]
LoopOption = Annotated[Loop | None, typer.Option("--loop", help="The event loop; uvloop where there is one.")]


def _installed_version() -> str:
    try:
        return version("grain-silo")
    except PackageNotFoundError:
        return "(run from its source, not installed)"


def _show_version(asked: bool) -> None:
    if asked:
        terminal.say(f"silo {_installed_version()}")
        raise typer.Exit


@app.callback()
def command(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Virtual actors whose grains move between processes while they are being called."""


@app.command()
def run(
    modules: Modules,
    cluster: ClusterOption = None,
    redis: RedisOption = None,
    listen: Annotated[str | None, typer.Option(help="host:port to listen on; port 0 takes a free one.")] = None,
    advertise: Annotated[str | None, typer.Option(help="host:port where others find it.")] = None,
    name: Annotated[str | None, typer.Option(help="The silo's name, the same after a restart.")] = None,
    meta: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="For placement; may be repeated.")] = None,
    bootstrap: Annotated[
        bool | None, typer.Option("--bootstrap", help="The first silo of a new cluster: its grains wait for no others.")
    ] = None,
    insecure: Annotated[bool | None, typer.Option("--insecure", help="Let anyone who reaches it call grains.")] = None,
    otel: Annotated[bool | None, typer.Option("--otel", help="Traces and metrics, set by OTEL_… variables.")] = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
    loop: LoopOption = None,
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True)] = False,
    quiet: Annotated[bool, typer.Option("--quiet", hidden=True)] = False,
) -> int:
    """Run one silo until SIGTERM or Ctrl-C; it then moves its grains elsewhere and ends. A second one ends it now."""
    named = {
        "cluster": cluster,
        "redis": redis,
        "listen": listen,
        "advertise": advertise,
        "name": name,
        "meta": _pairs(meta, "--meta") or None,
        "bootstrap": bootstrap,
        "insecure": insecure,
        "telemetry.otel": otel,
        LOG_LEVEL: log_level,
        "telemetry.log_format": log_format,
    }
    flags = _flags(settings, named)
    from silo.configuration import load

    effective = load(flags, file=config).settings
    if effective.redis is None:
        raise InvalidSettings("no Redis is named: give --redis URL or set SILO_REDIS (for one machine, use `silo dev`)")
    configure(effective.telemetry.log_level, effective.telemetry.log_format, quiet=quiet)
    loaded = [import_application(module) for module in modules]
    from silo.serving import serve

    return run_on(loop, serve(loaded, effective, with_parent=with_parent))


@app.command()
def dev(
    modules: Modules,
    silos: Annotated[int, typer.Option(min=1, max=64, help="How many silo processes.")] = 3,
    cluster: ClusterOption = None,
    redis: Annotated[str | None, typer.Option("--redis", help="Use this Redis instead of one of its own.")] = None,
    once: Annotated[bool, typer.Option("--once", help="End when the module's `main(client)` has.")] = False,
    config: ConfigOption = None,
    settings: SetOption = None,
    log_level: LogLevelOption = None,
) -> int:
    """Run a whole cluster on this machine. A module's `async def main(client)` is run once all silos are ready."""
    # A name of its own, unless one is asked for: in a Redis that is kept, earlier clusters have left their rows.
    name = cluster or f"dev-{secrets.token_hex(3)}"
    flags = _flags(settings, {"cluster": name, "redis": redis, LOG_LEVEL: log_level})
    from silo.configuration import load
    from silo.dev_cluster import DevCluster, own_or_given, run_dev_cluster, scenario_of

    configuration = load(flags, file=config)
    imported = [import_application(module) for module in modules]  # what is wrong with one is said once for all silos
    scenario = scenario_of(imported[0])
    if once and scenario is None:
        raise InvalidSettings(f"--once ends with the module's `async def main(client)`, and {modules[0]} has none")
    options = [f"--set={item}" for item in settings or ()]
    options += [f"--config={config}"] if config is not None else []
    options += [f"--log-level={configuration.settings.telemetry.log_level}"]
    options += ["--log-format=console"] if sys.stderr.isatty() else []
    # The screen is the application's: it sees of the silos what goes wrong, and the rest where a level is asked for.
    by_default = all(each.source == "default" for each in configuration.effective() if each.name == LOG_LEVEL)
    options += ["--quiet"] if by_default else []

    async def develop() -> int:
        async with own_or_given(redis) as url:
            plan = DevCluster(
                modules=modules,
                silos=silos,
                settings=configuration.settings.model_copy(update={"redis": url}),
                options=options,
                scenario=scenario,
                once=once,
                console=terminal.out,
            )
            return await run_dev_cluster(plan)

    return run_on(Loop.ASYNCIO, develop())


@app.command()
@asks_cluster(timeout_s=60.0)
def migrate(
    grains: Grains,
    to: Annotated[
        str | None, typer.Option("--to", help="A silo's name or address; without it placement decides.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Goes into logs and traces.")] = "admin",
    force: Annotated[bool, typer.Option("--force", help="Also a grain whose kind says migratable=False.")] = False,
    on_busy: Annotated[
        OnBusy | None,
        typer.Option(
            "--on-busy",
            help="Running calls: wait for them, let the grain stay, or interrupt them; else as its kind says.",
        ),
    ] = None,
    *,
    reach: Reach,
) -> int:
    """Move live grains to another silo while they are being called."""
    identities = [GrainId.parse(text) for text in grains]

    async def move(client: Client) -> list[MigrationOutcome]:
        return await client.migrate_many(identities, to=to, reason=reason, force=force, on_busy=on_busy)

    outcomes = reach.ask(move)
    for outcome in outcomes:
        reach.tell(outcome, str(outcome))
    return _verdict(outcomes)


@app.command()
@asks_cluster()
def status(reach: Reach) -> int:
    """Show the members of a cluster and what they host."""
    from silo.management_values import summary

    async def ask(client: Client) -> ClusterStatus:
        return await client.management.status()

    found = reach.ask(ask)
    reach.show(found, lambda: summary(found))
    return ExitCode.DONE


@app.command()
@asks_cluster()
def cordon(silo: SiloArgument, reach: Reach) -> int:
    """Have a silo take no new grains; it serves what it has. Until `silo uncordon`, or the silo's restart."""
    return _cordon(silo, True, reach)


@app.command()
@asks_cluster()
def uncordon(silo: SiloArgument, reach: Reach) -> int:
    """Have a silo take new grains again; what waits for a place is tried at once."""
    return _cordon(silo, False, reach)


def _cordon(silo: str, cordoned: bool, reach: Reach) -> ExitCode:
    async def order(client: Client) -> SiloAddress:
        return await (client.management.cordon(silo) if cordoned else client.management.uncordon(silo))

    address = reach.ask(order)
    what = "is cordoned: it takes no new grains" if cordoned else "takes new grains"
    reach.tell({"silo": silo, "address": address, "cordoned": cordoned}, f"{silo} ({address}) {what}")
    return ExitCode.DONE


@app.command()
@asks_cluster(timeout_s=30.0)
def deactivate(grains: Grains, reach: Reach) -> int:
    """End the activations of grains, whatever they do, and forget their troubles; the next call begins afresh."""
    from silo.grain_records import DeactivationStatus

    identities = [GrainId.parse(text) for text in grains]

    async def order(client: Client) -> list[DeactivationOutcome]:
        return [await client.management.deactivate(each, timeout_s=reach.timeout) for each in identities]

    outcomes = reach.ask(order, within_s=len(identities) * (reach.timeout + DEACTIVATE_ANSWER_S))
    for outcome in outcomes:
        reach.tell(outcome, str(outcome))
    if any(outcome.status is DeactivationStatus.UNDER_WAY for outcome in outcomes):
        return ExitCode.TIMED_OUT
    if any(outcome.unanswered for outcome in outcomes):
        return ExitCode.PARTLY_DONE
    mistaken = any(outcome.why for outcome in outcomes)  # there can be no such grain
    return ExitCode.NOT_MET if mistaken else ExitCode.DONE


@grains_app.command("get")
@asks_cluster()
def get_grain(grain: Annotated[str, typer.Argument(metavar="GRAIN", help="A grain as kind/key.")], reach: Reach) -> int:
    """Show where a grain is active and what it does; or what keeps it from that, and when it is tried again."""
    from silo.grain_records import summary

    identity = GrainId.parse(grain)

    async def ask(client: Client) -> GrainRecord:
        return await client.management.grain(identity)

    found = reach.ask(ask)
    reach.show(found, lambda: summary(found))
    return ExitCode.PARTLY_DONE if found.unanswered else ExitCode.DONE


@app.command("config")
def show_config(config: ConfigOption = None, settings: SetOption = None, as_json: JsonOption = False) -> int:
    """Show every setting, its value here, and where that comes from."""
    from silo.configuration import load

    configuration = load(_pairs(settings, "--set"), file=config)
    if as_json:
        shown = {each.name: {"value": each.value, "source": each.source} for each in configuration.effective()}
        terminal.say(terminal.as_json(shown))
    else:
        rows = [{"setting": each.name, "value": each.value, "from": each.source} for each in configuration.effective()]
        terminal.show_rows(rows)
    return ExitCode.DONE


@app.command()
def token(
    role: Annotated[TokenRole, typer.Option(help="What its bearer may be.")] = TokenRole.CLIENT,
    config: ConfigOption = None,
) -> int:
    """Derive a token for clients or admins from the cluster token; its bearer cannot pass for a silo."""
    from silo.configuration import load

    held = load(file=config).settings.cluster_token
    if held is None:
        raise InvalidSettings("there is no cluster token to derive from: set SILO_CLUSTER_TOKEN")
    from silo.messaging.greeting import Credentials
    from silo.messaging.permissions import Role

    terminal.say(Credentials(held.get_secret_value()).derive(Role(role.value)))
    return ExitCode.DONE


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The console script: run the command and end the process with its exit code.

    The garbage collector is kept off what is imported: it is no garbage, and to look through it again and again, last
    when the interpreter ends, would take `silo config` a fifth of its time. What an application makes is none of that:
    where one runs, `run_on` has frozen what came before it, and its end is as in any other process.
    """
    gc.set_threshold(*COLLECTED_WHILE_IMPORTING)
    code = invoke(arguments)
    if not gc.get_freeze_count():
        gc.freeze()
    sys.exit(code)


def invoke(arguments: Sequence[str] | None = None) -> int:
    """Run the command; every error that a user can do something about is one line on standard error."""
    try:
        code: object = app(args=arguments, prog_name="silo", standalone_mode=False)
    except TyperException as error:
        if message := error.format_message():  # without any argument the help has been shown, which says it all
            terminal.complain(message.replace(FROM_PYDANTIC, "").rstrip(".") + _help_for(error))
        return ExitCode.USAGE
    except (Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    except SiloError as error:
        terminal.complain(str(error))
        return exit_code(error)
    return code if isinstance(code, int) else ExitCode.DONE


def _help_for(error: TyperException) -> str:
    """Where to read on after a command line that was not understood."""
    path: object = getattr(getattr(error, "ctx", None), "command_path", None)  # typer shows no type that has one
    return f" (see `{path} --help`)" if isinstance(path, str) else ""


def exit_code(error: SiloError) -> ExitCode:
    """What a script learns of an error."""
    return next((code for kinds, code in EXIT_CODES if isinstance(error, kinds)), ExitCode.NOT_MET)


def _pairs(items: Sequence[str] | None, flag: str) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for item in items or ():
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise InvalidSettings(f"{flag} takes name=value, not {item!r}")
        pairs[key] = value
    return pairs


def _flags(settings: Sequence[str] | None, named: Mapping[str, Any]) -> dict[str, Any]:
    """What --set gives, and above it the flags that have a name of their own, where they are given."""
    return {**_pairs(settings, "--set"), **{name: value for name, value in named.items() if value is not None}}


def _verdict(outcomes: Sequence[MigrationOutcome]) -> ExitCode:
    from silo.migration.outcome import MoveStatus

    moved = sum(outcome.moved for outcome in outcomes)
    if moved == len(outcomes):
        return ExitCode.DONE
    if moved:
        return ExitCode.PARTLY_DONE
    refused = all(outcome.status is MoveStatus.REFUSED for outcome in outcomes)
    return ExitCode.REFUSED if refused else ExitCode.NOT_MET
