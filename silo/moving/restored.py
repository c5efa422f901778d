"""A grain made from a migration payload."""

from __future__ import annotations

from silo.activation.activation import Activation
from silo.instances import parts_of
from silo.logs import get_logger
from silo.migration.payload import Payload, rehydrate, unpack
from silo.moving.parts import MoveParts
from silo.persistence.state_part import is_system_part

log = get_logger(__name__)


def restore(parts: MoveParts, activation: Activation, body: bytes) -> Payload:
    """A new instance for a closed activation, with the state that a payload carries.

    Raises:
        PayloadRejected, RehydrationFailed: the payload, or a part of it, cannot be taken.
        Exception: what the grain's constructor raised.
    """
    payload = unpack(body, bytes_max=parts.limits.payload_bytes_max)
    activation.participants = None  # of an earlier instance, where this one takes its place
    activation.work = None
    parts.catalog.beginnings.build(activation)
    carries_system_parts = any(is_system_part(entry.name) for entry in payload.entries)
    system = activation.arriving_parts if carries_system_parts else ()
    skipped = activation.run_sync(
        lambda: rehydrate(
            parts_of(activation.kind, activation.instance, activation.participants or (), system),
            payload,
            parts.codec,
            skip_failing=activation.kind.on_participant_error == "skip",
        )
    )
    for part, error in skipped:
        log.warning("migration.part_skipped", grain=str(activation.id), part=part, exc_info=error)
    return payload
