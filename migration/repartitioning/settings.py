"""How the repartitioner is set: every limit of it, with its unit."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from silo.directory.errors import InvalidSettings


class Strategy(enum.StrEnum):
    """How silos agree on what moves."""

    OFF = "off"
    """Nothing is observed and nothing moves."""
    HUB_FIRST = "hub-first"
    """All pairs of silos in every round: hubs first, then the grains that follow them; receivers grant under a cap."""
    PAIRWISE = "pairwise"
    """One partner for each silo at a time, as published for ActOp; kept to compare with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepartitioningSettings:
    """The limits of the repartitioner. Rates are in messages per second, loads too.

    Args:
        strategy: how silos agree; off unless it is asked for.
        period_s: how often a silo looks for grains to move.
        leaf_delay_s: how long after the hubs the grains that follow them are looked at.
        follow_after_s: a leaf follows a hub that it has known for so long: the hub is to find its own place first.
        half_life_s: after this time an observed message counts half.
        age_min_s: a peer that was met later than this ago counts as if it had been met then: a first burst is no rate.
        grains_max: of how many grains a silo keeps peers.
        peers_max: how many peers are kept of one grain, the heaviest.
        local_every: of the messages within a silo, one in so many is observed, on average.
        observations_min: a peer counts once so many messages were exchanged with it.
        cap_slack: a silo takes grains up to this fraction above its share of all activations.
        floor_slack: a silo gives grains down to this fraction below its share.
        load_slack: a silo takes load up to this fraction above its share of all load.
        shed_above: a silo gives load away from this fraction above its share on, down to `load_slack`.
        move_cost: what moving a grain costs, in messages that become remote.
        horizon_s: the time within which a move has to earn its cost.
        dwell_s: a grain that has moved stays at least so long; twice as long with each move from the third on.
        cooldown_s: the time in which a grain moves at most twice.
        room_moves_max: how often a grain moves at a loss, so that those it talks to can join it.
        budget_share: the fraction of its activations that a silo gives, and takes, in one period; None for no limit.
        evaluations_max: at how many grains a silo looks in one period.
        lease_s: how long a granted place is kept for a grain that does not come.
        arrival_s: how long it is kept once the grain has asked to come; longer than any move takes.
        recovery_s: the quiet after a change of the members.
        pairwise_period_s: how often a silo looks for a partner, under `pairwise`.
        candidates_max: how many grains one offer names, under `pairwise`.
        explained_max: of how many moves the reasons are kept.
    """

    strategy: Strategy = Strategy.OFF
    period_s: float = 10.0
    leaf_delay_s: float = 2.0
    follow_after_s: float = 10.0
    half_life_s: float = 60.0
    age_min_s: float = 10.0
    grains_max: int = 20_000
    peers_max: int = 16
    local_every: int = 8
    observations_min: int = 3
    cap_slack: float = 0.05
    floor_slack: float = 0.10
    load_slack: float = 0.20
    shed_above: float = 0.25
    move_cost: float = 40.0
    horizon_s: float = 120.0
    dwell_s: float = 30.0
    cooldown_s: float = 600.0
    room_moves_max: int = 2
    budget_share: float | None = 0.04
    evaluations_max: int = 5_000
    lease_s: float = 20.0
    arrival_s: float = 120.0
    recovery_s: float = 60.0
    pairwise_period_s: float = 60.0
    candidates_max: int = 500
    explained_max: int = 1_000

    def __post_init__(self) -> None:
        positive = (
            "period_s",
            "half_life_s",
            "age_min_s",
            "grains_max",
            "peers_max",
            "local_every",
            "observations_min",
            "cap_slack",
            "move_cost",
            "horizon_s",
            "evaluations_max",
            "lease_s",
            "arrival_s",
            "pairwise_period_s",
            "candidates_max",
        )
        for name in positive:
            if not getattr(self, name) > 0:
                raise InvalidSettings(f"{name} is above 0, not {getattr(self, name)}")
        not_negative = ("floor_slack", "load_slack", "dwell_s", "cooldown_s", "room_moves_max", "recovery_s")
        for name in (*not_negative, "explained_max"):
            if not getattr(self, name) >= 0:
                raise InvalidSettings(f"{name} is at least 0, not {getattr(self, name)}")
        if not 0 < self.leaf_delay_s < self.period_s:
            raise InvalidSettings(f"leaf_delay_s is between 0 and period_s ({self.period_s}), not {self.leaf_delay_s}")
        if not self.floor_slack < 1:
            raise InvalidSettings(f"floor_slack is below 1, not {self.floor_slack}")
        if not self.shed_above >= self.load_slack:
            raise InvalidSettings(f"shed_above is at least load_slack ({self.load_slack}), not {self.shed_above}")
        if self.budget_share is not None and not 0 < self.budget_share <= 1:
            raise InvalidSettings(f"budget_share is above 0 and at most 1, or None; not {self.budget_share}")
