"""How many and how large: what the rows of the runtime, its floors and its peers have in common.

It imports nothing of ours: peers may run under another interpreter, in which the runtime is not installed.
"""

from __future__ import annotations

import random
from typing import Final

LOCAL_GRAINS: Final = 16
REMOTE_GRAINS: Final = 64
FAN_GRAINS: Final = 10
RING_GRAINS: Final = 3
ACTIVATIONS_IN_FLIGHT: Final = 256
NUMBER_BYTES: Final = 8
SIZES: Final = {"": NUMBER_BYTES, "10k.": 10 * 1024, "1m.": 1024 * 1024}
"""The bytes of what is echoed, by the part of a row's name that says so."""


def body(size: str) -> bytes:
    """What is echoed. Noise: some peers compress, and memory that nobody has written to is not really there."""
    return random.Random(size).randbytes(SIZES[size])
