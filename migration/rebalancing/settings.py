"""When load is uneven enough to move grains for it, and when it is even enough again."""

from __future__ import annotations

import msgspec

from silo.directory.errors import InvalidSettings
from silo.migration.rebalancing.loads import Measure


class RebalanceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the rebalancer goes by; raises InvalidSettings for what makes no sense."""

    measure: Measure = Measure.COUNT
    trigger: float = 0.10
    """It begins where a silo is further than this from its share, as a fraction of it, and by more than one grain."""
    stop: float = 0.02
    """It ends when no silo is further than this from its share."""
    confirmations: int = 2
    """In how many snapshots in a row it must be seen before it begins."""
    settle_s: float = 30.0
    """How long the members must have been the same, in seconds."""
    bite_grains: int = 64
    """What does not move at once moves in pieces of so many grains at least: as many as the largest cluster has."""
    moves_per_plan_max: int = 10_000
    """How many grains one plan moves at most, whatever the budget."""

    def __post_init__(self) -> None:
        if not 0 < self.stop < self.trigger:
            raise InvalidSettings(
                f"stop is above 0 and below trigger, else it would go on: stop={self.stop}, trigger={self.trigger}"
            )
        for name in ("confirmations", "bite_grains", "moves_per_plan_max"):
            if getattr(self, name) < 1:
                raise InvalidSettings(f"{name} is at least 1, not {getattr(self, name)}")
        if self.bite_grains > self.moves_per_plan_max:
            raise InvalidSettings(f"no plan could have one bite: {self.bite_grains=}, {self.moves_per_plan_max=}")
        if not self.settle_s >= 0:
            raise InvalidSettings(f"settle_s is a time from 0 on, not {self.settle_s}")
