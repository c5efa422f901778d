"""`python -m benchmarks.locality_warm`: where calls are local once grains are placed, and what that costs in balance.

100 silos and 240 grains on paper, with the policies, the edge and the planner as they are shipped. First each grain is
called once, which places it; then come 240 calls, of which is told how many are made at the silo that has the grain
(`local`). `spread` is what the fullest silo has, as a multiple of the mean. Neither says anything without the other.

The table of the actors project that this one started from walks through grains and silos in steps that have a common
factor with the balancer's, so some of its rows owe their locality to the order of the calls (`lockstep`). The second
column has each call at an independent random grain (`independent`).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.paper import PaperCluster
from benchmarks.results import FOLDER
from silo.directory.addresses import GrainId
from silo.migration.rebalancing.clusters import GrainLoad
from silo.migration.rebalancing.plan import TransferPlan
from silo.migration.rebalancing.rebalancer import dry_run
from silo.migration.rebalancing.settings import RebalanceSettings
from silo.migration.rebalancing.victims import pick_victims
from silo.placement.edge import EdgeRoutes
from silo.placement.policies import (
    ActivationCountPlacement,
    ConsistentHashPlacement,
    PreferLocalPlacement,
    RandomPlacement,
)
from silo.placement.policy import PlacementPolicy

SILOS, GRAINS = 100, 240
STRIDE = 97
SEEDS, QUICK_SEEDS = 20, 2
KIND = "ClusterBench"

Edge = Callable[[int], int]
"""Given a grain's number, the silo that its next call enters through."""


# ------------------------------------------------------------------------------------------ who receives the calls


def round_robin(silos: int, _rng: random.Random) -> Edge:
    """One silo after the other."""
    calls = iter(range(sys.maxsize))
    return lambda _grain: next(calls) % silos


def skewed(silos: int, _rng: random.Random) -> Edge:
    """Four calls of five at one silo, the fifth at each in turn."""
    calls, others = iter(range(sys.maxsize)), iter(range(sys.maxsize))
    return lambda _grain: next(others) % silos if next(calls) % 5 == 0 else 0


def hashed(silos: int, _rng: random.Random) -> Edge:
    """By a hash of the routing token: all calls of a grain at one silo."""
    return lambda grain: _token_slot(f"g{grain}", silos)


def bounded_hash(silos: int, _rng: random.Random) -> Edge:
    """By rendezvous with a bound of 1.25, as `EdgeRoutes` gives it to an edge."""
    routes = EdgeRoutes((f"silo-{number}" for number in range(silos)), grains_expected=GRAINS)
    return lambda grain: int(routes.route(_grain(grain)).removeprefix("silo-"))


def _token_slot(key: str, silos: int) -> int:
    """FNV-1a of kind and key in base 36, seven digits, hashed once more by 31s: that table's own rule."""
    value = 0x811C9DC5
    for letter in f"{KIND}\0{key}":
        value = ((value ^ ord(letter)) * 0x01000193) & 0xFFFFFFFF
    token = ""
    while value or not token:
        value, digit = divmod(value, 36)
        token = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + token
    slot = 0
    for letter in token.rjust(7, "0"):
        slot = (slot * 31 + ord(letter)) & 0xFFFFFFFF
    return slot % silos


def _grain(number: int) -> GrainId:
    return GrainId(KIND, f"g{number}")


# ------------------------------------------------------------------------------------------------------- the rows


@dataclass(frozen=True)
class Scene:
    """One row: who receives the calls, who places, and what is done besides."""

    name: str
    edge: Callable[[int, random.Random], Edge]
    policy: Callable[[], PlacementPolicy]
    learns: bool = False
    """Whether callers go to the silo that answered last."""
    rebalances: bool = False
    """Whether one exact plan is carried out before the calls that count."""
    theirs: tuple[float, float] | None = None
    """Local and spread as that table has them."""
    exact: bool = False
    """Whether nothing in it is random, so that it must be the same to the digit."""
    local_least: float | None = None
    spread_most: float | None = None


CAPPED = "prefer-local, cap 2 × mean + 2"
SCENES = [
    Scene("round-robin × random", round_robin, RandomPlacement, theirs=(0.02, 2.92)),
    Scene("round-robin × prefer-local", round_robin, PreferLocalPlacement, theirs=(0.00, 1.25), exact=True),
    Scene("hash × prefer-local", hashed, PreferLocalPlacement, theirs=(1.00, 2.50), exact=True),
    Scene("skewed × random", skewed, RandomPlacement, theirs=(0.00, 2.92)),
    Scene("skewed × prefer-local", skewed, PreferLocalPlacement, theirs=(0.80, 80.4), exact=True),
    Scene("round-robin × activation-count", round_robin, ActivationCountPlacement),
    Scene("skewed × activation-count", skewed, ActivationCountPlacement),
    Scene(f"skewed × {CAPPED}", skewed, lambda: PreferLocalPlacement(max_local_ratio=2.0), spread_most=3.0),
    Scene(f"hash × {CAPPED}", hashed, lambda: PreferLocalPlacement(max_local_ratio=2.0)),
    Scene(
        "bounded hash × prefer-local", bounded_hash, PreferLocalPlacement, exact=True, local_least=1.0, spread_most=1.25
    ),
    Scene("skewed × activation-count, callers learn", skewed, ActivationCountPlacement, learns=True, local_least=1.0),
    Scene(
        "skewed × consistent-hash, bound 1.25, callers learn",
        skewed,
        lambda: ConsistentHashPlacement(load_bound=1.25),
        learns=True,
        local_least=1.0,
        spread_most=1.75,
    ),
    Scene(
        "round-robin × activation-count, callers learn",
        round_robin,
        ActivationCountPlacement,
        learns=True,
        local_least=1.0,
    ),
    Scene("skewed × prefer-local, rebalanced", skewed, PreferLocalPlacement, rebalances=True, spread_most=1.25),
    Scene(
        "skewed × prefer-local, rebalanced, callers learn",
        skewed,
        PreferLocalPlacement,
        learns=True,
        rebalances=True,
        spread_most=1.25,
    ),
    Scene("round-robin × random, rebalanced", round_robin, RandomPlacement, rebalances=True, spread_most=1.25),
]


@dataclass
class Row:
    """What a scene came to: means over the seeds, and the largest spread of any."""

    name: str
    local_lockstep: float
    local_independent: float
    local_again: float
    """Of a second round of the independent calls: callers that learn know by then."""
    spread: float
    spread_max: float
    moves: float
    moves_fewest: float
    """What any plan that comes to the same spread must move."""
    theirs: tuple[float, float] | None
    short: list[str] = field(default_factory=list[str])
    """What it falls short of."""


@dataclass(frozen=True)
class _Run:
    local: tuple[float, float]
    spread: float
    moves: int
    moves_fewest: int


def measure(scene: Scene, seeds: int) -> Row:
    lockstep = [_run(scene, seed, independent=False) for seed in range(1 if scene.exact else seeds)]
    independent = [_run(scene, seed, independent=True) for seed in range(seeds)]
    mean = statistics.fmean
    row = Row(
        scene.name,
        mean(run.local[0] for run in lockstep),
        mean(run.local[0] for run in independent),
        mean(run.local[1] for run in independent),
        mean(run.spread for run in lockstep),
        max(run.spread for run in (*lockstep, *independent)),
        mean(run.moves for run in lockstep),
        mean(run.moves_fewest for run in lockstep),
        scene.theirs,
    )
    row.short = _short(scene, row, seeds)
    return row


ROUNDED = 0.05
"""What their table's rounding, and single draws of its random rows, may differ by."""
RANDOM_SPREAD = (2.2, 3.9)
"""Within which a random placement of 240 grains on 100 silos comes out."""


def _short(scene: Scene, row: Row, seeds: int) -> list[str]:
    short: list[str] = []
    if scene.theirs is not None:
        local, spread = scene.theirs
        near = abs(row.local_lockstep - local) <= (0.005 if scene.exact else ROUNDED)
        close = abs(row.spread - spread) <= 0.05 if scene.exact else RANDOM_SPREAD[0] <= row.spread <= RANDOM_SPREAD[1]
        if not near or not close:
            short.append(f"{row.local_lockstep:.2f}/{row.spread:.2f} where {local:.2f}/{spread:.2f} is to be repeated")
    local = row.local_independent
    if scene.local_least is not None and local < scene.local_least:
        short.append(f"local {local:.3f}, at least {scene.local_least:g} is wanted")
    if scene.spread_most is not None and row.spread_max > scene.spread_most + 1e-9:
        short.append(f"spread {row.spread_max:.2f}, at most {scene.spread_most:g} is wanted")
    if row.moves > row.moves_fewest:
        short.append(f"{row.moves:.1f} moves, {row.moves_fewest:.1f} would do")
    return short


def _run(scene: Scene, seed: int, *, independent: bool) -> _Run:
    rng = random.Random(seed)
    cluster = PaperCluster(SILOS, rng)
    edge, policy = scene.edge(SILOS, rng), scene.policy()
    owners: list[int] = []
    for number in range(GRAINS):
        owners.append(cluster.place(policy, _grain(number), edge(number)))
    learnt = dict(enumerate(owners)) if scene.learns else {}
    moves = fewest = 0
    if scene.rebalances:
        moves, fewest = _rebalance(cluster, owners)
    spread = cluster.spread()

    def local(calls: Sequence[int]) -> float:
        hits = 0
        for number in calls:
            entry = edge(number)  # the balancer does not know who has learnt what
            hits += learnt.get(number, entry) == owners[number]
            if scene.learns:
                learnt[number] = owners[number]
        return hits / len(calls)

    lockstep = [step * STRIDE % GRAINS for step in range(GRAINS)]
    if not independent:
        return _Run((local(lockstep), local(lockstep)), spread, moves, fewest)
    first = [rng.randrange(GRAINS) for _ in range(GRAINS)]
    return _Run((local(first), local(first)), spread, moves, fewest)


def _rebalance(cluster: PaperCluster, owners: list[int]) -> tuple[int, int]:
    """Carry out the plan that the loads call for; how many moved, and what any plan must move."""
    plan: TransferPlan = dry_run(RebalanceSettings(), cluster.snapshot())
    floor, ceiling = GRAINS // SILOS, -(-GRAINS // SILOS)
    fewest = max(
        sum(max(0, count - ceiling) for count in cluster.counts), sum(max(0, floor - count) for count in cluster.counts)
    )
    moves = 0
    for donor, silo in enumerate(cluster.addresses):
        here = [GrainLoad(_grain(number)) for number, owner in enumerate(owners) if owner == donor]
        for victims in pick_victims(plan.from_donor(silo), here):
            receiver = cluster.number_of[victims.transfer.receiver]
            for grain in victims.grains:
                owners[int(grain.key.removeprefix("g"))] = receiver
                cluster.add(donor, -1)
                cluster.add(receiver)
                moves += 1
    return moves, fewest


# ------------------------------------------------------------------------------------------------------- told


def as_json(rows: Sequence[Row], seeds: int) -> dict[str, object]:
    return {"v": 1, "silos": SILOS, "grains": GRAINS, "seeds": seeds, "rows": [asdict(row) for row in rows]}


def print_rows(console: Console, rows: Sequence[Row]) -> None:
    table = Table(title=f"locality-warm: {SILOS} silos, {GRAINS} grains", title_justify="left")
    table.add_column("calls enter × who places")
    for head in ("lockstep", "independent", "again", "spread", "most", "moves", "fewest", "theirs"):
        table.add_column(head, justify="right")
    for row in rows:
        theirs = f"{row.theirs[0]:.2f} / {row.theirs[1]:.2f}" if row.theirs else ""
        moves = (f"{row.moves:.0f}", f"{row.moves_fewest:.0f}") if row.moves else ("", "")
        table.add_row(
            row.name,
            f"{row.local_lockstep:.3f}",
            f"{row.local_independent:.3f}",
            f"{row.local_again:.3f}",
            f"{row.spread:.2f}",
            f"{row.spread_max:.2f}",
            *moves,
            theirs,
        )
    console.print(table)


FILE: Final = "locality_warm.json"


def quote(folder: Path) -> str:
    """The kept rows as a table for a page. Raises FileNotFoundError where none are kept."""
    lines = ["| calls enter × who places | local, lockstep | independent | again | spread | most | moves | theirs |"]
    lines += ["|---|--:|--:|--:|--:|--:|--:|--:|"]
    for row in json.loads((folder / FILE).read_text(encoding="utf-8"))["rows"]:
        theirs = "{:.2f} / {:.2f}".format(*row["theirs"]) if row["theirs"] else ""
        figures = [f"{row[name]:.3f}" for name in ("local_lockstep", "local_independent", "local_again")]
        figures += [f"{row['spread']:.2f}", f"{row['spread_max']:.2f}", f"{row['moves']:.0f}" if row["moves"] else ""]
        lines.append("| " + " | ".join([row["name"], *figures, theirs]) + " |")
    return "\n".join(lines)


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.locality_warm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SEEDS} seeds instead of {SEEDS}")
    parser.add_argument("--seeds", type=int, help="how many seeds the rows with chance in them are the means of")
    parser.add_argument(
        "--save", nargs="?", type=Path, const=FOLDER, metavar="FOLDER", help=f"keep the rows as {FILE} in this folder"
    )
    arguments = parser.parse_args(given)
    seeds = arguments.seeds or (QUICK_SEEDS if arguments.quick else SEEDS)
    rows = [measure(scene, seeds) for scene in SCENES]
    if arguments.json:
        print(json.dumps(as_json(rows, seeds), indent=2))
    else:
        print_rows(Console(width=None if sys.stdout.isatty() else 140), rows)
    if arguments.save is not None:
        arguments.save.mkdir(parents=True, exist_ok=True)
        (arguments.save / FILE).write_text(json.dumps(as_json(rows, seeds), indent=1) + "\n", encoding="utf-8")
    short = [f"{row.name}: {why}" for row in rows for why in row.short]
    for line in short:
        print(line, file=sys.stderr)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
