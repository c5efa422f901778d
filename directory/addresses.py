"""The names of things: grains, silos, and the row that says which silo serves which grain.

These values travel in frames and rows as they are: positional msgpack, fields only ever appended.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

import msgspec

from silo.directory.errors import InvalidIdentity

KIND_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
CLUSTER_PATTERN = re.compile(r"[a-z0-9-]+")
KEY_BYTES_MAX = 512
"""The longest grain key, in bytes of UTF-8."""
ADDRESSES_SPELT_MAX = 4096
"""Of how many silo addresses the text form is remembered."""
EPOCH_MAX = 2**53
"""Epochs stay below this, so that every Lua and JSON number holds one exactly."""


def require_key(key: str) -> None:
    """Raise InvalidIdentity where this can be no grain's key."""
    if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise InvalidIdentity(f"a grain key is a str, not {type(key).__name__}: {key!r}; convert it where you call")
    try:
        size = len(key) if key.isascii() else len(key.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise InvalidIdentity(f"grain key {key!r} is not valid Unicode text: {error.reason}") from None
    if not 0 < size <= KEY_BYTES_MAX:
        raise InvalidIdentity(f"a grain key has 1 to {KEY_BYTES_MAX} bytes of UTF-8, this one has {size}")
    if "\0" in key:
        raise InvalidIdentity("a grain key holds no NUL character")


class GrainId(msgspec.Struct, frozen=True, array_like=True, order=True, cache_hash=True, gc=False):
    """The identity of a grain: its kind and its key. Text form `kind/key`, split at the first `/`."""

    kind: str
    key: str

    @classmethod
    def of(cls, kind: str, key: str) -> GrainId:
        """The checked identity of a grain.

        Raises:
            InvalidIdentity: the kind or the key is not of the allowed form.
        """
        if not KIND_PATTERN.fullmatch(kind):
            raise InvalidIdentity(f"grain kind {kind!r} is not of the form {KIND_PATTERN.pattern}")
        require_key(key)
        return cls(kind, key)

    @classmethod
    def parse(cls, text: str) -> GrainId:
        """The identity written as `kind/key`; raises InvalidIdentity."""
        kind, slash, key = text.partition("/")
        if not slash:
            raise InvalidIdentity(f"{text!r} names no grain: write kind/key, such as room/lobby")
        return cls.of(kind, key)

    def __str__(self) -> str:
        return f"{self.kind}/{self.key}"


class SiloAddress(msgspec.Struct, frozen=True, array_like=True, order=True, cache_hash=True, gc=False):
    """The identity of one silo process: where it listens, and which start of it this is.

    The incarnation tells a restarted silo from the one before it. It is compared for equality only.
    """

    endpoint: str
    incarnation: int

    @classmethod
    def parse(cls, text: str) -> SiloAddress:
        """The address written as `host:port@incarnation`; raises InvalidIdentity."""
        endpoint, at, incarnation = text.rpartition("@")
        if not at or not incarnation.isdigit():
            raise InvalidIdentity(f"{text!r} is not a silo address of the form host:port@incarnation")
        return cls(endpoint, int(incarnation))

    def __str__(self) -> str:
        return _spelt(self)


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The directory's row for a grain: who serves it, under which epoch."""

    grain: GrainId
    silo: SiloAddress
    activation: str
    epoch: int

    def __str__(self) -> str:
        return f"{self.grain} on {self.silo} (activation {self.activation}, epoch {self.epoch})"


@lru_cache(ADDRESSES_SPELT_MAX)
def _spelt(address: SiloAddress) -> str:
    return f"{address.endpoint}@{address.incarnation}"


def stable_hash(text: str) -> int:
    """A 64-bit hash that is the same in every process, on every machine and in every release: BLAKE2b-64."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest(), "big")
