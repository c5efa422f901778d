"""Where settings come from: flags, else environment, else a TOML file, else defaults; and which of them said what."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, SecretStr
from pydantic_settings import BaseSettings, EnvSettingsSource
from pydantic_settings.exceptions import SettingsError

from silo.directory.errors import InvalidSettings
from silo.settings import RefusedSettings, SiloSettings, setting_names, suggestion

PREFIX = "SILO_"
CONFIG_VARIABLE = "SILO_CONFIG"
"""Names the TOML file, where no flag does."""
TEST_PREFIX = "SILO_TEST_"
"""Variables of the test suite; no settings."""
OTEL_VARIABLES = ("OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""Whoever sets one of these wants telemetry, unless a setting of ours says otherwise."""
SERVICE_LINK = re.compile(
    r"SILO_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
"""Kubernetes sets these in every pod beside a Service whose name starts with `silo`; they are not meant for us."""


@dataclass(frozen=True, slots=True)
class Effective:
    """One setting as it stands: its value as text (secrets hidden), and where that came from."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings, and for each that is not a default, by whom it was given."""

    settings: SiloSettings
    sources: Mapping[str, str]

    def effective(self) -> Iterator[Effective]:
        """All settings with value and source, in the order of their definition."""
        for name in setting_names():
            value: Any = self.settings
            for part in name.split("."):
                value = getattr(value, part)
            yield Effective(name, _shown(name, value), self.sources.get(name, "default"))


def load(flags: Mapping[str, Any] | None = None, *, file: Path | None = None) -> Configuration:
    """The settings from flags (by dotted name; None means not given), environment and file.

    Raises:
        InvalidSettings: a name is unknown, the file cannot be read, or a value is refused; the message says from where.
    """
    if file is None and (named := os.environ.get(CONFIG_VARIABLE)):
        file = Path(named)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for variable in OTEL_VARIABLES:
        if os.environ.get(variable, "none") not in ("", "none"):
            values["telemetry.otel"], sources["telemetry.otel"] = True, variable
    if file is not None:
        for name, value in _leaves(_read_toml(file)):
            values[name], sources[name] = value, str(file)
    _refuse_unknown_variables(os.environ)
    for name, value in _leaves(_read_environment()):
        values[name], sources[name] = value, variable_of(name)
    for name, value in (flags or {}).items():
        if value is not None:
            values[name], sources[name] = value, "flag"
    try:
        settings = SiloSettings(**_nested(values))
    except RefusedSettings as error:
        raise RefusedSettings(
            [(name, f"{what} (from {sources[name]})" if name in sources else what) for name, what in error.problems]
        ) from None
    return Configuration(settings, sources)


def variable_of(name: str) -> str:
    """The environment variable of a setting: `link.chunk_bytes` is SILO_LINK__CHUNK_BYTES."""
    return PREFIX + name.upper().replace(".", "__")


def _read_toml(file: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSettings(f"the settings file {file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidSettings(f"the settings file {file} is not TOML: {error}") from error


def _read_environment() -> Mapping[str, Any]:
    # The source looks at fields only. SiloSettings is no BaseSettings: one of those reads the environment unasked.
    fields = cast(type[BaseSettings], SiloSettings)
    source = EnvSettingsSource(fields, case_sensitive=False, env_prefix=PREFIX, env_nested_delimiter="__")
    try:
        return source()
    except SettingsError as error:
        raise InvalidSettings(f"in the environment: {error}") from None


def _refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    known = [variable_of(name) for name in setting_names()]
    for variable in sorted(environ):
        name = variable.upper()
        if not name.startswith(PREFIX) or name.startswith(TEST_PREFIX) or name == CONFIG_VARIABLE or name in known:
            continue
        if not SERVICE_LINK.fullmatch(name):
            raise InvalidSettings(
                f"{variable}: no setting has this environment variable{suggestion(name, known, prefix=PREFIX)}"
            )


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted names of a tree of settings, with their values; a mapping that is a value (`meta`) stays whole."""
    names = setting_names()
    for key, value in tree.items():
        name = prefix + key
        is_group = any(each.startswith(f"{name}.") for each in names)
        if is_group and isinstance(value, Mapping):
            yield from _leaves(cast("Mapping[str, Any]", value), f"{name}.")
        else:
            yield name, value


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in values.items():
        *groups, leaf = name.split(".")
        node = tree
        for group in groups:
            if not isinstance(node.setdefault(group, {}), dict):
                raise InvalidSettings(f"{group}: given both as a whole and in parts")
            node = node[group]
        node[leaf] = value
    return tree


def _shown(name: str, value: Any) -> str:
    if isinstance(value, SecretStr):
        return "(hidden)"
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return ",".join(f"{key}={text}" for key, text in cast("Mapping[str, str]", value).items()) or "-"
    if isinstance(value, bool):
        return str(value).lower()
    if name in ("redis", "storage"):
        return without_password(str(value))
    assert not isinstance(value, BaseModel)
    return str(value)


def without_password(url: str) -> str:
    """The URL as it may be shown."""
    return re.sub(r"//[^/]*@", "//***@", url)
