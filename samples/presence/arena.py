"""The servers of the games: they send heartbeats, and find out at the end whether every player has had each of them."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from samples.presence.grains import Game, Heartbeat, Player, Spread
from silo import Client

PLAYERS_PER_GAME = 8
REPORT_EVERY_S = 1.0
MOVED_SHARE = 0.2
"""Which part of the games moves to another silo half way."""
CHECKS_IN_FLIGHT_MAX = 200
WRONG_SHOWN_MAX = 20


@dataclass(frozen=True)
class Plan:
    """How large it is.

    Args:
        players: how many players there are; eight to a game.
        seconds: for how long heartbeats are sent.
        beat_every_s: the time between two heartbeats of one game.
        seed: which games move, and when each begins.
        as_json: print one JSON object at the end, and nothing else.
    """

    players: int = 2000
    seconds: float = 8.0
    beat_every_s: float = 1.0
    seed: int = 1
    as_json: bool = False


@dataclass
class Arena:
    """All games, and what their servers have seen."""

    client: Client
    plan: Plan
    spread: dict[str, Spread] = field(default_factory=dict[str, Spread])
    """Where each game and its players were at its last heartbeat."""
    beats: Counter[str] = field(default_factory=Counter[str])
    """Heartbeats of each game that were answered."""
    latencies_s: list[float] = field(default_factory=list[float])
    """Of the heartbeats since the last report: each includes the calls to all players."""

    def __post_init__(self) -> None:
        self.rng = random.Random(self.plan.seed)
        keys = [f"player-{number}" for number in range(self.plan.players)]
        firsts = range(0, len(keys), PLAYERS_PER_GAME)
        self.rosters = {f"game-{first // PLAYERS_PER_GAME}": keys[first : first + PLAYERS_PER_GAME] for first in firsts}

    @property
    def calls(self) -> int:
        """Calls of grains so far: each heartbeat is one, and one more for each player."""
        return sum(count * (1 + len(self.rosters[game])) for game, count in self.beats.items())

    @property
    def grains_by_silo(self) -> dict[str, int]:
        """How many grains, games and players, each silo has."""
        where: Counter[str] = Counter()
        for spread in self.spread.values():
            where[spread.game] += 1
            where.update(spread.players)
        return dict(sorted(where.items()))

    @property
    def remote_share(self) -> float:
        """Which part of the calls from games to players goes from one silo to another."""
        calls = sum(sum(spread.players.values()) for spread in self.spread.values())
        local = sum(spread.players.get(spread.game, 0) for spread in self.spread.values())
        return 1 - local / calls if calls else 0.0

    async def play(self) -> None:
        """Send the heartbeats of all games until the time is over."""
        until = time.monotonic() + self.plan.seconds
        async with asyncio.TaskGroup() as servers:
            for key in self.rosters:
                servers.create_task(self._serve(key, until))

    async def _serve(self, key: str, until: float) -> None:
        game = self.client.grain(Game, key)
        due = time.monotonic() + self.rng.uniform(0, self.plan.beat_every_s)
        while due < until:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due = max(due + self.plan.beat_every_s, time.monotonic())
            began = time.monotonic()
            self.spread[key] = await game.beat(Heartbeat(self.beats[key] + 1, self.rosters[key]))
            self.latencies_s.append(time.monotonic() - began)
            self.beats[key] += 1

    async def move_some(self) -> int:
        """Move some of the games, with their heartbeats going on; returns how many have moved."""
        chosen = self.rng.sample(sorted(self.rosters), int(len(self.rosters) * MOVED_SHARE))
        outcomes = await self.client.migrate_many([self.client.grain(Game, key) for key in chosen])
        return sum(outcome.moved for outcome in outcomes)

    async def wrong(self) -> list[str]:
        """The players that do not know their game, or have had a heartbeat too few or too many."""
        slots = asyncio.Semaphore(CHECKS_IN_FLIGHT_MAX)

        async def check(game: str, player: str) -> str:
            async with slots:
                seen = await self.client.grain(Player, player).presence()
            as_it_should = seen.game == game and seen.heartbeat == seen.heartbeats == self.beats[game]
            return "" if as_it_should else f"{player} of {game}, which beat {self.beats[game]} times: {seen}"

        checks = [check(game, player) for game, roster in self.rosters.items() for player in roster]
        return [found for found in await asyncio.gather(*checks) if found]


async def play(client: Client, plan: Plan) -> None:
    """Play, tell each second how it goes, and check every player at the end."""
    arena = Arena(client, plan)

    def say(line: str) -> None:
        if not plan.as_json:
            print(line)

    say(f"{len(arena.rosters):,} games beat every {plan.beat_every_s:g} s, each for {PLAYERS_PER_GAME} players")
    say(f"{'':>6}{'calls/s':>9}{'heartbeat: median':>20}{'slowest':>10}   grains on each silo")
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        playing = group.create_task(arena.play())
        reports = group.create_task(_report(arena, say))
        await asyncio.wait([playing], timeout=plan.seconds / 2)
        moved = await arena.move_some()
        say(f"       {moved} games have moved to other silos, and beat on")
        await playing
        reports.cancel()
    seconds = time.monotonic() - began
    wrong = await arena.wrong()
    if plan.as_json:
        print(json.dumps(_figures(arena, seconds, moved, wrong), indent=2))
    say(f"\n{arena.calls:,} calls, {arena.calls / seconds:,.0f}/s, for {arena.beats.total():,} heartbeats")
    say(f"{arena.remote_share:.0%} of the calls from games to players went from one silo to another")
    if wrong:
        raise RuntimeError(f"{len(wrong)} players have missed heartbeats, or had some twice; the first: {wrong[0]}")
    say(f"each of {plan.players:,} players has had each heartbeat of its game once")


def _figures(arena: Arena, seconds: float, moved: int, wrong: list[str]) -> dict[str, object]:
    return {
        "v": 1,
        "players": arena.plan.players,
        "games": len(arena.rosters),
        "heartbeats": arena.beats.total(),
        "calls": arena.calls,
        "calls_per_s": round(arena.calls / seconds, 1),
        "games_moved": moved,
        "grains_by_silo": arena.grains_by_silo,
        "remote_share": round(arena.remote_share, 3),
        "wrong": wrong[:WRONG_SHOWN_MAX],
        "ok": not wrong,
    }


async def _report(arena: Arena, say: Callable[[str], None]) -> None:
    """Say a line each second."""
    began, calls = time.monotonic(), 0
    for number in range(1, int(arena.plan.seconds / REPORT_EVERY_S) + 1):
        await asyncio.sleep(max(0.0, began + number * REPORT_EVERY_S - time.monotonic()))
        latencies, arena.latencies_s = arena.latencies_s, []
        rate, calls = (arena.calls - calls) / REPORT_EVERY_S, arena.calls
        if latencies:
            median_ms, slowest_ms = statistics.median(latencies) * 1000, max(latencies) * 1000
            where = " · ".join(f"{silo} {count:,}" for silo, count in arena.grains_by_silo.items())
            say(f"{number:>4} s{rate:>9,.0f}{median_ms:>17.1f} ms{slowest_ms:>7.0f} ms   {where}")
