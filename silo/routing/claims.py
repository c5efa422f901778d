"""Calls whose silo is lost, which may have been no more than on their way by it: who has them now?

The directory says who holds the grain; that silo is asked for the call, and answers that it has it, or that it never
had it and never will. In that case the lost one may have run it, unless the grain had left it by then. Whoever holds
the grain now can tell of two such calls: those that stood in the queue that the grain left behind when it moved, and
those that were sent when the grain had long been open at its new place.

As long as a silo is only out of reach it may still send a call on, to somebody who has not heard of the claim. So that
a call was not executed is said when its silo is dead, and not before.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Iterable
from itertools import groupby

import msgspec

from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.directory.errors import NotExecuted, SiloError
from silo.directory.membership import View
from silo.logs import get_logger
from silo.routing.call import Answer, Call
from silo.tasks import Tasks
from silo.wire.frames import Claim, ClaimAnswer

log = get_logger(__name__)

LOOK_UP_S = 0.4
"""How long the directory may take to say who holds the grain."""
ANSWER_S = 3.0
"""How long that silo, which lives, may take to say whether it has the call."""
DOUBT_S = 30.0
"""How long a call that did not run waits for the death of the silo that may yet send it on."""
CLOCK_RATE = 1.01
"""How much faster than another silo's clock one's own may go: lengths of time are compared, never readings."""


class Verdict(enum.Enum):
    """What has become of a call."""

    HELD = "held"
    NEVER_RAN = "never ran"
    UNKNOWN = "unknown"


def judge(answer: ClaimAnswer, age_s: float) -> Verdict:
    """What the holder's answer means for a call that was sent so long ago, measured as the answer comes."""
    if answer.held:
        return Verdict.HELD
    was_open_before = answer.open_s is not None and age_s * CLOCK_RATE < answer.open_s
    return Verdict.NEVER_RAN if answer.was_queued or was_open_before else Verdict.UNKNOWN


class Open(msgspec.Struct, frozen=True):
    """A claim that has not settled what has become of its call."""

    call: Call
    holder: SiloAddress
    lost: SiloAddress
    """Who had the call when it was lost."""
    because: str
    """How it was lost."""
    timer: asyncio.TimerHandle

    @property
    def is_open(self) -> bool:
        """Whether nothing has been heard of the call meanwhile."""
        return not self.call.answered and self.call.target == str(self.holder)


class Claims:
    """The claims of this silo for calls that were made here.

    Args:
        look_up: asks the directory who holds a grain.
        view: the members, as they are known now.
        send: sends a frame to a silo.
        fail: ends a call whose outcome is unknown: (call, who was lost, why).
    """

    def __init__(
        self,
        *,
        look_up: Callable[[GrainId], Awaitable[Entry | None]],
        view: Callable[[], View],
        send: Callable[[SiloAddress, Claim], None],
        fail: Callable[[Call, str, str], None],
    ) -> None:
        self._look_up = look_up
        self._view = view
        self._send = send
        self._fail = fail
        self._open: dict[int, Open] = {}
        self._doubtful: dict[int, Open] = {}
        """Answered, and kept until the lost silo is known to be dead."""
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks("claims")

    def __len__(self) -> int:
        return len(self._open) + len(self._doubtful)

    async def close(self) -> None:
        for claim in (*self._open.values(), *self._doubtful.values()):
            claim.timer.cancel()
        await self._tasks.close()

    def find(self, calls: Iterable[Call], lost: SiloAddress, because: str) -> None:
        """These were with a silo that is lost: find out who else may have them."""
        in_order = sorted(calls, key=lambda call: (call.grain.kind, call.grain.key, call.id))
        for grain, of_grain in groupby(in_order, key=lambda call: call.grain):
            self._tasks.spawn(self._find(grain, list(of_grain), lost, because), f"find calls of {grain}")

    async def _find(self, grain: GrainId, calls: list[Call], lost: SiloAddress, because: str) -> None:
        entry: Entry | None = None
        try:
            async with asyncio.timeout(LOOK_UP_S):
                entry = await self._look_up(grain)
        except (SiloError, TimeoutError) as error:
            log.info("claims.not_looked_up", grain=str(grain), why=str(error) or f"no answer within {LOOK_UP_S} s")
        for call in calls:
            if call.answered or call.target != str(lost):
                continue  # it has been answered, or heard of from elsewhere, meanwhile
            if entry is None or entry.silo == lost:
                self._fail(call, str(lost), because)
            else:
                self.ask(call, entry.silo, lost, because)

    def ask(self, call: Call, holder: SiloAddress, lost: SiloAddress, because: str) -> None:
        """Ask a silo for a call that it may have been sent."""
        self._drop(call.id)
        call.target = str(holder)
        if not self._view().is_alive(holder):
            self._fail(call, str(lost), f"{because}; so was {holder}, to which it was to go")
            return
        timer = self._loop.call_later(ANSWER_S, self._give_up, call.id)
        self._open[call.id] = Open(call, holder, lost, because, timer)
        self._send(holder, Claim(call.id, call.grain, call.left_s(self._loop.time())))

    def on_answer(self, answer: ClaimAnswer) -> None:
        """A silo has answered."""
        if answer.id not in self._open:
            return
        claim = self._drop(answer.id)
        if claim is None or not claim.is_open:
            return  # it has said more meanwhile: where it sent the call, or how that ended
        call, holder = claim.call, claim.holder
        match judge(answer, self._loop.time() - call.sent_at):
            case Verdict.HELD:
                log.debug("claims.held", call=repr(call), holder=str(holder))
            case Verdict.NEVER_RAN if not self._view().is_alive(claim.lost):
                what = f"lost on its way by {claim.lost}, and {holder} will not run it"
                call.on_answer(call, Answer.failed(NotExecuted(f"{call.grain}.{call.method}: {what}: {claim.because}")))
            case Verdict.NEVER_RAN:
                call.forwarder = claim.lost  # whose death is a reason to ask again
                timer = self._loop.call_later(DOUBT_S, self._give_up, call.id)
                self._doubtful[call.id] = msgspec.structs.replace(claim, timer=timer)
            case Verdict.UNKNOWN:
                self._fail(call, str(claim.lost), claim.because)

    def on_back(self, silo: SiloAddress) -> None:
        """A silo that was lost is not: what it had and has not sent on, nobody will hear of."""
        for claim in [claim for claim in self._doubtful.values() if claim.lost == silo]:
            self._give_up(claim.call.id)

    def _give_up(self, call_id: int) -> None:
        """No answer has come, or none that settles it."""
        claim = self._drop(call_id)
        if claim is not None and claim.is_open:
            self._fail(claim.call, str(claim.lost), f"{claim.because}; nor is it known from {claim.holder}")

    def _drop(self, call_id: int) -> Open | None:
        claim = self._open.pop(call_id, None) or self._doubtful.pop(call_id, None)
        if claim is not None:
            claim.timer.cancel()
        return claim
