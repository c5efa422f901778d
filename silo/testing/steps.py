"""Fault points: the steps of activations and moves by name, and what a test does when one of them is reached."""

from __future__ import annotations

import asyncio
import contextvars
import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from silo.activation.activation import Activation
from silo.directory.addresses import Entry, GrainId
from silo.directory.contract import Registration
from silo.directory.errors import SiloError
from silo.migration import handover


class Step(enum.StrEnum):
    """A place in the life of a grain, told right before the runtime does what it names."""

    START = "start"
    """A call activates the grain at this silo: nothing is registered yet. Failing here, its constructor raises."""
    ASK = "ask"
    """Source: the target is about to be asked whether it would take the grain, which still runs."""
    DRAIN = "drain"
    """Source: `on_migrating` is about to be called, then running turns end and new calls are held."""
    DEACTIVATE = "deactivate"
    """Source: no turn runs; `on_deactivate` is about to be called."""
    DEHYDRATE = "dehydrate"
    """Source: the grain's state is about to be taken out."""
    OFFER = "offer"
    """Source: the state is packed, and nothing of it has left."""
    REHYDRATE = "rehydrate"
    """Target: the offer has arrived; the instance is about to be made."""
    COMMIT = "commit"
    """Target: the instance is there; the compare-and-set is about to be sent."""
    WRITTEN = "written"
    """The directory has changed the row; the target has not heard of it."""
    COMMITTED = "committed"
    """Target: it knows that the entry is its own; the source does not."""
    ACTIVATE = "activate"
    """Target: `on_activate` is about to be called."""
    OPEN = "open"
    """Target: turns are about to start."""
    MOVED = "moved"
    """Source: it has heard of the commit, and is about to send on what it held."""
    RELEASE = "release"
    """Source: the target has opened; the frozen instance is about to go."""
    FENCE = "fence"
    """Source: it does not know what became of its offer, and is about to take the entry itself."""
    GIVE_BACK = "give_back"
    """Target: `on_activate` failed for good; the entry is about to be given back."""
    RESUME = "resume"
    """Source: the move is taken back; the grain is about to go on here."""


BY_ORDER: Final[dict[type[handover.Order], Step]] = {
    handover.SendAsk: Step.ASK,
    handover.Drain: Step.DRAIN,
    handover.Deactivate: Step.DEACTIVATE,
    handover.Dehydrate: Step.DEHYDRATE,
    handover.SendOffer: Step.OFFER,
    handover.Rehydrate: Step.REHYDRATE,
    handover.Register: Step.COMMIT,
    handover.Activate: Step.ACTIVATE,
    handover.Open: Step.OPEN,
    handover.Forward: Step.MOVED,
    handover.Release: Step.RELEASE,
    handover.Fence: Step.FENCE,
    handover.GiveBack: Step.GIVE_BACK,
    handover.Resume: Step.RESUME,
}
FAILING: Final = (Step.START, Step.DRAIN, Step.DEACTIVATE, Step.DEHYDRATE, Step.REHYDRATE, Step.ACTIVATE)
"""The steps in which code of the grain runs, and may raise."""


class InjectedFault(SiloError):
    """What code of the grain raises where a test wants it to fail."""


class StepNotReached(AssertionError):
    """A test planned something for a step that nothing came to: it would have proved nothing."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a step was reached: at which silo, in the life of which grain."""

    step: Step
    grain: GrainId
    silo: str
    """The silo that is about to do it."""
    source: str
    """The silo that the grain comes from."""
    target: str
    """The silo that it goes to; the same as the source where a call activates it."""


class Planned:
    """What a test does when a step is reached; made by `Cluster.when` and `Cluster.fail`."""

    def __init__(self, step: Step, grain: GrainId | None, times: int, do: Callable[[Place], None] | None) -> None:
        self.step = step
        self.grain = grain
        self.left = times
        """How often it is still to happen."""
        self.places: list[Place] = []
        """Where it has happened."""
        self._do = do
        self._reached = asyncio.Event()

    def __repr__(self) -> str:
        return f"{'any grain' if self.grain is None else self.grain} at {self.step.value!r}"

    @property
    def fails(self) -> bool:
        """Whether code of the grain is to raise."""
        return self._do is None

    def fits(self, step: Step, grain: GrainId) -> bool:
        """Whether it is to happen now."""
        return self.left > 0 and step is self.step and self.grain in (None, grain)

    def happen(self, place: Place) -> None:
        """It is reached: do it, as the world around the silos."""
        self.left -= 1
        self.places.append(place)
        self._reached.set()
        if self._do is None:
            return
        try:
            contextvars.Context().run(self._do, place)
        except Exception as error:  # the test's own mistake: it ends the run, and is not taken for the runtime's
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"what was planned for {self!r} failed", "exception": error}
            )

    async def reached(self) -> Place:
        """Wait until it has happened for the first time."""
        await self._reached.wait()
        return self.places[0]


class Steps:
    """All that is planned in one run, and the step at which each activation stands."""

    def __init__(self) -> None:
        self.planned: list[Planned] = []
        self._at: dict[str, Place] = {}

    def plan(self, step: Step, grain: GrainId | None, times: int, do: Callable[[Place], None] | None) -> Planned:
        """Plan something for a step; without `do`, code of the grain raises there."""
        if times < 1:
            raise ValueError(f"times={times}: 1 or more is wanted")
        if do is None and step not in FAILING:
            raise ValueError(
                f"no code of the grain runs at {step.value!r}, so none can fail; it can at"
                f" {', '.join(each.value for each in FAILING)}"
            )
        planned = Planned(step, grain, times, do)
        self.planned.append(planned)
        return planned

    def reach(self, place: Place, activation: Activation) -> None:
        """An activation has come to a step."""
        self._at[activation.activation_id] = place
        self._happen(place)

    def _happen(self, place: Place) -> None:
        for planned in self.planned:
            if not planned.fails and planned.fits(place.step, place.grain):
                planned.happen(place)

    def enter_code(self, activation: Activation) -> None:
        """Code of the grain is about to run; raises InjectedFault in its stead where it is to fail."""
        place = self._at.get(activation.activation_id)
        if place is None:
            return
        for planned in self.planned:
            if planned.fails and planned.fits(place.step, place.grain):
                planned.happen(place)
                raise InjectedFault(f"the test lets {place.grain} fail at {place.step.value!r}")

    def leave(self, activation: Activation) -> None:
        """The activation is on no way to anywhere any more."""
        self._at.pop(activation.activation_id, None)

    def registered(self, asked: Registration, entry: Entry | None) -> None:
        """The directory has carried out a compare-and-set."""
        place = self._at.get(asked.activation)
        if place is None or place.step is not Step.COMMIT or entry is None or entry.activation != asked.activation:
            return
        self._happen(Place(Step.WRITTEN, place.grain, place.target, place.source, place.target))

    def not_reached(self) -> list[Planned]:
        """What was planned and never happened."""
        return [planned for planned in self.planned if not planned.places]


def step_of(order: handover.Order) -> Step | None:
    """The step that an order of the protocol begins; None for one that begins none."""
    if isinstance(order, handover.SendOfferAnswer):
        return None if order.entry is None else Step.COMMITTED
    return BY_ORDER.get(type(order))
