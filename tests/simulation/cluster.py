"""A cluster of simulated processes that host the grains of the simulation."""

from __future__ import annotations

import random

from silo.messaging.limits import LinkLimits
from silo.settings import ActivationSettings, MigrationSettings
from silo.testing.members import Members
from silo.testing.virtual_time import VirtualTimeLoop
from tests.simulation.grains import GRAINS, Stage

SHUTDOWN_TIMEOUT_S = 15.0
LANES_COME_AND_GO = LinkLimits(link_ping_s=0.4, link_silence_s=1.5, direct_trust_s=0.1, direct_retry_s=0.2)
"""Silence is noticed within the deadlines of calls that grains make, so that the stream can answer them all."""


class SimulatedCluster(Members):
    """The silos, the clients, and the world between them.

    Args:
        direct: whether silos have the direct lane in any case, and take it again soon after it broke; else half of
            the seeds have it, as it comes.
    """

    def __init__(self, loop: VirtualTimeLoop, rng: random.Random, stage: Stage, *, direct: bool = False) -> None:
        lanes: dict[str, object] = {"link": LANES_COME_AND_GO} if direct else {}
        super().__init__(
            loop,
            rng,
            stage.witness,
            kinds=GRAINS,
            settings={
                "direct": rng.random() < 0.5 or direct,
                **lanes,
                "activation": ActivationSettings(collect_every_s=2.0),
                "migration": MigrationSettings(shutdown_timeout_s=SHUTDOWN_TIMEOUT_S, drain_timeout_s=5.0),
            },
        )
