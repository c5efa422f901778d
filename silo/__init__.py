"""Silo: virtual actors that move between processes while they are being called."""

import importlib
from typing import TYPE_CHECKING

from silo.activation.timers import GrainTimer
from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.directory.errors import (
    ActivationDamped,
    ActivationFailed,
    AnswerTooLarge,
    CallCycle,
    CallExpired,
    CallTimeout,
    ClientMisused,
    Closed,
    DirectoryUnavailable,
    EndpointInUse,
    EndpointUnusable,
    GrainKindUnknown,
    GrainMoved,
    GrainUnplaceable,
    HandshakeRefused,
    InvalidGrain,
    InvalidIdentity,
    InvalidSettings,
    MembershipUnavailable,
    MigrationRefused,
    NestedCallFailed,
    NoGateway,
    NotExecuted,
    OutcomeUnknown,
    Overloaded,
    PayloadTooLarge,
    PermissionRefused,
    SerializationError,
    SiloError,
    SiloFenced,
    SiloUnavailable,
    StateTooLarge,
    StorageConflict,
    StorageOutcomeUnknown,
    StorageUnavailable,
    StoredStateUnreadable,
    TooManyHops,
)
from silo.grain import Grain, always_interleave, current_grain, grain, one_way, read_only, soft_state, timeout
from silo.grain_context import MoveRequest, OutsideGrain
from silo.migrate import migrate
from silo.migration.lifecycle import ActivationReason, DeactivationReason, MigrationNotice
from silo.migration.outcome import MigrationOutcome, MoveReason, MoveStatus
from silo.migration.participants import DehydrateContext, Participant, RehydrateContext
from silo.persistence.declaration import persistent
from silo.persistence.persistent import Persistent
from silo.placement.filters import Prefer, Require
from silo.placement.policies import (
    ActivationCountPlacement,
    ConsistentHashPlacement,
    PreferLocalPlacement,
    RandomPlacement,
)
from silo.placement.policy import Candidate, PlacementPolicy, PlacementView
from silo.reference import grain_id, with_hint, with_timeout
from silo.serialization.exceptions import RemoteError
from silo.serialization.registry import register

if TYPE_CHECKING:
    from silo.client import Client
    from silo.host import Silo
    from silo.messaging.certificates import Certificates
    from silo.settings import SiloSettings

__all__ = [
    "ActivationCountPlacement",
    "ActivationDamped",
    "ActivationFailed",
    "ActivationReason",
    "AnswerTooLarge",
    "CallCycle",
    "CallExpired",
    "CallTimeout",
    "Candidate",
    "Certificates",
    "Client",
    "ClientMisused",
    "Closed",
    "ConsistentHashPlacement",
    "DeactivationReason",
    "DehydrateContext",
    "DirectoryUnavailable",
    "EndpointInUse",
    "EndpointUnusable",
    "Entry",
    "Grain",
    "GrainId",
    "GrainKindUnknown",
    "GrainMoved",
    "GrainTimer",
    "GrainUnplaceable",
    "HandshakeRefused",
    "InvalidGrain",
    "InvalidIdentity",
    "InvalidSettings",
    "MembershipUnavailable",
    "MigrationNotice",
    "MigrationOutcome",
    "MigrationRefused",
    "MoveReason",
    "MoveRequest",
    "MoveStatus",
    "NestedCallFailed",
    "NoGateway",
    "NotExecuted",
    "OutcomeUnknown",
    "OutsideGrain",
    "Overloaded",
    "Participant",
    "PayloadTooLarge",
    "PermissionRefused",
    "Persistent",
    "PlacementPolicy",
    "PlacementView",
    "Prefer",
    "PreferLocalPlacement",
    "RandomPlacement",
    "RehydrateContext",
    "RemoteError",
    "Require",
    "SerializationError",
    "Silo",
    "SiloAddress",
    "SiloError",
    "SiloFenced",
    "SiloSettings",
    "SiloUnavailable",
    "StateTooLarge",
    "StorageConflict",
    "StorageOutcomeUnknown",
    "StorageUnavailable",
    "StoredStateUnreadable",
    "TooManyHops",
    "always_interleave",
    "current_grain",
    "grain",
    "grain_id",
    "migrate",
    "one_way",
    "persistent",
    "read_only",
    "register",
    "soft_state",
    "timeout",
    "with_hint",
    "with_timeout",
]

_WHEN_ASKED_FOR = {
    "Certificates": "silo.messaging.certificates",
    "Client": "silo.client",
    "Silo": "silo.host",
    "SiloSettings": "silo.settings",
}
"""Names whose modules bring most of the runtime, Redis's client, TLS and pydantic, which take longer to import than all
else here: a module of grains needs none of them, nor does `silo --help`."""

if not TYPE_CHECKING:  # to type checkers, a name that is not here shall be an error

    def __getattr__(name: str) -> object:
        if name not in _WHEN_ASKED_FOR:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(importlib.import_module(_WHEN_ASKED_FOR[name]), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
