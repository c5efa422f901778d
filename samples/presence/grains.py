"""Players, and the games that they are in: the shape of the presence service that virtual actors were made for.

A game's server reports to the game's grain every so often; the game tells each of its players, who thereby know where
they play and that they still do. Friends ask the player.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

from silo import Grain, grain, read_only, soft_state


@dataclass(frozen=True)
class Heartbeat:
    """What the server of a game reports.

    Args:
        number: counted from 1 on, in each game.
        players: the keys of those who are in the game now.
    """

    number: int
    players: list[str]


@dataclass(frozen=True)
class Presence:
    """What a player's friends see: the game, its last heartbeat, and how many heartbeats the player has had."""

    game: str
    heartbeat: int
    heartbeats: int


@dataclass(frozen=True)
class Spread:
    """Where a heartbeat went.

    Args:
        game: the silo that the game was on.
        players: how many of its players were on which silo.
    """

    game: str
    players: dict[str, int]


@grain(kind="presence.player")
class Player(Grain):
    """Knows which game it is in."""

    game: str = soft_state(default="")
    heartbeat: int = soft_state(default=0)
    heartbeats: int = soft_state(default=0)

    async def plays(self, game: str, heartbeat: int) -> str:
        """The game says that this player is in it; answers with the silo that the player is on."""
        self.game, self.heartbeat = game, heartbeat
        self.heartbeats += 1
        return self.silo

    @read_only
    async def presence(self) -> Presence:
        return Presence(self.game, self.heartbeat, self.heartbeats)


@grain(kind="presence.game")
class Game(Grain):
    """Takes its server's heartbeats, and passes each on to all of its players."""

    last: int = soft_state(default=0)

    async def beat(self, heartbeat: Heartbeat) -> Spread:
        self.last = heartbeat.number
        calls = [self.grain(Player, player).plays(self.key, heartbeat.number) for player in heartbeat.players]
        return Spread(self.silo, dict(Counter(await asyncio.gather(*calls))))
