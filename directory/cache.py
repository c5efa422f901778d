"""What a process remembers of the directory: entries by grain, newest epoch only, bounded.

It may be wrong at any time, and is corrected on use: whoever is called at an old address answers with the newer entry.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from silo.directory.addresses import Entry, GrainId, SiloAddress

ENTRIES_MAX: Final = 100_000
SECOND_CHANCES_MAX: Final = 16
"""How many grains that were used lately a new grain passes over in search of a place, before it takes the oldest."""


class _Slot:
    """What is known of one grain: its entry if that is believed, and the highest epoch seen."""

    __slots__ = ("entry", "floor", "used")

    def __init__(self, entry: Entry) -> None:
        self.entry: Entry | None = entry
        self.floor = entry.epoch
        self.used = False


class DirectoryCache:
    """Entries by grain. An entry never gives way to one of a lower epoch, not even after it was forgotten.

    Bounded by second chance (the CLOCK approximation of least recently used): a hit only sets a mark, so that a look
    costs one hash. A forgotten grain keeps its slot, and with it the floor under its epochs, until its turn to be
    displaced comes.

    Args:
        entries_max: how many grains it remembers.
    """

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        if entries_max < 1:
            raise ValueError(f"a cache of {entries_max} entries remembers nothing")
        self._entries_max = entries_max
        self._slots: OrderedDict[GrainId, _Slot] = OrderedDict()
        self._grains_by_silo: dict[SiloAddress, set[GrainId]] = {}

    def __len__(self) -> int:
        """The number of slots in use, those of forgotten grains included."""
        return len(self._slots)

    def get(self, grain: GrainId) -> Entry | None:
        """The grain's entry as last learnt, if it was not forgotten since."""
        slot = self._slots.get(grain)
        if slot is None:
            return None
        slot.used = True
        return slot.entry

    def floor(self, grain: GrainId) -> int:
        """The highest epoch that was seen for this grain; 0 where nothing is remembered."""
        slot = self._slots.get(grain)
        return 0 if slot is None else slot.floor

    def learn(self, entry: Entry) -> bool:
        """Remember the entry, unless one of its epoch or a higher one is known; whether it is news.

        An entry that was forgotten is believed again when it is learnt again.
        """
        slot = self._slots.get(entry.grain)
        if slot is None:
            if len(self._slots) >= self._entries_max:
                self._displace()
            self._slots[entry.grain] = _Slot(entry)
        elif entry.epoch > slot.floor or (entry.epoch == slot.floor and slot.entry is None):
            self._unlist(slot)
            slot.entry = entry
            slot.floor = entry.epoch
            slot.used = True
        else:
            return False
        grains = self._grains_by_silo.get(entry.silo)
        if grains is None:
            grains = self._grains_by_silo[entry.silo] = set()
        grains.add(entry.grain)
        return True

    def forget(self, entry: Entry) -> None:
        """Stop believing this entry or an older one; a newer one stays."""
        slot = self._slots.get(entry.grain)
        if slot is not None and slot.floor <= entry.epoch:
            self._forget_slot(slot)
            slot.floor = entry.epoch

    def forget_grain(self, grain: GrainId) -> None:
        """Stop believing whatever is known of the grain."""
        slot = self._slots.get(grain)
        if slot is not None:
            self._forget_slot(slot)

    def forget_silo(self, silo: SiloAddress) -> None:
        """Stop believing all entries that name this silo."""
        for grain in self._grains_by_silo.pop(silo, ()):
            self._slots[grain].entry = None

    def clear(self) -> None:
        """Forget everything, floors included: for a directory that lost its rows."""
        self._slots.clear()
        self._grains_by_silo.clear()

    def _displace(self) -> None:
        slots = self._slots
        for _ in range(SECOND_CHANCES_MAX):
            grain, slot = next(iter(slots.items()))
            if not slot.used or slot.entry is None:
                break
            slot.used = False
            slots.move_to_end(grain)
        _, displaced = slots.popitem(last=False)
        self._unlist(displaced)

    def _forget_slot(self, slot: _Slot) -> None:
        self._unlist(slot)
        slot.entry = None

    def _unlist(self, slot: _Slot) -> None:
        entry = slot.entry
        if entry is None:
            return
        grains = self._grains_by_silo[entry.silo]
        grains.discard(entry.grain)
        if not grains:
            del self._grains_by_silo[entry.silo]
