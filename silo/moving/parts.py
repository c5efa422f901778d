"""What moves use of their silo, and the order that begins one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

from silo.activation.catalog import Catalog
from silo.directory.addresses import SiloAddress
from silo.directory.cache import DirectoryCache
from silo.directory.membership import Membership
from silo.kinds import OnBusy
from silo.migration.outcome import MoveReason
from silo.placement.decision import Placement
from silo.routing.call import ValueCodec

if TYPE_CHECKING:
    from silo.messaging.links import Links
    from silo.telemetry import Telemetry


MIGRATE = "migrate"
"""The control verb that moves a grain."""
MOVE_ANSWER_S = 30.0
"""What a control call allows beyond the move's own timeouts."""


class MoveOrder(msgspec.Struct, array_like=True, frozen=True):
    """The payload of the control verb `migrate`."""

    to: str = ""
    """The name or address of a silo; empty to let placement choose."""
    reason: str = MoveReason.ADMIN
    force: bool = False
    on_busy: Literal["", OnBusy] = ""
    """How to treat running calls; empty for what the kind says."""


@dataclass(frozen=True, slots=True)
class MoveLimits:
    """The bounds of moves; see the settings of the same names."""

    drain_timeout_s: float = 60.0
    ask_timeout_s: float = 2.0
    offer_timeout_s: float = 10.0
    payload_bytes_max: int = 16 * 1024 * 1024
    moves_in_flight_max: int = 100
    arrivals_in_flight_max: int = 1000
    notice_timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class MoveParts:
    """What moves use of their silo."""

    me: SiloAddress
    name: str
    app_version: str
    catalog: Catalog
    cache: DirectoryCache
    links: Links
    membership: Membership
    placement: Placement
    codec: ValueCodec
    limits: MoveLimits
    clock: Callable[[], float]
    """Measures pauses, and decides nothing: a loop's own time may be too coarse for that."""
    telemetry: Telemetry | None = None
