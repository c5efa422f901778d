"""What a caller does while its silo may not act."""

from __future__ import annotations

import asyncio
import random
from typing import Any, NoReturn

from silo import Grain, grain
from silo.caller import Caller, call_ids
from silo.directory.turn_right import LeasedRight
from silo.kinds import kind_of
from silo.reference import make_reference
from silo.routing.book import CallBook
from silo.routing.call import Answer, Call
from silo.wire.frames import Outcome


@grain(kind="listener")
class Listener(Grain):
    async def hear(self, number: int) -> None: ...


class _Silo:
    """A book whose calls are answered as soon as they are placed, and the order in which they were."""

    def __init__(self, codec: Any) -> None:
        self.placed: list[int] = []
        self.now = 0.0
        self.right = LeasedRight(lambda: self.now)
        self.book = CallBook(codec, calls_max=100, bytes_max=10_000, lane_calls_max=100, large_bytes=10_000)
        self.book.attach(self._route, lambda _: True)
        self.caller = Caller(
            "silo",
            self.book,
            call_ids(random.Random(1)),
            call_timeout_s=30.0,
            right=self.right,
            telemetry=None,
            move=_nobody_moves,
        )
        self.listener: Any = make_reference(kind_of(Listener), "one", self.caller)

    def _route(self, call: Call) -> None:
        assert call.args is not None
        self.placed.append(call.args[0])
        call.on_answer(call, Answer(Outcome.VALUE))


async def _nobody_moves(*_: object) -> NoReturn:
    raise AssertionError("nothing is moved here")


async def test_a_call_made_when_the_lease_returns_stands_behind_those_that_waited_for_it() -> None:
    silo = _Silo(codec=None)
    waiting = [asyncio.ensure_future(silo.listener.hear(number)) for number in range(3)]
    await asyncio.sleep(0)
    assert silo.placed == []
    silo.right.deadline = 10.0
    silo.right.extended()
    await silo.listener.hear(3)  # before any of those has been woken
    await asyncio.gather(*waiting)
    assert silo.placed == [0, 1, 2, 3]
