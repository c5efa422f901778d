"""Peers: the same work as the rows of the runtime, by the same closed loops, each in processes of its own."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.harness import PEERS, Prepare, Rows
from benchmarks.meter import Work
from benchmarks.peers.known import KNOWN, OURS, Known
from benchmarks.stage import Stage

MEMORY = "memory"
"""It has a caller of its own: in what earlier rows have given back actors would find room, and seem to take less."""


def _prepared(peer: str, row: str) -> Prepare:
    async def prepare(stage: Stage) -> Work:
        caller = await stage.peer(peer, apart=row if row == MEMORY else "")
        return await caller.prepare(row)

    return prepare


def add_rows(rows: Rows, peers: Mapping[str, Known] = KNOWN) -> None:
    """Each of what these peers can do, beside the same of the runtime."""
    for peer in peers.values():
        for row, what in peer.rows().items():
            rows.add(
                f"{peer.process}.{row}",
                f"{peer.name}: {what}",
                [peer.process],
                _prepared(peer.name, row),
                beside=OURS.get(row, row),
                unit="activation" if row.startswith("activate") else "actor" if row == MEMORY else "call",
                scene=PEERS,
            )
