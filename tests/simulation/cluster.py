"""A cluster of simulated processes that host the grains of the simulation."""

from __future__ import annotations

import random

from silo.settings import ActivationSettings, MigrationSettings
from silo.testing.members import Members
from silo.testing.virtual_time import VirtualTimeLoop
from tests.simulation.grains import GRAINS, Stage

SHUTDOWN_TIMEOUT_S = 15.0


class SimulatedCluster(Members):
    """The silos, the clients, and the world between them."""

    def __init__(self, loop: VirtualTimeLoop, rng: random.Random, stage: Stage) -> None:
        super().__init__(
            loop,
            rng,
            stage.witness,
            kinds=GRAINS,
            settings={
                "direct": rng.random() < 0.5,
                "activation": ActivationSettings(collect_every_s=2.0),
                "migration": MigrationSettings(shutdown_timeout_s=SHUTDOWN_TIMEOUT_S, drain_timeout_s=5.0),
            },
        )
