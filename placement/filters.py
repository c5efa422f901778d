"""Filters by what silos say of themselves: their metadata, such as a zone or a pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from silo.directory.addresses import GrainId, SiloAddress
from silo.directory.errors import InvalidSettings
from silo.placement.policy import Candidate


class _MetadataMatch:
    """What Require and Prefer share: which metadata has to match."""

    advisory: ClassVar[bool]

    def __init__(self, *same: str, **values: str) -> None:
        if not same and not values:
            raise InvalidSettings(f"{type(self).__name__}() asks for nothing: name metadata, such as zone='a'")
        for key, value in values.items():
            if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
                raise InvalidSettings(f"metadata values are str: {key}={value!r}")
        self._same = same
        self._values = values

    def exclude(
        self, grain: GrainId, candidates: Sequence[Candidate], here: Candidate | None
    ) -> Mapping[SiloAddress, str]:
        wanted: dict[str, str | None] = {key: here.meta.get(key) if here else None for key in self._same}
        wanted.update(self._values)
        excluded: dict[SiloAddress, str] = {}
        for candidate in candidates:
            for key, value in wanted.items():
                found = candidate.meta.get(key)
                if found != value:
                    excluded[candidate.silo] = f"{self!r}: its {key} is {_shown(found)}, not {_shown(value)}"
                    break
        return excluded

    def __repr__(self) -> str:
        terms = [repr(key) for key in self._same] + [f"{key}={value!r}" for key, value in self._values.items()]
        return f"{type(self).__name__}({', '.join(terms)})"


class Require(_MetadataMatch):
    """Only silos whose metadata matches: `Require(zone="a")`; `Require("zone")` means the zone of the deciding silo."""

    advisory = False


class Prefer(_MetadataMatch):
    """Silos whose metadata matches, while there is one: `Prefer(pool="b")`; `Prefer("zone")` to stay in the zone."""

    advisory = True


def _shown(value: str | None) -> str:
    return "not set" if value is None else repr(value)
