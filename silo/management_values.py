"""What management tells of silos and clusters, as values."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from silo.directory.addresses import SiloAddress


class MemberReport(msgspec.Struct, frozen=True):
    """A living silo, as another one sees it."""

    name: str
    address: SiloAddress
    state: str
    """joining, active or leaving."""
    activations: int | None = None
    """By its last load report; None where none has come."""
    loop_lag_s: float | None = None
    """How late its event loop ran, by that report."""
    app_version: str = ""
    kinds: tuple[str, ...] = ()
    """The grain kinds that it hosts."""
    meta: dict[str, str] = {}
    gateway: bool = True
    in_flight: int | None = None
    """How many of its activations are still being made, by that report."""
    in_flight_max: int | None = None
    """How many it makes at a time, at its present age."""
    activations_max: int | None = None
    """How many it hosts at most; None for no bound."""
    cordoned: bool = False


class SiloReport(msgspec.Struct, frozen=True):
    """What one silo says of itself, and of the cluster as it sees it."""

    cluster: str
    view_version: int
    address: SiloAddress
    activations_by_kind: dict[str, int]
    open_calls: int
    moves_out: int
    moves_in: int
    members: tuple[MemberReport, ...]
    awaits_earlier: bool = False


class MemberStatus(msgspec.Struct, frozen=True):
    """One silo in the status of the cluster. What only it can say is None where it did not answer."""

    name: str
    address: SiloAddress
    state: str
    """joining, active or leaving."""
    activations: int | None
    loop_lag_s: float | None
    open_calls: int | None
    moves_out: int | None
    moves_in: int | None
    app_version: str
    meta: dict[str, str]
    gateway: bool
    answered: bool
    """Whether it was reached; else its figures are those of its last load report to the silo that was asked."""
    kinds: tuple[str, ...]
    """The grain kinds that it hosts."""
    activations_by_kind: dict[str, int]
    in_flight: int | None = None
    """How many of its activations are still being made."""
    in_flight_max: int | None = None
    """How many it makes at a time, at its present age."""
    activations_max: int | None = None
    """How many it hosts at most; None for no bound."""
    cordoned: bool = False
    """Whether it takes no new placements, by an operator's order."""


class ClusterStatus(msgspec.Struct, frozen=True):
    """The cluster: its living silos, and how evenly they host the grains."""

    cluster: str
    view_version: int
    asked: str
    """The name of the silo whose view of the members this is."""
    answered: int
    """How many of the silos answered for themselves."""
    activations: int
    """On all silos of which that is known."""
    spread: float | None
    """The most activations of an active silo over their mean: 1 is even, the number of silos is the worst."""
    silos: tuple[MemberStatus, ...]
    awaits_earlier: bool = False
    """Whether new grains wait for silos that may still serve by a table that was lost: the store had none when the
    first of these came, and that one was not started with --bootstrap."""


def spread_of(counts: Iterable[int]) -> float:
    """How uneven the numbers are: the largest over the mean; 1 where there is nothing to be uneven about."""
    numbers = list(counts)
    total = sum(numbers)
    return max(numbers) * len(numbers) / total if total else 1.0


def summary(status: ClusterStatus) -> dict[str, object]:
    """The status for the eye: what fits on a terminal, the most telling figures first."""
    figures = {
        "cluster": f"{status.cluster}, view {status.view_version} as {status.asked} has it",
        "silos answered": f"{status.answered} of {len(status.silos)}",
        "activations": status.activations,
        "spread": None if status.spread is None else f"{status.spread} (1 is even)",
    }
    if status.awaits_earlier:
        figures["new grains"] = "wait for silos that may still serve by a table that was lost"
    silos = [
        {
            "name": silo.name,
            "state": f"{silo.state}, cordoned" if silo.cordoned else silo.state,
            "activations": _of(silo.activations, silo.activations_max),
            "in flight": _of(silo.in_flight, silo.in_flight_max),
            "calls": silo.open_calls,
            "moves out/in": _moves(silo),
            "lag ms": None if silo.loop_lag_s is None else round(silo.loop_lag_s * 1000, 1),
            "version": silo.app_version or None,
            "address": silo.address.endpoint,
        }
        for silo in status.silos
    ]
    # A terminal is narrow: a column in which nobody has anything to say is left out.
    told = [name for name in silos[0] if any(silo[name] is not None for silo in silos)] if silos else []
    return {**figures, "members": [{name: silo[name] for name in told} for silo in silos]}


def _moves(silo: MemberStatus) -> str | None:
    """The grains that are just leaving and arriving, where there are any."""
    if not silo.answered:
        return "no answer"
    return f"{silo.moves_out}/{silo.moves_in}" if silo.moves_out or silo.moves_in else None


def _of(number: int | None, most: int | None) -> str | int | None:
    """A number beside its bound, where it has one."""
    if number is None or most is None:
        return number
    return f"{number} of {most}, full" if number >= most else f"{number} of {most}"


def merged(first: SiloReport, others: Iterable[SiloReport]) -> ClusterStatus:
    """The status of the cluster from the report of one silo, and from those of the members that answered."""
    reports = {report.address: report for report in (first, *others)}
    silos = tuple(
        sorted((_status(each, reports.get(each.address)) for each in first.members), key=lambda each: each.name)
    )
    known = [silo.activations for silo in silos if silo.state == "active" and silo.activations is not None]
    return ClusterStatus(
        first.cluster,
        first.view_version,
        next((each.name for each in first.members if each.address == first.address), str(first.address)),
        sum(silo.answered for silo in silos),
        sum(silo.activations or 0 for silo in silos),
        round(spread_of(known), 3) if known else None,
        silos,
        first.awaits_earlier,
    )


def _status(member: MemberReport, own: SiloReport | None) -> MemberStatus:
    by_kind = own.activations_by_kind if own is not None else {}
    seen_by = member if own is None else next((each for each in own.members if each.address == own.address), member)
    return MemberStatus(
        member.name,
        member.address,
        member.state,
        sum(by_kind.values()) if own is not None else member.activations,
        seen_by.loop_lag_s,
        own.open_calls if own is not None else None,
        own.moves_out if own is not None else None,
        own.moves_in if own is not None else None,
        member.app_version,
        member.meta,
        member.gateway,
        own is not None,
        member.kinds,
        by_kind,
        seen_by.in_flight,
        seen_by.in_flight_max,
        seen_by.activations_max,
        member.cordoned,
    )
