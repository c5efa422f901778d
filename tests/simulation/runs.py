"""One run of one seed as a worker process makes it."""

from __future__ import annotations

import gc

from silo.testing.logs import be_quiet
from tests.simulation.profiles import PROFILES
from tests.simulation.scenario import Result, run_seed


def begin() -> None:
    """In each process that runs seeds: the collector looks at what a seed has left behind, and at nothing else."""
    be_quiet()
    gc.collect()
    gc.freeze()


def run_one(seed: int, *, profile: str | None, repeat: bool) -> Result:
    """Run a seed, under its own profile or the one named; twice where the traces are to be compared."""
    chosen = next((each for each in PROFILES if each.name == profile), None)
    result = run_seed(seed, chosen)
    if repeat:
        again = run_seed(seed, chosen)
        if (again.trace, again.steps) != (result.trace, result.steps):
            result.failure = result.failure or f"the seed did not repeat: {result.steps} and {again.steps} steps"
    return result
