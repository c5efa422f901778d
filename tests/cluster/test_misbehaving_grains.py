"""Grain code that does what it should not harms its own call alone: promise 2, a call ends."""

from __future__ import annotations

import asyncio

import pytest

from silo.directory.errors import ActivationFailed, AnswerTooLarge, NotExecuted
from silo.grain import Grain, grain
from silo.messaging.limits import MIB
from silo.migration.lifecycle import ActivationReason, DeactivationReason, MigrationNotice
from silo.migration.participants import DehydrateContext, RehydrateContext
from silo.reference import with_hint
from silo.serialization.exceptions import RemoteError
from tests.cluster.clusters import Cluster

pytestmark = pytest.mark.in_memory
SOON_S = 1.0
"""Far below any deadline: what ends within it was not given up."""


class Abort(BaseException):
    """What frameworks raise past `except Exception`: a test's outcome, a worker's end."""


@grain(kind="quitter")
class Quitter(Grain):
    """Quits in whatever hook its key names."""

    def __init__(self) -> None:
        self._quit_in("constructor")

    def _quit_in(self, place: str) -> None:
        if self.key == place:
            raise Abort(place)

    async def on_activate(self, reason: ActivationReason) -> None:
        self._quit_in("on_activate")

    async def on_deactivate(self, reason: DeactivationReason) -> None:
        self._quit_in("on_deactivate")

    async def on_migrating(self, notice: MigrationNotice) -> None:
        self._quit_in("on_migrating")

    def on_dehydrate(self, context: DehydrateContext) -> None:
        self._quit_in("on_dehydrate")

    def on_rehydrate(self, context: RehydrateContext) -> None:
        self._quit_in("on_rehydrate")

    async def quit(self, how: str) -> None:
        raise SystemExit(3) if how == "exit" else Abort(how)

    async def leave(self) -> None:
        self.deactivate()

    async def where(self) -> str:
        return self.silo

    async def answer(self, size: int) -> bytes:
        return bytes(size)


@pytest.mark.parametrize("how", ["exit", "abort"])
async def test_a_turn_that_quits_ends_its_call_and_not_its_silo(cluster: Cluster, how: str) -> None:
    await cluster.start("a", "b", kinds=(Quitter,))
    client = await cluster.client()
    quitter = with_hint(client.grain(Quitter, "k"), "b")
    async with asyncio.timeout(SOON_S):
        with pytest.raises(RemoteError, match="SystemExit" if how == "exit" else "Abort"):
            await quitter.quit(how)
        assert await quitter.where() == "b"


@pytest.mark.parametrize("hook", ["constructor", "on_activate"])
async def test_a_grain_that_quits_as_it_starts_fails_its_calls_at_once(cluster: Cluster, hook: str) -> None:
    await cluster.start("a", "b", kinds=(Quitter,))
    client = await cluster.client()
    async with asyncio.timeout(SOON_S):
        with pytest.raises(ActivationFailed, match="Abort"):
            await client.grain(Quitter, hook).where()


async def test_a_grain_that_quits_as_it_ends_has_ended(cluster: Cluster) -> None:
    await cluster.start("a", "b", kinds=(Quitter,))
    client = await cluster.client()
    quitter = client.grain(Quitter, "on_deactivate")
    async with asyncio.timeout(SOON_S):
        await quitter.leave()
        assert await quitter.where() in ("a", "b")


@pytest.mark.parametrize("hook", ["on_migrating", "on_deactivate", "on_dehydrate", "on_rehydrate"])
async def test_a_grain_that_quits_in_a_move_serves_on_here_or_there(cluster: Cluster, hook: str) -> None:
    await cluster.start("a", "b", kinds=(Quitter,))
    client = await cluster.client()
    quitter = with_hint(client.grain(Quitter, hook), "a")
    async with asyncio.timeout(SOON_S):
        assert await quitter.where() == "a"
        outcome = await client.migrate(quitter, to="b")
        assert outcome.moved == (hook in ("on_migrating", "on_deactivate"))
        assert await quitter.where() == ("b" if outcome.moved else "a")


async def test_an_answer_too_large_to_send_does_not_claim_that_the_call_has_not_run(cluster: Cluster) -> None:
    await cluster.start("a", "b", kinds=(Quitter,))
    client = await cluster.client()
    with pytest.raises(AnswerTooLarge, match="the call ran") as caught:
        await client.grain(Quitter, "k").answer(65 * MIB)
    assert not isinstance(caught.value, NotExecuted)
