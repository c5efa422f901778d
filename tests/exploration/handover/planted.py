"""Faulty protocols: each the product's core with one rule bent. An explorer that finds them has teeth."""

from __future__ import annotations

from dataclasses import dataclass

from silo.migration import handover as h
from silo.migration.handover import Source, SourcePhase, Target, TargetPhase
from silo.migration.outcome import MoveStatus
from tests.exploration.handover.play import Play
from tests.exploration.handover.world import OFFERED, Bounds


class ResumesInDoubt(Source):
    def on(self, event: h.Event) -> list[h.Order]:
        if self.phase is SourcePhase.OFFERED and isinstance(event, h.TimedOut):
            return self._aborted(event.why, reactivate=True)
        return Source.on(self, event)


class ReleasesOnALostLink(Source):
    def on(self, event: h.Event) -> list[h.Order]:
        if self.phase is SourcePhase.MOVED and isinstance(event, h.PeerLost):
            return self._done(h.Release(), h.Finish(MoveStatus.MOVED))
        return Source.on(self, event)


class ReleasesWhenItLosesTheFence(Source):
    def on(self, event: h.Event) -> list[h.Order]:
        was_fencing = self.phase is SourcePhase.FENCING
        orders = Source.on(self, event)
        if was_fencing and self.phase is SourcePhase.MOVED:
            orders += self._done(h.Release(), h.Finish(MoveStatus.MOVED))
        return orders


class ResumesThoughItLostTheFence(Source):
    def on(self, event: h.Event) -> list[h.Order]:
        if self.phase is SourcePhase.FENCING and isinstance(event, h.Registered):
            return self._aborted(self.why, reactivate=True)
        return Source.on(self, event)


class ResumesWhenTheTargetDies(Source):
    def on(self, event: h.Event) -> list[h.Order]:
        if self.phase is SourcePhase.MOVED and isinstance(event, h.PeerDied):
            return self._aborted(event.why, reactivate=True)
        return Source.on(self, event)


class LetsGoWhenTheTargetDies(Source):
    def on(self, event: h.Event) -> list[h.Order]:
        if self.phase is SourcePhase.MOVED and isinstance(event, h.PeerDied):
            return self._done(h.Release(), h.Finish(MoveStatus.MOVED))
        return Source.on(self, event)


class LetsGoWhenTheRowIsSwept(Source):
    def on(self, event: h.Event) -> list[h.Order]:
        if self.phase is SourcePhase.PARTING and isinstance(event, h.Registered) and event.entry is None:
            return self._yielded(None, "the row is gone")
        return Source.on(self, event)


class WaitsForTheDirectoryThatFailed(Source):
    def on(self, event: h.Event) -> list[h.Order]:
        if self.phase in (SourcePhase.FENCING, SourcePhase.PARTING) and isinstance(event, h.Failed):
            return []
        return Source.on(self, event)


class BelievesAnOldRow(Source):
    def on(self, event: h.Event) -> list[h.Order]:
        if self.phase is SourcePhase.MOVED and isinstance(event, h.Found) and event.entry == OFFERED:
            return self._aborted("given back", reactivate=True)
        return Source.on(self, event)


class ForgetsToLookBeforeItLetsGo(Source):
    def on(self, event: h.Event) -> list[h.Order]:
        if self.phase is SourcePhase.MOVED and isinstance(event, h.PeerDied):
            return []
        return Source.on(self, event)


class ForgetsTheEpochItWasGiven(Source):
    def on(self, event: h.Event) -> list[h.Order]:
        entry = self.entry
        orders = Source.on(self, event)
        self.entry = entry
        return orders


class OffersWhileCallsRun(Source):
    def on(self, event: h.Event) -> list[h.Order]:
        if self.phase is SourcePhase.ASKING and isinstance(event, h.AskAnswered) and not event.refused:
            self.phase = SourcePhase.DEHYDRATING
            return [h.Dehydrate()]
        return Source.on(self, event)


class OpensBeforeItRegisters(Target):
    def on(self, event: h.Event) -> list[h.Order]:
        if isinstance(event, h.Rehydrated):
            return [h.Open(), *Target.on(self, event)]
        return Target.on(self, event)


class OpensThoughItLost(Target):
    def on(self, event: h.Event) -> list[h.Order]:
        if self.phase is TargetPhase.REGISTERING and isinstance(event, h.Registered):
            self.entry = event.entry
            self.phase = TargetPhase.STARTING
            return [h.SendOfferAnswer(event.entry), h.Activate()]
        return Target.on(self, event)


class GivesUpWhileItsCompareAndSetIsOut(Target):
    def on(self, event: h.Event) -> list[h.Order]:
        if self.phase is TargetPhase.REGISTERING and isinstance(event, h.Withdrawn):
            return self._refused("withdrawn")
        return Target.on(self, event)


class KeepsWhatItCannotOpen(Target):
    def on(self, event: h.Event) -> list[h.Order]:
        if self.phase is TargetPhase.STARTING and isinstance(event, h.Failed):
            self.phase = TargetPhase.DONE
            return [h.SendOpened(event.why), h.Discard(None, event.why)]
        return Target.on(self, event)


class DropsTheOfferOfALostSource(Target):
    def on(self, event: h.Event) -> list[h.Order]:
        if self.phase is TargetPhase.REHYDRATING and isinstance(event, h.PeerLost | h.PeerDied):
            self.phase = TargetPhase.DONE
            return []
        return Target.on(self, event)


class SaysTooEarlyThatItIsOpen(Target):
    def on(self, event: h.Event) -> list[h.Order]:
        orders = Target.on(self, event)
        return [*orders, h.SendOpened()] if self.phase is TargetPhase.STARTING else orders


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault, the faults around it that bring it out, and how the explorer names what it breaks."""

    what: str
    play: Play
    bounds: Bounds
    breaks: str


QUIET = Bounds()
CALLED = Bounds(calls=1)
LOSS = Bounds(link_losses=1)
CRASH = Bounds(crashes=1)

PLANTED = (
    Planted("the source resumes in doubt", Play(ResumesInDoubt), QUIET, "two activations|is open under"),
    Planted("the source lets go when the link is lost", Play(ReleasesOnALostLink), LOSS, "has not opened"),
    Planted("the source lets go when it loses the fence", Play(ReleasesWhenItLosesTheFence), QUIET, "has not opened"),
    Planted("the source resumes though it lost the fence", Play(ResumesThoughItLostTheFence), QUIET, "is open under"),
    Planted("the source resumes when the target dies", Play(ResumesWhenTheTargetDies), CRASH, "is open"),
    Planted("the source lets go when the target dies", Play(LetsGoWhenTheTargetDies), CRASH, "target has not opened"),
    Planted(
        "the source lets go when the row of the dead is swept",
        Play(LetsGoWhenTheRowIsSwept),
        Bounds(crashes=1, sweeps=1),
        "nobody else has the grain",
    ),
    Planted(
        "the source waits for a directory that has failed",
        Play(WaitsForTheDirectoryThatFailed),
        Bounds(failures=1),
        "waits for ever",
    ),
    Planted("the source believes a row from before the move", Play(BelievesAnOldRow), QUIET, "is open under"),
    Planted("the source does not heed the target's death", Play(ForgetsToLookBeforeItLetsGo), CRASH, "waits for ever"),
    Planted("the source serves on under an old epoch", Play(ForgetsTheEpochItWasGiven), QUIET, "is open under"),
    Planted("the source offers while calls run", Play(OffersWhileCallsRun), QUIET, "two activations|is open under"),
    Planted("the target opens before it registers", Play(target=OpensBeforeItRegisters), QUIET, "is open under"),
    Planted("the target opens though it lost", Play(target=OpensThoughItLost), QUIET, "two activations|is open under"),
    Planted(
        "the target gives up while its compare-and-set is out",
        Play(target=GivesUpWhileItsCompareAndSetIsOut),
        QUIET,
        "knows nothing of the grain|waits for ever|nobody has the grain",
    ),
    Planted("the target keeps what it cannot open", Play(target=KeepsWhatItCannotOpen), QUIET, "knows nothing of"),
    Planted(
        "the target drops the offer of a source that is lost and says nothing",
        Play(target=DropsTheOfferOfALostSource),
        Bounds(link_losses=1, calls=1),
        "the call is lost",
    ),
    Planted(
        "the target says that it is open before it is",
        Play(target=SaysTooEarlyThatItIsOpen),
        QUIET,
        "without the grain's state|has not opened|named by",
    ),
    Planted("the target says nothing again", Play(says_again=False), LOSS, "waits for ever"),
)
