"""Which way a renewal goes: to the table itself, or, while that does not answer, through one of the others."""

from __future__ import annotations

from collections.abc import Sequence

from silo.directory.addresses import SiloAddress

DIRECT_EVERY = 5
"""While others forward the renewals, one in so many tries the table itself."""


class Ways:
    """None stands for the table itself; else the silo that forwards."""

    def __init__(self) -> None:
        self._usual: SiloAddress | None = None
        self._last: SiloAddress | None = None
        self._forwarded = 0

    def choose(self, others: Sequence[SiloAddress]) -> SiloAddress | None:
        """The way for the renewal that leaves now."""
        if self._usual not in others:
            self._usual = None
        self._forwarded = self._forwarded + 1 if self._usual is not None else 0
        self._last = self._usual if self._forwarded % DIRECT_EVERY else None
        return self._last

    def failed(self, others: Sequence[SiloAddress]) -> None:
        """The last renewal was not answered in time: the next goes another way, each in turn."""
        if self._last == self._usual:
            ways = [None, *others]
            at = ways.index(self._usual) if self._usual in ways else 0
            self._usual = ways[(at + 1) % len(ways)]

    @property
    def is_direct(self) -> bool:
        """Whether the last renewal went to the table itself."""
        return self._last is None

    def answered_directly(self) -> None:
        """The table answers again."""
        self._usual = None
