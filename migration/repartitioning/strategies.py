"""The repartitioner of a silo, by the name of its strategy."""

from __future__ import annotations

import random

from silo.directory.addresses import SiloAddress
from silo.migration.repartitioning.exchange import Exchange, Residents
from silo.migration.repartitioning.hub_first import HubFirst
from silo.migration.repartitioning.pairwise import Pairwise
from silo.migration.repartitioning.settings import RepartitioningSettings, Strategy


def make_exchange(
    me: SiloAddress,
    settings: RepartitioningSettings,
    residents: Residents,
    rng: random.Random,
    now: float,
    capacity: float = 1.0,
) -> Exchange | None:
    """What decides for this silo; nothing where the strategy is `off`.

    Args:
        capacity: how much this silo can carry, relative to the others.
    """
    match settings.strategy:
        case Strategy.OFF:
            return None
        case Strategy.HUB_FIRST:
            return HubFirst(me, settings, residents, rng, now, capacity)
        case Strategy.PAIRWISE:
            return Pairwise(me, settings, residents, rng, now, capacity)
