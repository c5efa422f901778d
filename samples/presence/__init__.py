"""Presence: thousands of players and their games, whose heartbeats fan out from the game to its players.

`python -m samples.presence` has options; `silo dev samples.presence --once` runs it with their defaults.
"""

from samples.presence.arena import Plan, play
from samples.presence.grains import Game, Player
from silo import Client

__all__ = ["Game", "Player", "main"]


async def main(client: Client) -> None:
    """What `silo dev` runs."""
    await play(client, Plan())
