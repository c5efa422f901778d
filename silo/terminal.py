"""What the command `silo` prints: text for people, JSON for scripts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from rich.console import Console
from rich.table import Table

from silo.directory.addresses import GrainId, SiloAddress

TABLE_WIDTH_MAX = 10_000
"""In characters; beyond it, cells are cut."""

out = Console(highlight=False, soft_wrap=True)
err = Console(highlight=False, soft_wrap=True, stderr=True)


def say(text: str) -> None:
    out.print(text, markup=False)


def complain(message: str) -> None:
    err.print(f"silo: {message}", markup=False)


def plain(value: object) -> Any:
    """The value in the types of JSON: fields that travel by position get their names, addresses are text."""
    if isinstance(value, GrainId | SiloAddress):
        return str(value)
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in cast("Sequence[object]", value)]
    return msgspec.to_builtins(value, str_keys=True)


def as_json(value: object) -> str:
    """One line of JSON."""
    return json.dumps(plain(value), ensure_ascii=False)


def show(value: object) -> None:
    """A value for the eye: its rows as tables, the rest by name."""
    found: object = plain(value)
    if not isinstance(found, dict):
        say(_cell(found))
        return
    for name, each in cast("dict[str, object]", found).items():
        rows = _rows(each)
        if rows:
            say(f"{name}:")
            show_rows(rows)
        else:
            say(f"{name}: {_cell(each)}")


def show_rows(rows: Sequence[Mapping[str, object]]) -> None:
    """A table whose columns are the names in the first row."""
    table = Table(box=None, pad_edge=False)
    for name in rows[0]:
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(*(_cell(row.get(name)) for name in rows[0]))
    # As wide as it is: a terminal wraps what is wider, while half an address is of no use to anybody.
    wide = Console(highlight=False, width=TABLE_WIDTH_MAX)
    with wide.capture() as shown:
        wide.print(table)
    wide.file.write("".join(f"{line.rstrip()}\n" for line in shown.get().splitlines()))


def _rows(value: object) -> Sequence[Mapping[str, object]]:
    """The value as rows of a table; none if that is not what it is."""
    items = cast("list[object]", value) if isinstance(value, list) else []
    return cast("list[dict[str, object]]", items) if all(isinstance(item, dict) for item in items) else []


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value) or "-"
