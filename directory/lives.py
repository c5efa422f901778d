"""The lives of all buckets as one silo knows them: whether it may register now, and what is to be claimed.

The shell that claims (`silo.reassertion`) and the registrar share it. All methods are for one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, assert_never

from silo.directory.addresses import GrainId
from silo.directory.directory_scripts import DIRECTORY_BUCKETS, bucket_of
from silo.directory.errors import DirectoryUnsettled
from silo.directory.settling import (
    AwaitRegistrations,
    BucketSettling,
    Claimed,
    Doubted,
    Drained,
    Event,
    Needed,
    Open,
    Phase,
    Seen,
    SendClaim,
)

_DRAINED: Final = Drained()
ASSERTED_AGAIN: Final = "the directory has lost rows, and not every silo has said yet what it serves"
"""Why there are buckets that take no registrations, where nothing else is known."""


class Registering:
    """One registration, from before it goes out until after its answer; see `Lives.registering`."""

    __slots__ = ("_lives", "bucket", "floor", "grain", "life")

    def __init__(self, lives: Lives, grain: GrainId, bucket: int) -> None:
        self._lives = lives
        self.grain = grain
        self.bucket = bucket
        self.life = ""
        """The life in which it counts."""
        self.floor = 0
        """The highest epoch that its bucket is known to have."""

    def begin(self) -> None:
        """It is about to go out; raises DirectoryUnsettled where none may."""
        self.life, self.floor = self._lives.begin_registration(self.grain, self.bucket)

    def end(self) -> bool:
        """It is out no more; whether its life still goes on."""
        return self._lives.end_registration(self.bucket, self.life)

    def over(self) -> DirectoryUnsettled:
        """What to say of an answer that came when its life was over."""
        return DirectoryUnsettled(f"the directory lost rows while {self.grain} was being registered")

    def __enter__(self) -> Registering:
        self.begin()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if not self.end() and error is None:
            raise self.over()


class Lives:
    """What one silo knows of each bucket, and its registrations that are out.

    Args:
        on_settled: told when buckets take registrations again.
    """

    def __init__(self, on_settled: Callable[[], None] = lambda: None) -> None:
        self.work = asyncio.Event()
        """Set when there is something to claim."""
        self.on_settled = on_settled
        self.why_unsettled = ASSERTED_AGAIN
        """What is said to those who wait."""
        self._buckets = [BucketSettling() for _ in range(DIRECTORY_BUCKETS)]
        self._unsettled = set(range(DIRECTORY_BUCKETS))
        self._floors = [0] * DIRECTORY_BUCKETS
        self._out = [0] * DIRECTORY_BUCKETS
        self._draining: set[int] = set()
        self._claims: dict[int, str] = {}
        """The buckets to claim, with the life in each that is over."""
        self._settled: asyncio.Future[None] | None = None
        self._telling: asyncio.Handle | None = None

    # ---- whoever registers

    def is_settled(self, grain: GrainId) -> bool:
        """Whether what the directory says of this grain is the whole truth, as far as this silo knows."""
        return not self._unsettled or self._buckets[bucket_of(str(grain))].is_settled

    async def settled(self, grain: GrainId) -> None:
        """Wait until this grain may be registered."""
        bucket = bucket_of(str(grain))
        while not self._buckets[bucket].is_settled:
            self.tell(bucket, Needed())
            if self._settled is None:
                self._settled = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._settled)

    def registering(self, grain: GrainId) -> Registering:
        """What a registration is to be made within, so that its bucket is not claimed meanwhile.

        Raises:
            DirectoryUnsettled: at the beginning, since none may go out; or at the end, since the life was over when the
                answer came, which counts for nothing then.
        """
        return Registering(self, grain, bucket_of(str(grain)))

    def begin_registration(self, grain: GrainId, bucket: int) -> tuple[str, int]:
        """The life in which a registration counts, and the highest epoch that its bucket is known to have."""
        settling = self._buckets[bucket]
        if not settling.is_settled:
            self.tell(bucket, Needed())
            raise DirectoryUnsettled(f"{grain} cannot be registered yet: {self.why_unsettled}")
        self._out[bucket] += 1
        return settling.life, self._floors[bucket]

    def end_registration(self, bucket: int, life: str) -> bool:
        """It is out no more; whether its life still goes on."""
        self._out[bucket] -= 1
        if not self._out[bucket] and bucket in self._draining:
            self._draining.discard(bucket)
            self.tell(bucket, _DRAINED)
        settling = self._buckets[bucket]
        return settling.is_settled and settling.life == life

    def saw(self, bucket: int, epoch: int) -> None:
        """Note an epoch of the bucket: whatever the store forgets, none below it is given again by this silo."""
        if epoch > self._floors[bucket]:
            self._floors[bucket] = epoch

    # ---- whoever claims

    def doubt(self, buckets: Iterable[int] | None = None, *, is_over: bool = False) -> None:
        """These buckets, or all, may have lost rows."""
        doubted = Doubted(is_over)
        for bucket in range(DIRECTORY_BUCKETS) if buckets is None else buckets:
            self.tell(bucket, doubted)

    def take_claims(self) -> dict[int, str]:
        """The buckets to claim now, each with the life in it that is over; each is given out once."""
        claims, self._claims = self._claims, {}
        return claims

    def claimed(self, bucket: int, life: str, *, is_settled: bool) -> None:
        self.tell(bucket, Claimed(life, is_settled))

    def seen(self, bucket: int, life: str, *, is_settled: bool) -> None:
        known = self._buckets[bucket]
        if life == known.life and (known.phase is Phase.SETTLED or not is_settled):
            return  # it is as it was: what most looks show
        self.tell(bucket, Seen(life, is_settled))

    def unsettled(self) -> list[tuple[int, str]]:
        """The buckets that wait for the claims of others, and their lives."""
        known = [(bucket, self._buckets[bucket]) for bucket in sorted(self._unsettled)]
        return [(bucket, each.life) for bucket, each in known if each.phase is Phase.CLAIMED]

    def known(self) -> list[int]:
        """The buckets of which a life is known here."""
        return [bucket for bucket in range(DIRECTORY_BUCKETS) if self.is_known(bucket)]

    def is_known(self, bucket: int) -> bool:
        """Whether a life of this bucket is known here."""
        phase = self._buckets[bucket].phase
        return phase is Phase.SETTLED or phase is Phase.CLAIMED

    def floor(self, bucket: int) -> int:
        """The highest epoch that the bucket is known to have given, in whatever life."""
        return self._floors[bucket]

    def life(self, bucket: int) -> str:
        return self._buckets[bucket].life

    def are_settled(self, buckets: Iterable[int]) -> bool:
        """Whether all of these are."""
        return self._unsettled.isdisjoint(buckets) if self._unsettled else True

    @property
    def all_settled(self) -> bool:
        """Whether every bucket is settled."""
        return not self._unsettled

    def tell(self, bucket: int, event: Event) -> None:
        """Carry out what follows from an event."""
        for order in self._buckets[bucket].on(event):
            match order:
                case AwaitRegistrations():
                    self._unsettled.add(bucket)
                    if self._out[bucket]:
                        self._draining.add(bucket)
                    else:
                        self.tell(bucket, _DRAINED)
                case SendClaim(over):
                    self._claims[bucket] = over
                    self.work.set()
                case Open():
                    self._unsettled.discard(bucket)
                    waiting, self._settled = self._settled, None
                    if waiting is not None and not waiting.done():
                        waiting.set_result(None)
                    if self._telling is None:  # of many that open together, once
                        self._telling = asyncio.get_running_loop().call_soon(self._tell_settled)
                case _:
                    assert_never(order)

    def _tell_settled(self) -> None:
        self._telling = None
        self.on_settled()
