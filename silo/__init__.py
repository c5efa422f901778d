"""Silo: virtual actors that move between processes while they are being called."""

from silo.client import Client
from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.directory.errors import (
    ActivationFailed,
    CallCycle,
    CallExpired,
    CallTimeout,
    Closed,
    DirectoryUnavailable,
    EndpointInUse,
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
    PermissionRefused,
    SerializationError,
    SiloError,
    SiloFenced,
    SiloUnavailable,
    TooManyHops,
)
from silo.grain import Grain, always_interleave, current_grain, grain, one_way, read_only, soft_state, timeout
from silo.grain_context import MoveRequest, OutsideGrain
from silo.host import Silo
from silo.migrate import migrate
from silo.migration.lifecycle import ActivationReason, DeactivationReason, MigrationNotice
from silo.migration.outcome import MigrationOutcome, MoveReason, MoveStatus
from silo.migration.participants import DehydrateContext, Participant, RehydrateContext
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
from silo.settings import SiloSettings

__all__ = [
    "ActivationCountPlacement",
    "ActivationFailed",
    "ActivationReason",
    "CallCycle",
    "CallExpired",
    "CallTimeout",
    "Candidate",
    "Client",
    "Closed",
    "ConsistentHashPlacement",
    "DeactivationReason",
    "DehydrateContext",
    "DirectoryUnavailable",
    "EndpointInUse",
    "Entry",
    "Grain",
    "GrainId",
    "GrainKindUnknown",
    "GrainMoved",
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
    "PermissionRefused",
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
    "TooManyHops",
    "always_interleave",
    "current_grain",
    "grain",
    "grain_id",
    "migrate",
    "one_way",
    "read_only",
    "register",
    "soft_state",
    "timeout",
    "with_hint",
    "with_timeout",
]
