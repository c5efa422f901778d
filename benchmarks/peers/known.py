"""The peers that there are adapters for, and what each can and cannot do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from benchmarks.sizes import (
    ACTIVATIONS_IN_FLIGHT,
    FAN_GRAINS,
    LOCAL_GRAINS,
    REMOTE_GRAINS,
    RING_GRAINS,
    SIZES,
)

LOCAL: Final = {
    "local.1": "an actor in the caller's process",
    "local.64": f"64 in flight over {LOCAL_GRAINS} actors in the caller's process",
    "activate.local": f"first calls to actors in the caller's process, {ACTIVATIONS_IN_FLIGHT} in flight",
    "memory": "idle actors in the caller's process; bytes of all its processes",
}
REMOTE: Final = {
    **{f"remote.{many}": f"to another process, {many} in flight over {REMOTE_GRAINS} actors" for many in (1, 64, 512)},
    **{
        f"remote.{size}{many}": f"{SIZES[size] // 1024:,} KiB echoed by another process, {many} in flight"
        f" over {REMOTE_GRAINS} actors"
        for size, many in (("10k.", 64), ("1m.", 16))
    },
    "activate.remote": f"first calls to actors in another process, {ACTIVATIONS_IN_FLIGHT} in flight",
}
SEVERAL: Final = {
    f"fan.{FAN_GRAINS}": f"an actor that calls {FAN_GRAINS} others at once, over three processes",
    f"ring.{RING_GRAINS}": f"a call around {RING_GRAINS} actors in as many processes, each within the one before",
}
ROWS: Final = {**LOCAL, **REMOTE, **SEVERAL}
"""What is measured of a peer, by the rest of the row's name; a peer may have words of its own for a row."""
OURS: Final = {"activate.local": "activate.local", "activate.remote": "activate", "memory": None}
"""The row of the runtime that a peer's is compared with, where it is not the one of the same name."""


@dataclass(frozen=True, slots=True)
class Known:
    """A peer that there is an adapter for: the module of its name in this package.

    Args:
        what: in a few words.
        left_out: the rows that it cannot do, and why.
        otherwise: the rows that it does in another way than `ROWS` says, and how.
        python: the first Python that it runs on, in words, where that is not the runtime's own.
    """

    name: str
    what: str
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])
    otherwise: Mapping[str, str] = field(default_factory=dict[str, str])
    python: str = ""

    @property
    def process(self) -> str:
        """The name that its processes together have in a run: that of the caller, and of whatever it starts."""
        return process_of(self.name)

    def rows(self) -> dict[str, str]:
        """The rest of the names of its rows, and what they are."""
        return {row: self.otherwise.get(row, what) for row, what in ROWS.items() if row not in self.left_out}

    def lacks(self, missing: str) -> str:
        """What to do about it where it cannot be imported."""
        where = f" under Python {self.python} or newer (--peer-python {self.name}=PYTHON)" if self.python else ""
        return f"needs {missing}: pip install 'grain-silo[peers]'{where}"


PREFIX: Final = "peer."


def process_of(name: str) -> str:
    return f"{PREFIX}{name}"


ACTORS_OF_PROCESSES: Final = 16
"""Where each actor is a process."""
_SIXTEEN: Final = {
    row: what.replace(f"{REMOTE_GRAINS} actors", f"{ACTORS_OF_PROCESSES} actors, a process each")
    for row, what in REMOTE.items()
    if row != "activate.remote"
}
_PROCESSES: Final = {
    **_SIXTEEN,
    "activate.remote": "first calls to actors one after the other, a process each",
    "memory": "idle actors, a process each; bytes of all processes",
    "fan.10": f"an actor that calls {FAN_GRAINS} others at once, each a process",
}
_ONE_PROCESS: Final = "it has one process, and nothing that calls another"
KNOWN: Final = {
    peer.name: peer
    for peer in (
        Known("casty", "virtual actors with a Rust core, over TCP", python="3.12"),
        Known("xoscar", "actor pools, over TCP"),
        Known(
            "nigrains",
            "virtual actors over HTTP; before 0.10, which wants Python 3.14, in one process",
        ),
        Known(
            "pyorleans",
            "virtual actors in one process; the remote rows are behind uvicorn, called by aiohttp",
            left_out={f"fan.{FAN_GRAINS}": _ONE_PROCESS, f"ring.{RING_GRAINS}": _ONE_PROCESS},
            python="3.12",
        ),
        Known(
            "pykka",
            "a thread for each actor",
            left_out=dict.fromkeys((*REMOTE, *SEVERAL), _ONE_PROCESS),
            otherwise={"activate.local": "first calls to actors one after the other, a thread each"},
        ),
        Known(
            "thespian",
            "a process for each actor, over TCP; locally all of them in the caller's thread",
            left_out={"local.64": "a local system answers before it takes the next call"},
            otherwise={**_PROCESSES, "activate.local": "first calls to actors in the caller's thread"},
        ),
        Known(
            "ray",
            "a process for each actor, over gRPC and shared memory",
            left_out={row: "every actor is a process of its own" for row in LOCAL if row != "memory"},
            otherwise=_PROCESSES,
        ),
    )
}
