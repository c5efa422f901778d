"""A peer's server: `python -m benchmarks.peers.host NAME ARGUMENTS` has the adapter serve until standard input ends."""

from __future__ import annotations

import asyncio
import importlib
import sys
from typing import Any

from benchmarks.peers.caller import fastest_loop, standard_input
from benchmarks.peers.contract import READY


async def host(adapter: Any, arguments: list[str]) -> int:
    serving = asyncio.ensure_future(adapter.serve(lambda: print(READY, flush=True), *arguments))
    ended = asyncio.ensure_future((await standard_input()).read())
    await asyncio.wait([serving, ended], return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        await serving  # raises what ended it
    return 0


def main(given: list[str]) -> int:
    adapter: Any = importlib.import_module(f"benchmarks.peers.{given[0]}")
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        return runner.run(host(adapter, given[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
