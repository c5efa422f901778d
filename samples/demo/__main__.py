"""`python -m samples.demo`: three silos under load are moved about, restarted one by one, and one of them is killed."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from samples.demo.load import Load
from silo import Client
from silo.embedded import EmbeddedServer
from silo.testing.processes import ProcessCluster

SILOS = ("silo-1", "silo-2", "silo-3")


@dataclass
class Step:
    """One row of the table."""

    what: str
    seconds: float
    calls: int
    calls_per_s: float
    slowest_ms: float
    moves: int
    lost: int
    repeated: int


@dataclass
class Demo:
    """The run, and what it has found."""

    load: Load
    client: Client
    cluster: ProcessCluster
    rng: random.Random
    progress: Progress
    seconds: float
    steps: list[Step] = field(default_factory=list[Step])
    moves: int = 0
    moves_failed: dict[str, int] = field(default_factory=dict[str, int])
    restarts: list[int] = field(default_factory=list[int])

    @contextlib.asynccontextmanager
    async def step(self, what: str) -> AsyncIterator[None]:
        """Run one part of the demonstration, and add its row."""
        tally = self.load.tally
        began, calls, moves, pause = time.monotonic(), tally.answered, self.moves, tally.pause_s
        lost, repeated = tally.lost, tally.repeated
        tally.pause_s = 0.0
        task = self.progress.add_task(what, total=None)
        try:
            yield
        finally:
            seconds = time.monotonic() - began
            made = tally.answered - calls
            row = Step(
                what,
                seconds,
                made,
                made / seconds,
                tally.pause_s * 1000,
                self.moves - moves,
                tally.lost - lost,
                tally.repeated - repeated,
            )
            tally.pause_s = max(pause, tally.pause_s)
            self.steps.append(row)
            self.progress.update(task, total=1, completed=1)
            self.progress.console.print(_row(row), highlight=False)

    async def migrate_for(self, seconds: float) -> None:
        """Move random grains to random silos, a batch at a time, while they are being called."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            grains = self.rng.sample(self.load.meters, min(40, len(self.load.meters)))
            to = self.rng.choice([silo.name for silo in self.cluster.running])
            for outcome in await self.client.migrate_many(grains, to=to):
                if outcome.moved:
                    self.moves += 1
                elif outcome.why != "it is already there":
                    self.moves_failed[outcome.why] = self.moves_failed.get(outcome.why, 0) + 1

    async def restart_each(self) -> None:
        """Stop each silo in turn, which moves its grains elsewhere, and start it again."""
        for name in SILOS:
            self.restarts.append(await self.cluster[name].stop())
            await self.cluster.start(name)
            await self.migrate_for(self.seconds * 0.02)

    async def kill_one(self) -> None:
        """SIGKILL the silo that hosts most grains, and wait until all of them answer again."""
        names = [silo.name for silo in self.cluster.running]
        victim = max(names, key=self.load.where.count)
        self.load.killed(victim)
        await self.cluster[victim].kill()
        async with asyncio.timeout(60):
            while not self.load.recovered:
                await asyncio.sleep(0.05)
        await asyncio.sleep(self.seconds * 0.05)


def _row(step: Step) -> str:
    return (
        f"{step.what:<34} {step.seconds:6.1f} s {step.calls:>8,} calls {step.calls_per_s:>8,.0f}/s"
        f"  slowest {step.slowest_ms:>7.1f} ms  moves {step.moves:>6,}  lost {step.lost}  twice {step.repeated}"
    )


async def run(arguments: argparse.Namespace) -> int:
    console = Console(stderr=arguments.json, file=None if not arguments.json else sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        async with EmbeddedServer() as server, ProcessCluster(["samples.demo"], redis=server.url, cluster="demo") as cluster:
            starting = progress.add_task("starting three silos", total=1)
            await cluster.start_all(SILOS)
            progress.update(starting, completed=1)
            console.print(f"three silo processes and {type(server).__name__} at {server.url} are up", highlight=False)
            async with Client.connect(server.url, cluster="demo") as client:
                load = Load(client, arguments.grains)
                rng = random.Random(arguments.seed)
                demo = Demo(load, client, cluster, rng, progress, arguments.seconds)
                calling = asyncio.create_task(load.run())
                try:
                    await _play(demo)
                finally:
                    load.stop()
                    await calling
    return _report(demo, console, as_json=arguments.json)


async def _play(demo: Demo) -> None:
    seconds = demo.seconds
    async with demo.step("under load, nothing else"):
        await asyncio.sleep(seconds * 0.12)
    async with demo.step("migrating grains under load"):
        await demo.migrate_for(seconds * 0.35)
    async with demo.step("rolling restart of the three silos"):
        await demo.restart_each()
    async with demo.step("kill -9 of one silo"):
        await demo.kill_one()


def _report(demo: Demo, console: Console, *, as_json: bool) -> int:
    tally, kill = demo.load.tally, demo.load.kill
    waits = sorted(kill.first_success_s.values()) if kill is not None else []
    good = tally.lost == 0 and tally.repeated == 0 and not any(demo.restarts) and bool(waits)
    figures = {
        "calls_made": tally.made,
        "calls_answered": tally.answered,
        "lost": tally.lost,
        "run_twice": tally.repeated,
        "migrations": demo.moves,
        "migrations_not_done": demo.moves_failed,
        "restart_exit_codes": demo.restarts,
        "longest_pause_ms": round(tally.pause_s * 1000, 1),
        "after_the_kill": {
            "silo": kill.silo if kill is not None else "",
            "grains": len(waits),
            "outcome_unknown": tally.unknown,
            "not_executed": tally.refused,
            "first_success_s": round(waits[0], 3) if waits else None,
            "last_success_s": round(waits[-1], 3) if waits else None,
        },
        "problems": tally.problems,
        "ok": good,
    }
    if as_json:
        print(json.dumps({"v": 1, **figures, "steps": [step.__dict__ for step in demo.steps]}, indent=2))
        return 0 if good else 1
    table = Table(show_header=False, title="verdict", title_justify="left")
    table.add_row("calls made", f"{tally.made:,}")
    table.add_row("calls answered", f"{tally.answered:,}")
    table.add_row("lost by a migration or a planned restart", f"{tally.lost}")
    table.add_row("run twice", f"{tally.repeated}")
    table.add_row("migrations", f"{demo.moves:,}")
    table.add_row("longest pause a caller saw before the kill", f"{tally.pause_s * 1000:.1f} ms")
    if kill is not None and waits:
        table.add_row(f"kill -9 of {kill.silo}: grains that had to start again", f"{len(waits)}")
        table.add_row("  calls whose outcome is unknown, and say so", f"{tally.unknown}")
        table.add_row("  time to the first success; to the last grain's", f"{waits[0]:.2f} s; {waits[-1]:.2f} s")
    console.print(table)
    for problem in tally.problems:
        console.print(f"  {problem}", highlight=False)
    for why, count in demo.moves_failed.items():
        console.print(f"  {count} moves were not made: {why}", highlight=False)
    console.print("[green]nothing was lost, nothing ran twice[/green]" if good else "[red]the promise was broken[/red]")
    return 0 if good else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m samples.demo", description=__doc__)
    parser.add_argument("--seconds", type=float, default=25.0, help="about how long the planned part takes")
    parser.add_argument("--grains", type=int, default=300, help="how many grains are called, one call at a time each")
    parser.add_argument("--seed", type=int, default=1, help="which grains move where")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    arguments = parser.parse_args()
    try:
        import uvloop
    except ImportError:
        return asyncio.run(run(arguments))
    return uvloop.run(run(arguments))


if __name__ == "__main__":
    sys.exit(main())
