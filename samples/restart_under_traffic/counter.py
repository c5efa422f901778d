"""The grain that is called."""

from silo import Grain, grain


@grain(kind="restart.counter")
class Counter(Grain):
    """Counts its turns, in memory alone: after a crash it begins anew."""

    def __init__(self) -> None:
        self.turns = 0

    async def count(self) -> int:
        self.turns += 1
        return self.turns
