"""The worlds that are explored: how many silos, and what may go wrong."""

from __future__ import annotations

from typing import Final

from tests.exploration.membership.world import Configuration

SMALL: Final = (
    Configuration("1 silo, 1 joiner", silos=1, joiners=1),
    Configuration("2 silos", silos=2),
    Configuration("3 silos", silos=3),
    Configuration("2 silos, 1 joiner", silos=2, joiners=1),
    Configuration("3 silos, 1 joiner", silos=3, joiners=1),
    Configuration("1 silo, 2 joiners: 3 changes", silos=1, joiners=2, changes=3),
)
"""Seconds: part of the tests."""

LOSS: Final = (
    Configuration("2 silos: the table lost", silos=2, wipes=1),
    Configuration("3 silos: the table lost", silos=3, wipes=1),
    Configuration("2 silos, 1 joiner: the table lost", silos=2, joiners=1, wipes=1),
)
"""Likewise, where the store loses the whole table."""

LARGE: Final = (
    Configuration("2 silos, acknowledgements delayed, drift", silos=2, delays="a", drifts=True),
    Configuration("2 silos, 1 joiner: acknowledgements delayed", silos=2, joiners=1, delays="a"),
    Configuration("2 silos, 1 joiner: answers delayed, 1 change", silos=2, joiners=1, delays="ar", changes=1),
    Configuration("2 silos, 1 joiner: renewals and answers delayed", silos=2, joiners=1, grace=1, delays="rq"),
    Configuration("3 silos: drift, failover", silos=3, drifts=True, failovers=1),
    Configuration("6 silos", silos=6),
    Configuration("5 silos, 1 joiner", silos=5, joiners=1),
    Configuration("2 silos, 1 joiner: drift, failover", silos=2, joiners=1, drifts=True, failovers=1),
    Configuration("3 silos, 1 joiner: L=3, 3 changes", silos=3, joiners=1, lease=3, changes=3),
    Configuration("3 silos, 1 joiner: acknowledgements delayed", silos=3, joiners=1, delays="a"),
    Configuration("2 silos, 2 joiners: 4 changes", silos=2, joiners=2, changes=4),
    Configuration("4 silos, 1 joiner: 3 changes", silos=4, joiners=1, changes=3),
    Configuration(
        "1 silo, 1 joiner: drift, failover, all delays",
        silos=1,
        joiners=1,
        grace=1,
        drifts=True,
        failovers=1,
        delays="arq",
    ),
    Configuration("4 silos, 2 joiners: 3 changes", silos=4, joiners=2, changes=3),
    Configuration("3 silos, 1 joiner: drift, failover", silos=3, joiners=1, drifts=True, failovers=1),
    Configuration("2 silos: the table lost twice", silos=2, wipes=2),
    Configuration("3 silos, 1 joiner: the table lost", silos=3, joiners=1, wipes=1),
)
"""Minutes together; roughly by size."""

ALL: Final = {configuration.name: configuration for configuration in (*SMALL, *LOSS, *LARGE)}
