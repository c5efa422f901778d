"""Simulated runs: a scenario under virtual time and a seed, its verdict, and how to repeat it."""

from __future__ import annotations

import contextlib
import gc
import os
import random
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, Generic, TypeVar

from silo.serialization.registry import DEFAULT_REGISTRY, TypeRegistry
from silo.testing.cluster import LAN, SETTLE_S, Cluster, NetworkProfile
from silo.testing.history import Violation, bijection, check
from silo.testing.logs import quiet
from silo.testing.steps import StepNotReached
from silo.testing.virtual_time import STEPS_MAX, VirtualTimeLoop
from silo.testing.witness import Event

T = TypeVar("T")
SEED_VARIABLE: Final = "SILO_TEST_SEED"
"""The environment variable that names the one seed to run, whatever the test says."""
STEP_S: Final = 1e-6
"""How far the clock moves with each callback."""
SECONDS_MAX: Final = 3600.0
"""The longest run, in virtual seconds, unless the caller says otherwise."""
VIOLATIONS_SHOWN: Final = 20
OF_THE_APPLICATION: Final = (
    "ActivationFailed",
    "AnswerTooLarge",
    "CallCycle",
    "CallExpired",
    "CallTimeout",
    "Closed",
    "GrainKindUnknown",
    "GrainMoved",
    "GrainUnplaceable",
    "Overloaded",
    "PayloadTooLarge",
    "PermissionRefused",
    "SerializationError",
)
"""Errors that a grain or its caller can bring about without any fault: a call that ends with one was not lost."""


class PromiseBroken(AssertionError):
    """What was witnessed in a run is not what the runtime promises. `violations` says all of it."""

    def __init__(self, violations: Sequence[Violation]) -> None:
        lines = [str(violation) for violation in violations[:VIOLATIONS_SHOWN]]
        if len(violations) > VIOLATIONS_SHOWN:
            lines.append(f"and {len(violations) - VIOLATIONS_SHOWN} more")
        super().__init__("\n".join(lines))
        self.violations = tuple(violations)


@dataclass(frozen=True, slots=True)
class Run(Generic[T]):
    """One run that went well."""

    seed: int
    result: T
    """What the scenario returned."""
    trace: int
    """A checksum over every step of every process: runs with equal traces went the same way."""
    steps: int
    virtual_s: float
    """How long it took in its own time, settling included."""
    events: Sequence[Event]
    """All that was witnessed, in order."""


@dataclass(frozen=True, slots=True)
class _Setup:
    """What all seeds of one test have in common; see `run_simulated`."""

    kinds: Sequence[type | ModuleType]
    silos: int
    network: NetworkProfile
    settings: Mapping[str, Any]
    registry: TypeRegistry
    checks: bool
    logs: bool
    seconds_max: float


def run_simulated(
    scenario: Callable[[Cluster], Awaitable[T]],
    *,
    kinds: Sequence[type | ModuleType],
    silos: int = 3,
    seed: int = 0,
    seeds: int = 1,
    network: NetworkProfile = LAN,
    settings: Mapping[str, Any] | None = None,
    registry: TypeRegistry = DEFAULT_REGISTRY,
    checks: bool = True,
    logs: bool = False,
    seconds_max: float = SECONDS_MAX,
) -> Run[T]:
    """Run a scenario on a cluster of simulated processes, under virtual time; call it from a plain, not async, test.

    After the scenario every fault is ended, the cluster is given the time to get over it, and what was witnessed is
    held against the runtime's promises. What fails bears a note with its seed and how to repeat it.

    Args:
        scenario: an async function of the cluster.
        kinds: grain classes, and modules that define some.
        silos: how many there are at first.
        seed: decides everything that chance decides.
        seeds: how many seeds to run, from that one on. The variable SILO_TEST_SEED has one alone run.
        settings: of every silo, as `SiloSettings` names them.
        checks: whether what was witnessed is judged.
        logs: whether the runtime's log is let through.
        seconds_max: virtual seconds after which a run fails, for it may never end.

    Returns:
        The last run.

    Raises:
        PromiseBroken: the runtime, or the grains, did not keep a promise.
        StepNotReached: something was planned for a step that nothing came to.
        SimulationFailure: the run waits for ever, takes too long, or a callback failed.
        Exception: what the scenario raised.
    """
    if seeds < 1:
        raise ValueError(f"seeds={seeds}: 1 or more is wanted")
    setup = _Setup(kinds, silos, network, settings or {}, registry, checks, logs, seconds_max)
    run: Run[T] | None = None
    for one in seeds_to_run(seed, seeds):
        run = _run_seed(scenario, one, setup)
    assert run is not None
    return run


def seeds_to_run(seed: int, seeds: int) -> Iterable[int]:
    """The seeds that a test asks for, or the one that the environment names."""
    named = os.environ.get(SEED_VARIABLE)
    if named is None:
        return range(seed, seed + seeds)
    try:
        return (int(named),)
    except ValueError:
        raise ValueError(f"{SEED_VARIABLE}={named!r}: a whole number is wanted") from None


def _run_seed(scenario: Callable[[Cluster], Awaitable[T]], seed: int, setup: _Setup) -> Run[T]:
    rng = random.Random(seed)
    loop = VirtualTimeLoop(
        random.Random(rng.random()),
        start_s=rng.uniform(0, 100_000),
        step_s=STEP_S,
        seconds_max=setup.seconds_max,
        steps_max=STEPS_MAX,
    )
    started = loop.time()
    with contextlib.nullcontext() if setup.logs else quiet(), _without_collector(), contextlib.closing(loop):
        try:
            cluster = Cluster(
                loop,
                rng,
                kinds=setup.kinds,
                settings=setup.settings,
                registry=setup.registry,
                network=setup.network,
            )
            result = loop.run_until_complete(_play(cluster, scenario, setup))
        except Exception as error:
            error.add_note(
                f"seed {seed}, after {loop.time() - started:.3f} virtual seconds and {loop.steps} steps, trace"
                f" {loop.trace:08x}; to repeat it, run the same test with {SEED_VARIABLE}={seed}"
                f" PYTHONHASHSEED={os.environ.get('PYTHONHASHSEED', '0')}"
            )
            raise
        return Run(seed, result, loop.trace, loop.steps, loop.time() - started, cluster.witness.events)


@contextlib.contextmanager
def _without_collector() -> Generator[None]:
    """When garbage is collected must not depend on what ran before."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


async def _play(cluster: Cluster, scenario: Callable[[Cluster], Awaitable[T]], setup: _Setup) -> T:
    await cluster.open(setup.silos)
    result = await scenario(cluster)
    missed = cluster.steps.not_reached()
    if missed:
        raise StepNotReached(f"planned, and not reached: {', '.join(map(repr, missed))}")
    violations: list[Violation] = []
    if setup.checks:
        await cluster.settle()
        if cluster.silos:  # where none is left, nobody is there to take away the rows of the dead
            violations += bijection(cluster.placed_rows(), cluster.placed_activations())
    left = await cluster.shut_down()
    if setup.checks:
        violations += check(cluster.witness.events, SETTLE_S, OF_THE_APPLICATION)
        violations += [Violation("no leak", task, "it was left behind") for task in left]
    if violations:
        raise PromiseBroken(violations)
    return result
