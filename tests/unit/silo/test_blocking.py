"""Who blocks the loop is named in the log. S029."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from types import FrameType
from unittest.mock import patch

from silo.activation.activation import Activation
from silo.activation.blocking import grain_code_of
from silo.directory.loop_watch import LOOP_SLOW_AFTER_S, LoopWatch
from silo.grain import Grain, grain
from tests.cluster.stage import say
from tests.support.memory_cluster import Scene, told

LATER_S = 2 * LOOP_SLOW_AFTER_S


def seen_from_another_thread() -> str:
    """What another thread finds this one to work at."""
    me, found = threading.get_ident(), list[str]()

    def look() -> None:
        found.append(grain_code_of(sys._current_frames().get(me)))  # pyright: ignore[reportPrivateUsage] - as the watch does

    looking = threading.Thread(target=look)
    looking.start()
    looking.join()
    return found[0]


async def log_of_a_watch(name_work: Callable[[FrameType | None], str] = grain_code_of) -> str:
    """What a watch writes that finds this loop's thread where it is now."""
    now = 0.0
    watch = LoopWatch(60.0, lambda _: None, lambda: now, name_work)
    watch.start()
    watch.stop()
    with patch("silo.directory.loop_watch._log.warning") as warned:
        assert watch.look(LATER_S)
        now += LATER_S
        assert watch.look(LATER_S)
    (written,) = warned.call_args_list
    return str(written.kwargs["work"])


@grain(kind="slow")
class Slow(Grain):
    async def on_activate(self) -> None:
        say(seen_from_another_thread())

    async def block(self) -> str:
        return seen_from_another_thread()

    async def block_after_a_pause(self) -> str:
        await asyncio.sleep(0.1)
        return await asyncio.create_task(self.grain(Slow, "other").block()) + " and " + await self._deeper()

    async def _deeper(self) -> str:
        return await log_of_a_watch()


@told
async def test_S029_the_log_of_a_slow_loop_names_the_grain_and_the_method_that_blocks_it(scene: Scene) -> None:
    (silo,) = await scene.start("a", kinds=(Slow,))
    slow = silo.grain(Slow, "k")
    assert await slow.block() == "slow/k.block"
    assert scene.stage.lines == ["a hook or task of slow/k"]
    assert await slow.block_after_a_pause() == "slow/other.block and slow/k.block_after_a_pause"


@told
async def test_what_no_grain_does_is_named_after_none(scene: Scene) -> None:
    await scene.start("a", kinds=(Slow,))
    assert seen_from_another_thread() == ""
    assert grain_code_of(None) == ""
    assert await log_of_a_watch() == ""


class HalfMade(Activation):
    """One that another thread looks at before it knows its grain."""

    __slots__ = ("seen",)

    def __init__(self) -> None:
        self.seen = seen_from_another_thread()


def test_a_loop_that_is_found_while_it_makes_an_activation_is_blocked_by_no_grain() -> None:
    assert HalfMade().seen == ""


async def test_what_cannot_be_named_does_not_end_the_watch() -> None:
    def fail(_frame: FrameType | None) -> str:
        raise AttributeError("half made")

    assert "half made" in await log_of_a_watch(fail)
