"""One run: a workload on a simulated cluster, and what came of it."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.halo.fleet import Faults, Fleet
from benchmarks.halo.workloads import WORKLOADS
from silo.migration.repartitioning.settings import RepartitioningSettings

STEP_S = 10.0
"""The length of one step of the workload."""
POINTS = 48
"""Of how many stretches the curve of a run is made."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run; steady is its second half.

    Args:
        remote: the part of the messages that went between silos, steady.
        moves_per_min: moves per grain and minute, steady.
        cold_moves: moves per grain in the first half.
        moves_peak: the most moves in one step of ten seconds.
        count_ratio: the fullest silo against its share of the activations, the mean over time, steady.
        count_ratio_max: the same at its worst moment, steady.
        load_ratio: the busiest silo against its share of the messages, the mean over time, steady.
        aborted: moves that came to nothing, over the whole run.
        curve: the remote part over the run.
        sent: messages of the exchange per silo and second.
        cpu_s: what the run took.
    """

    remote: float
    moves_per_min: float
    cold_moves: float
    moves_peak: int
    count_ratio: float
    count_ratio_max: float
    load_ratio: float
    aborted: int
    sent: float
    curve: tuple[float, ...]
    cpu_s: float


def run(
    workload: str,
    settings: RepartitioningSettings,
    seed: int,
    *,
    silos: int = 10,
    minutes: float = 40.0,
    faults: Faults | None = None,
    capacities: Sequence[float] = (),
) -> Outcome:
    """Run it; half of the time is for the cluster to find its order."""
    began = time.process_time()
    capacities = capacities or (1.0,) * silos
    fleet = Fleet(capacities, settings, seed, faults)
    source = WORKLOADS[workload](random.Random(f"{workload} {seed}"))
    steps = int(minutes * 60 / STEP_S)
    steady = steps // 2
    rows: list[tuple[int, int, int, float, float]] = []
    cold = aborted = sent = 0
    capacity = sum(capacities)
    for number in range(steps):
        step = source.step(STEP_S)
        for grain in step.ended:
            fleet.end(grain)
        for grain in step.born:
            fleet.place(grain)
        fleet.start_period()
        messages = remote = 0
        loads = dict.fromkeys((silo.address for silo in fleet.silos), 0)
        for one, other, each in step.talks:
            messages += each
            loads[fleet.where[one].address] += each
            loads[fleet.where[other].address] += each
            if fleet.talk(one, other, each):
                remote += each
        fleet.run_until((number + 1) * STEP_S)
        grains = len(fleet.where)
        count_ratio = max(silo.count() * capacity / silo.capacity / grains for silo in fleet.silos)
        total = max(1, 2 * messages)
        load_ratio = max(loads[silo.address] * capacity / silo.capacity / total for silo in fleet.silos)
        moves, fleet.tally.moves = fleet.tally.moves, 0
        rows.append((messages, remote, moves, count_ratio, load_ratio))
        if number < steady:
            cold += moves
    aborted, sent = fleet.tally.aborted, fleet.tally.messages
    late = rows[steady:]
    grains = len(fleet.where)

    def share(part: Sequence[tuple[int, int, int, float, float]]) -> float:
        return sum(row[1] for row in part) / max(1, sum(row[0] for row in part))

    width = max(1, steps // POINTS)
    return Outcome(
        remote=share(late),
        moves_per_min=sum(row[2] for row in late) / (len(late) * STEP_S / 60) / grains,
        cold_moves=cold / grains,
        moves_peak=max(row[2] for row in rows),
        count_ratio=fmean(row[3] for row in late),
        count_ratio_max=max(row[3] for row in late),
        load_ratio=fmean(row[4] for row in late),
        aborted=aborted,
        sent=sent / (steps * STEP_S) / len(fleet.silos),
        curve=tuple(share(rows[at : at + width]) for at in range(0, steps, width)),
        cpu_s=time.process_time() - began,
    )
