"""Hello: one grain, called before and after it moves. `python -m samples.hello`, or `silo dev samples.hello --once`."""

import sys

from silo import Client, Grain, grain, soft_state
from silo.cli import invoke


@grain(kind="hello.greeter")
class Greeter(Grain):
    greeted: int = soft_state(default=0)  # goes with the grain when it moves

    async def greet(self, name: str) -> str:
        self.greeted += 1
        return f"Hello {name}, from {self.silo}. You are number {self.greeted}."


async def main(client: Client) -> None:
    greeter = client.grain(Greeter, "reception")  # nothing runs yet; the first call finds it a silo
    print(await greeter.greet("Ada"))
    moved = await client.migrate(greeter)
    print(moved)
    answer = await greeter.greet("Grace")
    print(answer)
    assert moved.moved
    assert answer.endswith("number 2."), answer


if __name__ == "__main__":
    sys.exit(invoke(["dev", "samples.hello", "--once", "--log-level", "warning"]))
