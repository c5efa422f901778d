"""What one silo has promised about each of the others: rules R4 and R6.

An acknowledgement promises to assent to no verdict for W. An assent binds: no acknowledgement of that silo until the
table, asked after the assent, shows that the verdict cannot take effect any more. Both name one silo and no view, so
they hold whatever joins and dies meanwhile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from silo.directory.addresses import SiloAddress
from silo.directory.lease_settings import LeaseSettings
from silo.directory.membership import Table, Verdict, View, table_id


@dataclass(frozen=True, slots=True)
class Binding:
    """The newest verdict on one silo that was assented to, and when."""

    at: float
    run: str
    version: int
    seq: int


class Promises:
    """Acknowledgements given, and assents given; all times by the own clock."""

    def __init__(self, settings: LeaseSettings) -> None:
        self._settings = settings
        self.acknowledged: dict[SiloAddress, float] = {}
        self.heard: dict[SiloAddress, float] = {}
        self.bound: dict[SiloAddress, Binding] = {}

    def hear(self, silo: SiloAddress, now: float) -> None:
        """The silo has said something: it is not as silent as the table may show it."""
        self.heard[silo] = now

    def acknowledge(self, silo: SiloAddress, view: View, now: float) -> bool:
        """Promise it, unless bound. A silo that the view does not know is refused: its row may have been removed."""
        if silo in self.bound or not view.is_alive(silo):
            return False
        self.acknowledged[silo] = now
        return True

    def assent(self, verdict: Verdict, now: float) -> bool:
        """Assent to it, unless its target was acknowledged or heard within W."""
        latest = max(self.acknowledged.get(verdict.target, -math.inf), self.heard.get(verdict.target, -math.inf))
        if now - latest < self._settings.wait_s:
            return False
        return self.bind(verdict, now)

    def bind(self, verdict: Verdict, now: float) -> bool:
        """Be bound by this assent, and by earlier ones still; False where those are of another run of the store.

        One of the two runs is over, and which one is not known here: a binding to the wrong one would be shed by
        reading the other. The next answer of the table tells.
        """
        known = self.bound.get(verdict.target)
        if known is not None and known.run != verdict.run:
            return False
        version, seq = verdict.version, verdict.seq
        if known is not None:
            version, seq = max(version, known.version), max(seq, known.seq)
        self.bound[verdict.target] = Binding(now, verdict.run, version, seq)
        return True

    def learn(self, table: Table, sent_at: float) -> None:
        """Shed what the table has made void, as this answer to a request of that time shows."""
        if self.bound:
            self._unbind(View(table), sent_at)
        for kept in (self.acknowledged, self.heard):
            for silo in [silo for silo, at in kept.items() if sent_at - at > self._settings.wait_s]:
                del kept[silo]

    def _unbind(self, view: View, sent_at: float) -> None:
        for silo, binding in list(self.bound.items()):
            row = view.row(silo)
            if table_id(binding.run) != view.table.id:
                # That table was lost, perhaps after the verdict was carried. Once S is over, the silo can have no
                # right left from before it.
                void = sent_at >= binding.at + self._settings.wait_alone_s
            elif row is None:  # its row was removed, so it is dead; or too new for this answer
                void = view.version > binding.version
            else:
                void = row.dead is None and sent_at >= binding.at and self.is_void(binding, view, row.seq)
            if void:
                del self.bound[silo]

    def is_void(self, binding: Binding, view: View, seq: int) -> bool:
        """Whether no verdict that was assented to can take effect in this table."""
        return view.table.run != binding.run or view.version > binding.version or seq > binding.seq
