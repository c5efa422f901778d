"""The caller's end of a peer, in a process of its own: `python -m benchmarks.peers.caller NAME`.

It first says what there is to measure, then reads what to do from standard input, and answers each line with one, all
of them JSON: {"prepare": ROW} with {}, {"measure": ROW, "seconds": S} with the tally and the processor time of the
peer's processes; or with {"error": WHY}, or {"unfit": WHY} where this version of the peer cannot do that row.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import importlib
import json
import os
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TextIO

from benchmarks.meter import Work
from benchmarks.peers.contract import Peer, Unfit
from benchmarks.peers.family import cpu_s, cpu_s_since

LINE_BYTES_MAX = 64 * 1024


async def standard_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed."""
    try:
        uvloop: Any = importlib.import_module("uvloop")
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def drive(adapter: Any, answers: TextIO) -> int:
    """Do as told, until standard input ends."""
    peer: Peer = adapter.Adapter()
    works: dict[str, Work] = {}
    reader = await standard_input()
    try:
        while line := await reader.readline():
            print(json.dumps(await _answer(peer, works, json.loads(line))), file=answers, flush=True)
    finally:
        await peer.close()
    return 0


async def _answer(peer: Peer, works: dict[str, Work], told: dict[str, Any]) -> dict[str, Any]:
    try:
        if "prepare" in told:
            works[told["prepare"]] = await peer.prepare(told["prepare"])
            return {}
        gc.collect()
        before = cpu_s()
        tally = await works[told["measure"]](told["seconds"])
        return dataclasses.asdict(dataclasses.replace(tally, cpu_s=cpu_s_since(before)))
    except Unfit as error:
        return {"unfit": str(error)}
    except Exception as error:  # whatever a peer raises is a result
        return {"error": f"{type(error).__name__}: {error}"}


def main(given: list[str]) -> int:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # peers print, too
    (name,) = given
    try:
        adapter: Any = importlib.import_module(f"benchmarks.peers.{name}")
    except ModuleNotFoundError as error:
        print(json.dumps({"missing": error.name}), file=answers, flush=True)
        return 0
    try:
        found = version(name)
    except PackageNotFoundError:
        found = "unknown"
    print(json.dumps({"version": found, "python": sys.version.split()[0]}), file=answers, flush=True)
    factory = fastest_loop() if adapter.Adapter.uvloop else None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(drive(adapter, answers))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
