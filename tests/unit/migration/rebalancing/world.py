"""Silos with loads, on paper."""

from __future__ import annotations

from collections.abc import Sequence

from silo.directory.addresses import SiloAddress
from silo.migration.rebalancing.loads import LoadSnapshot, SiloLoad, Surroundings
from silo.migration.rebalancing.plan import TransferPlan

SETTLED = Surroundings(settled_for_s=3600.0)


def address(number: int) -> SiloAddress:
    return SiloAddress(f"10.0.0.{number:04}:7000", 1)


def silo(number: int, count: int, **more: object) -> SiloLoad:
    return SiloLoad(address(number), f"silo-{number}", count, **more)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - fields by name


def snapshot(counts: Sequence[int], version: int = 1, capacities: Sequence[float] | None = None) -> LoadSnapshot:
    each = capacities or [1.0] * len(counts)
    silos = (silo(number, count, capacity=each[number]) for number, count in enumerate(counts))
    return LoadSnapshot(version, 1, tuple(silos))


def carried_out(counts: Sequence[int], plan: TransferPlan) -> list[int]:
    """The counts after the plan."""
    after = list(counts)
    places = {address(number): number for number in range(len(counts))}
    for transfer in plan.transfers:
        after[places[transfer.donor]] -= transfer.amount
        after[places[transfer.receiver]] += transfer.amount
    return after


def fewest_moves(counts: Sequence[int]) -> int:
    """The least that any plan must move so that all silos of equal capacity have the mean, up or down to a grain."""
    total, silos = sum(counts), len(counts)
    floor, ceiling = total // silos, -(-total // silos)
    return max(sum(max(0, n - ceiling) for n in counts), sum(max(0, floor - n) for n in counts))
