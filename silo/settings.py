"""The settings of a silo: every bound of the runtime in one place, by name, with its unit, its default and its purpose.

A value comes from a flag, else from the environment (`SILO_…`), else from a TOML file, else from the default written
here. A name that no setting has is refused, with a suggestion. Parts do not see this module: the host hands each part
the few values that are its own.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from annotated_types import Ge, Gt, Le
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import NoDecode

from silo.directory.addresses import CLUSTER_PATTERN
from silo.directory.errors import InvalidSettings
from silo.directory.lease_settings import LeaseSettings
from silo.endpoints import is_loopback, is_wildcard, split_endpoint
from silo.messaging.limits import LinkLimits

KIB = 1024
MIB = 1024 * KIB

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
REDIS_SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")

Seconds = Annotated[float, Gt(0)]
SecondsOrNone = Annotated[float, Ge(0)]
Count = Annotated[int, Ge(1)]
Bytes = Annotated[int, Ge(1)]


def _endpoint(text: str) -> str:
    split_endpoint(text)
    return text


def _cluster(text: str) -> str:
    if not CLUSTER_PATTERN.fullmatch(text):
        raise ValueError(f"{text!r} is not a cluster name: lower-case letters, digits and hyphens only")
    return text


def _name(text: str) -> str:
    if not NAME_PATTERN.fullmatch(text):
        raise ValueError(f"{text!r} is not a silo name: it does not match {NAME_PATTERN.pattern}")
    return text


def _redis_url(text: str) -> str:
    scheme, separator, rest = text.partition("://")
    if not separator or not rest or scheme not in REDIS_SCHEMES:
        raise ValueError(
            f"not a Redis URL, which starts with one of {', '.join(f'{each}://' for each in REDIS_SCHEMES)}"
        )
    return text


def _pairs(value: object) -> object:
    """A mapping as flags and the environment write it: `zone=a,rack=3`."""
    if not isinstance(value, str):
        return value
    pairs: dict[str, str] = {}
    for item in filter(None, value.split(",")):
        key, equals, text = item.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"{item!r} is not of the form name=value")
        pairs[key.strip()] = text.strip()
    return pairs


def _token(value: SecretStr) -> SecretStr:
    if not value.get_secret_value():
        raise ValueError("an empty token protects nothing; leave it out instead")
    return value


Pairs = Annotated[dict[str, str], NoDecode, BeforeValidator(_pairs)]
"""Names and values; as one text, `zone=a,rack=3`."""


class RefusedSettings(InvalidSettings):
    """The InvalidSettings of a group of settings: all problems, each with the dotted name that it is about, or ""."""

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{name}: {what}" if name else what for name, what in problems))
        self.problems = tuple(problems)


class _Checked(BaseModel):
    """What all groups share: frozen, exact about names, and wrong in one way only: InvalidSettings."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    if not TYPE_CHECKING:  # type checkers shall see the fields as the constructor's parameters

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise RefusedSettings(_problems(error)) from None


class CallSettings(_Checked):
    """What bounds one call."""

    call_timeout_s: Seconds = 30.0
    """The time budget of a call that states none."""
    hops_max: Annotated[int, Ge(1), Le(255)] = 4
    """How often one call may be forwarded before it goes back to its caller's silo, which tries until the deadline."""
    retry_pause_first_s: Seconds = 0.05
    """The pause before a grain that cannot be found or placed now, or was not where its calls went, is tried again;
    doubled each time."""
    retry_pause_last_s: Seconds = 1.0
    """The longest such pause."""


class ActivationSettings(_Checked):
    """The life of one activation, where its grain kind says nothing else."""

    activation_timeout_s: Seconds = 30.0
    """The time for a grain's constructor, `on_rehydrate` and `on_activate`."""
    deactivation_timeout_s: Seconds = 30.0
    """The time for a grain's `on_deactivate`."""
    activate_tries_max: Count = 2
    """How often `on_activate` is tried after a move that is committed; then the grain goes back where it came from."""
    collect_after_s: Seconds = 900.0
    """An activation that served no call for this long is deactivated."""
    collect_every_s: Seconds = 30.0
    """How often idle activations are looked for."""
    collect_in_flight_max: Count = 500
    """Idle activations that one silo ends at a time; the others as these have ended."""
    state_bytes_max: Bytes = 8 * MIB
    """The largest value of one persistent state."""
    activations_in_flight_max: Count = 1_000
    """Activations that one silo makes at a time: registers, reads the state of, runs `on_activate` of. What comes
    beyond waits in order, within its callers' deadlines; placement passes the silo over while another can be had.
    (5,000 a second, more than one silo manages, may each take a fifth of a second before this holds any back.)"""
    warm_up_s: SecondsOrNone = 0.0
    """A silo younger than this makes only its share of these at a time: by its age, and a sixteenth from the start; 0
    for all of them at once."""
    activations_max: Count | None = None
    """Activations that one silo hosts; it takes no more than that, and they are placed elsewhere. None for no bound."""


class QueueSettings(_Checked):
    """How many calls may wait, and how large; one more is refused as Overloaded."""

    queue_calls_max: Count = 1_000
    """Calls that wait for one grain."""
    queue_bytes_max: Bytes = 64 * MIB
    """Bytes of the calls that wait for one grain. A call by itself may be larger."""
    silo_queue_calls_max: Count = 100_000
    """Calls that wait or run on one silo: so many that came from other silos, and so many that were made here or by
    its clients."""
    silo_queue_bytes_max: Bytes = 512 * MIB
    """Bytes of the calls that wait or run on one silo, counted likewise. A call by itself may be larger."""


def _link(limits: LinkLimits) -> LinkLimits:
    """The limits, where they can be met together."""
    for each in dataclasses.fields(limits):
        value = getattr(limits, each.name)
        if not (math.isfinite(value) and value > 0):
            raise RefusedSettings([(each.name, f"must be above 0, not {value}")])
    if limits.chunk_bytes > limits.batch_bytes_max:
        raise RefusedSettings([("chunk_bytes", "must not exceed batch_bytes_max: a chunk travels in a batch")])
    if limits.link_ping_s >= limits.link_silence_s:
        raise RefusedSettings([("link_ping_s", "must be below link_silence_s, or healthy idle links are given up")])
    return limits


class MigrationSettings(_Checked):
    """How activations are moved."""

    drain_timeout_s: Seconds = 60.0
    """How long a grain's running turns may take to finish once it is to move, where its kind says nothing else."""
    shutdown_timeout_s: Seconds = 30.0
    """The whole drain of a silo that was told to stop; then it stops with what is left."""
    payload_bytes_max: Bytes = 16 * MIB
    """The largest dehydrated state of one grain; a larger one is refused before the grain stops."""
    moves_in_flight_max: Count = 100
    """Grains that one silo moves away at a time."""
    arrivals_in_flight_max: Count = 1_000
    """Grains that may be arriving at one silo at a time; one more is refused, and stays where it is."""
    notice_timeout_s: Seconds = 10.0
    """How long a grain's `on_migrating` may take; then the move goes on without it."""
    ask_timeout_s: Seconds = 2.0
    """How long a target may take to say whether it can accept a grain."""
    offer_timeout_s: Seconds = 10.0
    """How long a target may take to accept what it was offered; then the directory judges."""


class PlacementSettings(_Checked):
    """Where new activations land: policies by name, such as `prefer-local`."""

    policy: str = "random"
    """The policy of kinds for which nothing else is said."""
    type_policies: Pairs = {}
    """Policies by grain kind, for kinds that declare none: `room=prefer-local,cart=consistent-hash`."""
    force_policies: Pairs = {}
    """Policies by grain kind, above what the kind declares."""


class TelemetrySettings(_Checked):
    """What a silo tells of itself. Exporters are set by the standard `OTEL_…` variables."""

    otel: bool = False
    """Whether traces and metrics are produced; needs the extra `otel`. A variable naming an exporter turns it on."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "json", "console"] = "auto"
    """Logs as JSON lines or for the eye; `auto` asks whether standard error is a terminal."""


class TlsSettings(_Checked):
    """The PEM files of TLS at both ends, for all that silos, clients and commands say to each other: all three, or none
    for plain text. The direct lane goes by TCP then, and not by unix sockets."""

    certificate: Path | None = None
    """The own certificate, which names the host of `advertise`, and those between it and an authority."""
    key: Path | None = None
    """The key of the own certificate, without a password."""
    authorities: Path | None = None
    """The certificates of those whose word is believed; nobody else's is."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        missing = [name for name, path in self if path is None]
        if missing and len(missing) < len(TlsSettings.model_fields):
            raise ValueError(f"all of certificate, key and authorities are wanted, or none; {missing[0]} is missing")
        return self


class SiloSettings(_Checked):
    """All that one silo is told; immutable.

    Built in code it holds what it is given and defaults; `silo.configuration.load` reads environment and file too.

    Raises:
        InvalidSettings: a name is unknown, a value is out of range, or two of them contradict each other.
    """

    cluster: Annotated[str, AfterValidator(_cluster)] = "default"
    """The cluster to join: lower-case letters, digits and hyphens."""
    redis: Annotated[str, AfterValidator(_redis_url)] | None = Field(default=None, repr=False)
    """The URL of the Redis or Valkey that keeps directory and membership."""
    storage: Annotated[str, AfterValidator(_redis_url)] | None = Field(default=None, repr=False)
    """The URL of the Redis or Valkey that keeps persistent state, if it is not the one of `redis`."""
    bootstrap: bool = False
    """Whether this silo may be the first of a new cluster. Without it, a silo that finds no cluster table in the store
    takes that for wiped, and new grains wait for silos that may still serve them. Where the store has a table it
    changes nothing."""
    listen: Annotated[str, AfterValidator(_endpoint)] = "127.0.0.1:0"
    """Where to listen, as `host:port`. Port 0: any free port, and the one really bound is advertised."""
    advertise: Annotated[str, AfterValidator(_endpoint)] | None = None
    """Where others reach this silo, if not where it listens. Port 0: the port really bound."""
    lease_port: Annotated[int, Ge(0), Le(65535)] = 0
    """The port of the lease's own listener, on the hosts of `listen` and `advertise`. 0: any free port."""
    direct: bool = True
    """Whether silos talk by the direct lane, TCP or unix sockets, once they have met over gRPC; else by gRPC alone."""
    direct_local: bool = True
    """Whether silos of one user on one host talk by unix sockets where they have the direct lane."""
    direct_port: Annotated[int, Ge(0), Le(65535)] = 0
    """The port of the direct lane, on the host of `listen`. 0: any free port."""
    direct_advertise: Annotated[str, AfterValidator(_endpoint)] | None = None
    """Where other silos reach the direct lane, if not on the host of `advertise`. Port 0: the port really bound."""
    name: Annotated[str, AfterValidator(_name)] | None = None
    """The name for people, the same after a restart; the advertised endpoint where none is given."""
    meta: Pairs = {}
    """What placement may ask of a silo: `zone=a,rack=3`."""
    gateway: bool = True
    """Whether clients may enter the cluster here."""
    app_version: str = ""
    """The version of the application."""
    cluster_token: Annotated[SecretStr, AfterValidator(_token)] | None = None
    """The secret that silos and clients of the cluster prove to each other."""
    insecure: bool = False
    """Accepts in so many words that whoever reaches the endpoint may call grains, where there is no token."""
    cloudpickle: bool = False
    """Whether authenticated silos may send values by cloudpickle, which runs code where it is decoded."""

    loop_stuck_after_s: Seconds = 120.0
    """An event loop that did not run for this long is not coming back: stacks are dumped, and the process ends."""

    lease: LeaseSettings = LeaseSettings()
    calls: CallSettings = CallSettings()
    activation: ActivationSettings = ActivationSettings()
    queues: QueueSettings = QueueSettings()
    link: Annotated[LinkLimits, AfterValidator(_link)] = LinkLimits()
    migration: MigrationSettings = MigrationSettings()
    placement: PlacementSettings = PlacementSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    tls: TlsSettings = TlsSettings()

    @model_validator(mode="after")
    def _agree(self) -> Self:
        host, _ = split_endpoint(self.listen)
        if not is_loopback(host) and self.cluster_token is None and not self.insecure:
            raise ValueError(
                f"listening on {self.listen}, which other machines can reach, without a cluster token would let anyone "
                "call every grain: set SILO_CLUSTER_TOKEN to a secret, or accept it in so many words with --insecure "
                "(insecure = true)"
            )
        if is_wildcard(host) and self.advertise is None:
            raise ValueError(
                f"{self.listen} is no address to dial: say with --advertise HOST:PORT where others find it"
            )
        if self.advertise is not None and is_wildcard(split_endpoint(self.advertise)[0]):
            raise ValueError(f"advertise: {self.advertise} is no address that others can dial")
        if self.cloudpickle and self.cluster_token is None:
            raise ValueError(
                "cloudpickle without a cluster token is refused, since whoever reaches the endpoint could run any "
                "code: set SILO_CLUSTER_TOKEN"
            )
        if self.migration.payload_bytes_max > self.link.frame_bytes_max:
            raise ValueError(
                "migration.payload_bytes_max must not exceed link.frame_bytes_max: a payload travels in one frame"
            )
        return self


def setting_names(group: type[object] = SiloSettings, prefix: str = "") -> list[str]:
    """The dotted names of all settings: `cluster`, `lease.lease_s`, and so on."""
    if issubclass(group, BaseModel):
        fields = {name: field.annotation for name, field in group.model_fields.items()}
    elif dataclasses.is_dataclass(group):
        fields = {each.name: None for each in dataclasses.fields(group)}
    else:
        return [prefix.removesuffix(".")]
    names: list[str] = []
    for name, kind in fields.items():
        names += setting_names(kind if isinstance(kind, type) else object, f"{prefix}{name}.")
    return names


def suggestion(name: str, known: Sequence[str], prefix: str = "") -> str:
    """What to say after a name that nothing has: the closest one that something has, else who lists them all.

    Args:
        prefix: what all names begin with; it makes none of them like another.
    """
    name, known = name.removeprefix(prefix), [each.removeprefix(prefix) for each in known]
    close = difflib.get_close_matches(name, known, n=1)
    if not close:
        leaves = {each.rpartition(".")[2]: each for each in known}
        close = [leaves[match] for match in difflib.get_close_matches(name.rpartition(".")[2], leaves, n=1)]
    return f"; did you mean {prefix}{close[0]}?" if close else "; `silo config` lists all settings"


def _problems(error: ValidationError) -> Sequence[tuple[str, str]]:
    """A name and a remark for each thing that is wrong; never the input, which may be secret."""
    names = setting_names()
    known = [*names, *{name.partition(".")[0] for name in names if "." in name}]
    problems: list[tuple[str, str]] = []
    for problem in error.errors(include_url=False, include_input=False):
        path = ".".join(str(part) for part in problem["loc"])
        cause = problem.get("ctx", {}).get("error")
        if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            problems.append((path, "there is no such setting" + suggestion(path, known)))
        elif isinstance(cause, RefusedSettings):  # of the group at this path
            problems += [(f"{path}.{name}" if name else path, what) for name, what in cause.problems]
        else:
            problems.append((path, problem["msg"] if cause is None else str(cause)))
    return problems
