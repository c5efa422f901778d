"""The bounds of links, each named once with its unit, and the pause between two attempts to connect."""

from __future__ import annotations

import random
from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB
REFUSAL_TEXT_MAX = 500
"""The longest reason that one peer tells another, in characters."""
PEER_NAME_MAX = 300
"""The longest name of a peer, in characters."""
ORDERS_MAX = 1_000
"""Grains that one order names at most. All of a cluster go by this and the next one, so they are no settings."""
ORDERS_BYTES_MAX = 256 * KIB
"""Bytes of one such order, which is as much as a piece of a large frame has: it holds no small call up for longer."""


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """How much a link holds, and how long it waits. Peers of one cluster should be configured alike."""

    batch_frames_max: int = 128
    """Frames in one message."""
    batch_bytes_max: int = 512 * KIB
    """Bytes of payload in one message, one chunk apart."""
    chunk_bytes: int = 256 * KIB
    """Frames whose payload is larger travel in pieces of this size."""
    chunk_streams_max: int = 8
    """Large frames on their way at the same time, each way."""
    frame_bytes_max: int = 64 * MIB
    """The largest payload of one frame; a larger one is refused where it is sent."""

    queue_requests_max: int = 10_000
    """Requests that wait to be written; the next one is refused as Overloaded."""
    queue_bytes_max: int = 256 * MIB
    """Bytes of payload in requests that wait to be written; beyond it the next one is refused as Overloaded."""

    unacked_frames_max: int = 16_384
    """Frames written and not acknowledged; the writer takes no more until some are."""
    unacked_bytes_max: int = 16 * MIB
    """Bytes written and not acknowledged; the writer takes no more until some are."""
    ack_every_frames: int = 512
    """Received frames after which an acknowledgement is sent even if there is nothing else to say."""
    ack_every_bytes: int = MIB
    """Received bytes after which an acknowledgement is sent even if there is nothing else to say."""
    ack_after_s: float = 0.1
    """The longest that received frames stay unacknowledged."""

    link_ping_s: float = 1.0
    """After this long without writing, an empty batch is written."""
    link_silence_s: float = 4.0
    """After this long without reading anything, the connection is given up."""
    link_resume_s: float = 5.0
    """After this long without a connection, the session ends and what it held is reported as lost."""
    link_redial_s: float = 0.5
    """How long the side that was dialled waits before it dials back itself."""

    greeting_timeout_s: float = 2.0
    """One attempt to connect, from dialling to the last word of the greeting."""
    direct_trust_s: float = 10.0
    """A connection by the direct lane that breaks sooner than this has failed."""
    direct_retry_s: float = 30.0
    """For so long after the direct lane to a peer broke, the stream of gRPC carries the link; and the longest pause
    between two attempts to have it."""
    greetings_max: int = 256
    """Connections that have come in and not proved anything yet; the next one is closed."""
    goodbye_timeout_s: float = 0.5
    """How long the writing of a last word may take."""
    backoff_min_s: float = 0.05
    """The pause after the first failed attempt to connect."""
    backoff_max_s: float = 1.0
    """The longest pause between two attempts to connect."""

    ended_silos_max: int = 4096
    """Dead silo incarnations that are remembered in order to refuse them."""


def backoff_s(attempt: int, limits: LinkLimits, rng: random.Random) -> float:
    """The pause after failed attempt number `attempt` (from 0): doubling, capped, and jittered over its upper half."""
    doubled = limits.backoff_min_s * 2.0 ** min(attempt, 30)
    return min(limits.backoff_max_s, doubled) * rng.uniform(0.5, 1.0)
