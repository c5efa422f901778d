"""The migration payload: what travels with a grain, entry by entry, each with its schema and checksum.

The envelope is positional msgpack: fields are only appended, and a decoder ignores surplus ones. What cannot be read
back whole is refused whole, before the target takes the grain.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from silo.directory.addresses import GrainId
from silo.directory.errors import SiloError
from silo.migration.lifecycle import Arrival, Departure
from silo.migration.participants import HOOK_ERRORS, NOTHING, SYSTEM_PREFIX, DehydrationFailed, Part, RehydrationFailed

PAYLOAD_FORMAT = 1
PAYLOAD_BYTES_MAX = 16 * 1024 * 1024
"""The largest payload of one grain, in bytes, unless the silo is configured otherwise."""
PAYLOAD_ENTRIES_MAX = 4096
"""The most entries of one payload."""


class PayloadRejected(SiloError, ValueError):
    """A migration payload that cannot be taken whole: too large, damaged, or of a form that is not known here."""


class ValueCodec(Protocol):
    """What turns a value into bytes and back; the runtime's serializer is one."""

    def encode(self, value: object) -> tuple[bytes, int]:
        """The bytes, and the id of the codec that wrote them."""
        ...

    def decode(self, payload: bytes, codec: int) -> object:
        """The value that was encoded."""
        ...


class PayloadEntry(msgspec.Struct, array_like=True, frozen=True):
    """What one part of the grain handed over."""

    name: str
    schema: int
    codec: int
    size: int
    crc32: int
    body: bytes


class Payload(msgspec.Struct, array_like=True, frozen=True):
    """A dehydrated grain on its way."""

    format: int
    grain: GrainId
    from_epoch: int
    reason: str
    version: int
    """The grain kind's `version` at the source."""
    app_version: str
    python: str
    """`major.minor` of the source's interpreter."""
    entries: tuple[PayloadEntry, ...]
    idle_s: float = 0.0
    """How long nobody had called the grain: a move does not make it young again."""
    age_s: float = 0.0
    """How long ago the grain was first activated, over all its moves."""
    trace: str = ""
    """W3C traceparent, or empty."""

    @property
    def arrival(self) -> Arrival:
        """What `on_rehydrate` is told of the move."""
        return Arrival(reason=self.reason, version=self.version, app_version=self.app_version)


class PartFailure(NamedTuple):
    """A part that was left behind because its kind says `on_participant_error="skip"`: to be counted and logged."""

    part: str
    error: BaseException


class Dehydrated(NamedTuple):
    """What the parts handed over, and which of them were skipped."""

    entries: tuple[PayloadEntry, ...]
    skipped: tuple[PartFailure, ...]


class _Head(msgspec.Struct, array_like=True):
    """As much of any payload as every format has: its number."""

    format: int


_ENCODER = msgspec.msgpack.Encoder()
_HEAD_DECODER = msgspec.msgpack.Decoder(_Head)
_PAYLOAD_DECODER = msgspec.msgpack.Decoder(Payload)


def dehydrate(
    parts: Sequence[Part],
    codec: ValueCodec,
    departure: Departure,
    *,
    skip_failing: bool = False,
    bytes_max: int = PAYLOAD_BYTES_MAX,
) -> Dehydrated:
    """Let every part hand over its soft state, in their order: the grain, then participants, then system parts.

    The parts keep what they hand over, so an aborted move needs no way back.

    Raises:
        DehydrationFailed: a part raised, or its value cannot be encoded; `part` names it.
        PayloadRejected: more than `bytes_max`.
    """
    entries: list[PayloadEntry] = []
    skipped: list[PartFailure] = []
    left = bytes_max
    for part in parts:
        try:
            value = part.dehydrate(departure)
            if value is NOTHING:
                continue
            body, codec_id = codec.encode(value)
        except HOOK_ERRORS as error:
            if not (skip_failing and part.skippable):
                raise DehydrationFailed(f"{part.name} could not be dehydrated: {_words(error)}", part.name) from error
            skipped.append(PartFailure(part.name, error))
            continue
        left -= len(body)
        if left < 0:
            raise PayloadRejected(
                f"the soft state is larger than {bytes_max} bytes: passed at {part.name}, which has {len(body)}"
            )
        entries.append(PayloadEntry(part.name, part.schema, codec_id, len(body), zlib.crc32(body), body))
    return Dehydrated(tuple(entries), tuple(skipped))


def rehydrate(
    parts: Sequence[Part],
    payload: Payload,
    codec: ValueCodec,
    *,
    skip_failing: bool = False,
) -> tuple[PartFailure, ...]:
    """Let every part take back its soft state, in the reverse order: system parts, participants, and the grain last.

    Nothing is run unless every entry has a part here that can read its schema.

    Returns: the parts that were skipped.

    Raises:
        PayloadRejected: an entry that no part here takes, or that is written in a newer schema.
        RehydrationFailed: a part raised, or its entry does not decode; `part` names it.
    """
    by_name = {entry.name: entry for entry in payload.entries}
    skipped: list[PartFailure] = []
    for refusal in refusals(schemas(parts), {entry.name: entry.schema for entry in payload.entries}):
        if not skip_failing or refusal.part.startswith(SYSTEM_PREFIX):
            raise refusal.error
        skipped.append(refusal)
        del by_name[refusal.part]
    for part in reversed(parts):
        entry = by_name.get(part.name)
        if entry is None:
            continue
        try:
            part.rehydrate(codec.decode(entry.body, entry.codec), entry.schema, payload.arrival)
        except HOOK_ERRORS as error:
            if not (skip_failing and part.skippable):
                raise RehydrationFailed(f"{part.name} could not be rehydrated: {_words(error)}", part.name) from error
            skipped.append(PartFailure(part.name, error))
    return tuple(skipped)


def schemas(parts: Sequence[Part]) -> dict[str, int]:
    """The schema of every part by its name, as a source asks a target about them before it stops anything."""
    return {part.name: part.schema for part in parts}


def refusals(known: Mapping[str, int], offered: Mapping[str, int]) -> list[PartFailure]:
    """What of the offered entries no part here can take, whose schemas are these, and why; empty is good news."""
    failures: list[PartFailure] = []
    for name, schema in offered.items():
        if name not in known:
            why = f"nothing here takes the entry {name!r}; a participant has to be added where its grain is constructed"
        elif schema > known[name]:
            why = f"{name} is written in schema {schema}, and schema {known[name]} is the newest known here"
        else:
            continue
        failures.append(PartFailure(name, PayloadRejected(why)))
    return failures


def pack(payload: Payload, *, bytes_max: int = PAYLOAD_BYTES_MAX) -> bytes:
    """The payload as it travels; raises PayloadRejected where it is too large."""
    if len(payload.entries) > PAYLOAD_ENTRIES_MAX:
        raise PayloadRejected(f"{len(payload.entries)} entries; a payload has at most {PAYLOAD_ENTRIES_MAX}")
    body = _ENCODER.encode(payload)
    if len(body) > bytes_max:
        raise PayloadRejected(f"the payload of {payload.grain} has {len(body)} bytes; {bytes_max} are allowed")
    return body


def unpack(body: bytes, *, bytes_max: int = PAYLOAD_BYTES_MAX) -> Payload:
    """The payload that arrived, checked: size, format, and each entry's length and checksum; raises PayloadRejected."""
    if len(body) > bytes_max:
        raise PayloadRejected(f"a payload of {len(body)} bytes; {bytes_max} are allowed")
    try:
        format_number = _HEAD_DECODER.decode(body).format
        if format_number != PAYLOAD_FORMAT:
            raise PayloadRejected(
                f"payload format {format_number} is not known here; this silo reads format {PAYLOAD_FORMAT}"
            )
        payload = _PAYLOAD_DECODER.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise PayloadRejected(f"the payload does not decode: {error}") from error
    if len(payload.entries) > PAYLOAD_ENTRIES_MAX:
        raise PayloadRejected(f"{len(payload.entries)} entries; a payload has at most {PAYLOAD_ENTRIES_MAX}")
    names: set[str] = set()
    for entry in payload.entries:
        if len(entry.body) != entry.size or zlib.crc32(entry.body) != entry.crc32:
            raise PayloadRejected(f"the entry {entry.name!r} was damaged on the way: its length or checksum is wrong")
        if entry.name in names:
            raise PayloadRejected(f"two entries are named {entry.name!r}")
        names.add(entry.name)
    return payload


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
