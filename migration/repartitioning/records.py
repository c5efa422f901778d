"""How often each grain has moved for locality, and when it may move again."""

from __future__ import annotations

from collections.abc import Sequence

from silo.directory.addresses import GrainId
from silo.migration.repartitioning.messages import MoveRecord, Why
from silo.migration.repartitioning.settings import RepartitioningSettings

AROUND_MAX = 4
"""By how many of its heaviest peers a grain's surroundings are told from others."""
DOUBLINGS_MAX = 9
"""How often the time that a grain stays is doubled at most."""
FREE_MOVES = 2
"""Up to this many moves the time that a grain stays is not doubled, and so many fit in one cool-down."""


class _Record:
    __slots__ = ("around", "at", "before", "moves", "not_before", "room_moves")

    def __init__(self) -> None:
        self.moves = 0
        self.room_moves = 0
        self.at: float | None = None
        self.before: float | None = None
        self.around: tuple[GrainId, ...] = ()
        self.not_before: float | None = None


class MoveBook:
    """The moves of the grains that are here. Bounded: of too many, those that moved first are forgotten."""

    def __init__(self, settings: RepartitioningSettings) -> None:
        self._settings = settings
        self._records: dict[GrainId, _Record] = {}

    def __len__(self) -> int:
        return len(self._records)

    def may_move(self, grain: GrainId, now: float) -> bool:
        """Whether it has stayed long enough: a dwell time that doubles with each move, and two moves in a cool-down."""
        record = self._records.get(grain)
        if record is None:
            return True
        if record.not_before is not None and now < record.not_before:
            return False
        if record.at is None:
            return True
        dwell = self._settings.dwell_s * 2.0 ** min(DOUBLINGS_MAX, max(0, record.moves - FREE_MOVES))
        return now - record.at >= dwell and (record.before is None or now - record.before >= self._settings.cooldown_s)

    def cost_factor(self, grain: GrainId) -> float:
        """What the next move has to earn, in costs of a move: twice as much with each move from the third on."""
        record = self._records.get(grain)
        return 1.0 if record is None else 2.0 ** min(DOUBLINGS_MAX, max(0, record.moves - FREE_MOVES + 1))

    def may_make_room(self, grain: GrainId) -> bool:
        record = self._records.get(grain)
        return record is None or record.room_moves < self._settings.room_moves_max

    def compare(self, grain: GrainId, peers: Sequence[GrainId]) -> None:
        """Begin anew where more than half of the peers that it moved for are gone: it is in another company now."""
        record = self._records.get(grain)
        if record is None or not record.around:
            return
        if 2 * sum(peer in peers for peer in record.around) < len(record.around):
            record.moves = record.room_moves = 0
            record.around = ()

    def packed(self, grain: GrainId, heaviest: Sequence[GrainId], now: float) -> MoveRecord:
        """The record as it goes with the grain, and the peers for which it moves now."""
        around = tuple(heaviest[:AROUND_MAX])
        record = self._records.get(grain)
        if record is None:
            return MoveRecord(around=around)
        return MoveRecord(
            record.moves,
            record.room_moves,
            None if record.at is None else now - record.at,
            None if record.before is None else now - record.before,
            around,
        )

    def arrived(self, grain: GrainId, came: MoveRecord, why: Why, since: float, now: float) -> None:
        """It has moved here.

        Args:
            came: what its former silo wrote, at the time `since`.
        """
        record = _Record()
        record.moves = came.moves + 1
        record.room_moves = came.room_moves + (why is Why.ROOM)
        record.at = now
        record.before = None if came.since_s is None else since - came.since_s
        record.around = came.around
        self._keep(grain, record)

    def held_back(self, grain: GrainId, now: float) -> None:
        """Its move came to nothing: not at once again."""
        record = self._records.get(grain) or _Record()
        record.not_before = now + self._settings.dwell_s
        self._keep(grain, record)

    def forget(self, grain: GrainId) -> None:
        self._records.pop(grain, None)

    def _keep(self, grain: GrainId, record: _Record) -> None:
        self._records.pop(grain, None)
        if len(self._records) >= self._settings.grains_max:
            del self._records[next(iter(self._records))]
        self._records[grain] = record
