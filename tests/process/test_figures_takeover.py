"""A silo with many activations is killed: how soon that is known, and how soon all of its grains serve again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from silo.client import Client
from silo.directory.addresses import SiloAddress
from silo.directory.errors import NotExecuted, OutcomeUnknown
from silo.directory.membership import SiloStatus
from silo.reference import with_hint, with_timeout
from tests.process.grains import Counter
from tests.process.stage import LONG, Stage, in_ms

VICTIM = "silo-2"
GRAINS = 10_000 if LONG else 1_000
ACTIVATED_AT_ONCE = 500
LEASE_S = 5.0
FIRST_WITHIN_S, ALL_WITHIN_S = 0.5, 3.0
"""After the death is known: the grain that is called first, and all of them."""
ALL_WITHIN_TIMES = 1.5
"""Where the machine is slow: so many times what it took to activate them all at first."""
DEADLINE_S = 4.0
RETRY_PAUSE_S = 0.01


async def activate_all(client: Client) -> list[Counter]:
    """So many counters, all on the victim."""
    counters = [with_timeout(client.grain(Counter, str(key)), DEADLINE_S) for key in range(GRAINS)]
    for start in range(0, GRAINS, ACTIVATED_AT_ONCE):
        batch = counters[start : start + ACTIVATED_AT_ONCE]
        await asyncio.gather(*(with_hint(counter, VICTIM).read() for counter in batch))
    return counters


async def answers_elsewhere(stage: Stage, counter: Counter, dead: SiloAddress) -> float:
    """Call until another silo answers; when that was."""
    while True:
        try:
            home = await counter.where()
        except (NotExecuted, OutcomeUnknown):
            await asyncio.sleep(RETRY_PAUSE_S)
            continue
        assert home != str(dead)
        return stage.now()


@pytest.mark.parametrize(
    ("silos", "proof", "known_within_s"),
    [
        pytest.param(("silo-1", VICTIM, "silo-3"), True, 1.0, id="death_is_proved"),
        pytest.param(("silo-1", VICTIM, "silo-3"), False, 1.3 * LEASE_S, id="death_is_judged"),
        pytest.param(("silo-1", VICTIM), False, 1.5 * LEASE_S, id="death_is_judged_by_the_survivor_of_two"),
    ],
)
async def test_kill_9_of_a_silo_full_of_grains_is_known_in_time_and_three_seconds_later_all_of_them_serve_again(
    make_stage: Callable[..., Stage], silos: tuple[str, ...], proof: bool, known_within_s: float
) -> None:
    """Long form: 10,000 activations."""
    settings: dict[str, object] = {"lease.lease_s": LEASE_S, "lease.prove_deaths": proof}
    async with make_stage(settings) as stage, stage.client() as client:
        await stage.start(*silos)
        began_at = stage.now()
        counters = await activate_all(client)
        activated_s = stage.now() - began_at
        dead = (await stage.row(VICTIM)).silo
        assert {await counter.where() for counter in counters[:: GRAINS // 20]} == {str(dead)}
        lost_at = stage.now()
        await stage.kill(VICTIM)
        await stage.until(lambda view: (row := view.row(dead)) is None or row.status is SiloStatus.DEAD, 3 * LEASE_S)
        known_at = stage.now()
        first = await answers_elsewhere(stage, counters[0], dead) - known_at
        answered = await asyncio.gather(*(answers_elsewhere(stage, counter, dead) for counter in counters[1:]))
        after = [first, *(at - known_at for at in answered)]
        print(
            f"\n{GRAINS} activations, {len(silos)} silos, proof {proof}: known after {known_at - lost_at:.2f} s = "
            f"{(known_at - lost_at) / LEASE_S:.2f} leases; after that the first grain answered in "
            f"{first * 1000:.0f} ms, all of them: {in_ms(after)}; to activate them at first took {activated_s:.2f} s"
        )
        assert known_at - lost_at < known_within_s
        assert first < FIRST_WITHIN_S
        assert max(after) < max(ALL_WITHIN_S, ALL_WITHIN_TIMES * activated_s)
        assert await counters[0].read() == 0  # what was not stored has died with it
