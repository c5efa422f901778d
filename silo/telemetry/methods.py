"""What is told of each method: the names and labels of its spans and figures, made once and not for every call."""

from __future__ import annotations

from silo.routing.call import Call
from silo.telemetry.instruments import METHODS_MAX, Instruments, Labels
from silo.wire.frames import Flag, Outcome


class Method:
    """One method of one kind, or one order to the runtime at a grain's silo.

    Args:
        silo: the attributes that name the silo in each of its spans.
    """

    __slots__ = ("attributes", "called_here", "called_there", "ended", "labels", "span_name")

    def __init__(self, call: Call, instruments: Instruments, silo: dict[str, str]) -> None:
        kind, method = call.grain.kind, call.method
        self.span_name = f"control {kind}/{method}" if call.is_control else f"{kind}/{method}"
        self.attributes = {"rpc.system": "silo", "rpc.service": kind, "rpc.method": method, **silo}
        self.labels: Labels = instruments.method(kind, method)
        self.called_here: Labels = {**self.labels, "scope": "local"}
        self.called_there: Labels = {**self.labels, "scope": "remote"}
        self.ended: dict[Outcome, Labels] = {
            outcome: {**self.labels, "outcome": outcome.name.lower()} for outcome in Outcome
        }
        """Its turns, by how they ended."""


class Methods:
    """The methods that are called from here, or run here."""

    def __init__(self, instruments: Instruments, silo: dict[str, str]) -> None:
        self._instruments = instruments
        self._silo = silo
        self._known: dict[tuple[str, str, int], Method] = {}

    def of(self, call: Call) -> Method:
        named = (call.grain.kind, call.method, call.flags & Flag.CONTROL)
        known = self._known.get(named)
        if known is None:
            known = Method(call, self._instruments, self._silo)
            if len(self._known) < METHODS_MAX:
                self._known[named] = known
        return known
