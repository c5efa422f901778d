"""What an operator does with the command `silo`: cordon a silo, look at a grain, have it deactivated."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from silo.cli import ExitCode
from silo.reference import with_hint, with_timeout
from tests.process.grains import Counter
from tests.process.stage import Stage
from tests.process.test_run_command import silo_command


class Operator:
    """Somebody with a shell."""

    def __init__(self, stage: Stage) -> None:
        self._flags = ("--cluster", stage.cluster_name, "--redis", stage.redis)

    async def says(self, *command: str, code: ExitCode = ExitCode.DONE) -> str:
        """What the command prints; it ends with this code."""
        ended, output, errors = await silo_command(*command, *self._flags)
        assert (ended, "Traceback" in errors) == (code, False), f"{output}{errors}"
        return output or errors

    async def json(self, *command: str) -> Any:
        return json.loads(await self.says(*command, "--json"))


async def test_R204_R325_R478_the_command_cordon_keeps_a_silo_free_of_new_grains_until_uncordon(
    make_stage: Callable[..., Stage],
) -> None:
    async with make_stage() as stage, stage.client() as client:
        await stage.start("silo-1", "silo-2")
        operator = Operator(stage)
        there = with_hint(client.grain(Counter, "there"), "silo-1")
        assert await there.read() == 0
        told = await operator.json("cordon", "silo-1")
        assert (told["silo"], told["cordoned"]) == ("silo-1", True)
        assert "it takes no new grains" in await operator.says("cordon", told["address"])  # it is so already
        members = {silo["name"]: silo for silo in (await operator.json("status"))["silos"]}
        assert {name: (silo["state"], silo["cordoned"]) for name, silo in members.items()} == {
            "silo-1": ("active", True),
            "silo-2": ("active", False),
        }
        hinted = [with_hint(client.grain(Counter, f"new-{number}"), "silo-1") for number in range(10)]
        assert {await counter.where() for counter in hinted} == {members["silo-2"]["address"]}
        assert await there.where() == members["silo-1"]["address"]
        refused = await operator.says("migrate", "counter/new-0", "--to", "silo-1", code=ExitCode.REFUSED)
        assert "silo-1 is cordoned" in refused
        await operator.says("cordon", "silo-2")
        waiting = asyncio.create_task(with_timeout(client.grain(Counter, "stuck"), 60.0).read())
        await stage.until(lambda view: all(row.cordoned for row in view.active()), 5.0)
        record = await operator.json("grains", "get", "counter/stuck")
        assert record["state"] in ("waiting", "trying")
        assert record["failed_tries"] > 0
        assert "it is cordoned" in record["error"]
        assert not waiting.done()
        await operator.says("uncordon", "silo-1")
        assert await waiting == 0


async def test_R213_R217_the_commands_grains_get_and_deactivate(make_stage: Callable[..., Stage]) -> None:
    async with make_stage() as stage, stage.client(role="admin") as client:
        await stage.start("silo-1", "silo-2")
        operator = Operator(stage)
        counter = client.grain(Counter, "0")
        assert await counter.increment("first") == 1
        if await counter.where() != str((await stage.row("silo-1")).silo):
            assert (await client.migrate(counter, to="silo-1")).moved
        record = await operator.json("grains", "get", "counter/0")
        assert (record["grain"], record["state"], record["silo"]) == ("counter/0", "active", "silo-1")
        assert record["entry"]["silo"].startswith(f"{stage.cluster['silo-1'].endpoint}@")
        assert record["epoch"] == record["entry"]["epoch"]
        assert record["reachable_s"] > 0
        shown = await operator.says("grains", "get", "counter/0")
        assert "state: active" in shown
        assert "silo: silo-1" in shown
        assert (await operator.json("deactivate", "counter/0"))["status"] == "deactivated"
        assert "was not active" in await operator.says("deactivate", "counter/0")
        assert await counter.read() == 0, "the next call finds a new activation"
        running = asyncio.create_task(with_timeout(counter, 60.0).increment("slow", 60.0))
        late = await operator.says("deactivate", "counter/0", "--timeout", "0.5", code=ExitCode.TIMED_OUT)
        assert "its running calls end first: increment" in late
        running.cancel()
        await asyncio.wait([running])
        assert await counter.read() == 0, "the order stands: it ended as soon as it could"
