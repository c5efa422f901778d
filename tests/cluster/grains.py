"""Grains that several tests use. What one test alone needs is written beside it."""

from __future__ import annotations

import asyncio

from silo.grain import Grain, grain, read_only, soft_state
from silo.migration.lifecycle import ActivationReason, DeactivationReason, MigrationNotice
from silo.migration.participants import DehydrateContext, RehydrateContext
from tests.cluster.stage import gate, say


@grain(kind="ledger")
class Ledger(Grain):
    """Keeps the lines that it is given, and what it is not told to take along."""

    lines: list[str] = soft_state(default_factory=list)

    def __init__(self) -> None:
        say(f"built {self.key}")
        self.remark = ""

    async def write(self, line: str) -> int:
        self.lines.append(line)
        return len(self.lines)

    async def write_at(self, gate_name: str, line: str) -> str:
        """Write once the gate is open; says where that was."""
        say(f"started {line}")
        await gate(gate_name)
        self.lines.append(line)
        return self.silo

    async def write_and_tell(self, line: str) -> str:
        self.lines.append(line)
        return self.silo

    async def write_slowly(self, line: str, seconds: float) -> int:
        await asyncio.sleep(seconds)
        self.lines.append(line)
        return len(self.lines)

    @read_only
    async def read(self) -> list[str]:
        return self.lines

    @read_only
    async def where(self) -> str:
        return self.silo

    async def remark_on(self, remark: str) -> None:
        self.remark = remark

    async def remarked(self) -> str:
        return self.remark

    async def move_to(self, silo: str | None) -> str:
        """Ask for a move of its own; the turn is answered from the old place."""
        self.migrate(to=silo)
        return self.silo


@grain(kind="witness")
class Witness(Grain):
    """Says what happens to it, hook by hook. Gates named after a hook hold it there, once the test has made them."""

    value: int = soft_state(default=0)

    def __init__(self) -> None:
        say("constructor")

    async def on_activate(self, reason: ActivationReason) -> None:
        say(f"on_activate {reason}")

    async def on_deactivate(self, reason: DeactivationReason) -> None:
        say(f"on_deactivate {reason}")

    async def on_migrating(self, notice: MigrationNotice) -> None:
        say(f"on_migrating {notice.reason} {notice.target}")

    def on_dehydrate(self, context: DehydrateContext) -> None:
        say("on_dehydrate")
        context["carried"] = "yes"

    def on_rehydrate(self, context: RehydrateContext) -> None:
        say(f"on_rehydrate {context['carried']}")

    async def turn(self) -> str:
        say("turn")
        self.value += 1
        return self.silo

    async def turn_at(self, gate_name: str) -> str:
        say(f"turn at {gate_name}")
        await gate(gate_name)
        self.value += 1
        return self.silo

    async def count(self) -> int:
        return self.value

    async def leave(self) -> None:
        self.deactivate()
