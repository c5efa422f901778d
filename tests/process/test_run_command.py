"""`silo run` as an operator meets it: endpoints, signals, exit codes, tokens."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable

import pytest

from silo.cli import ExitCode
from silo.client import Client
from silo.directory.errors import HandshakeRefused, NotExecuted, PermissionRefused
from silo.messaging.greeting import Credentials
from silo.messaging.permissions import Role
from silo.reference import with_hint, with_timeout
from silo.testing.processes import SiloProcessFailed
from silo.testing.witness import Ended, What
from tests.process.grains import Counter
from tests.process.stage import GRAINS, ROOT, Stage, ended_with, turn_of
from tests.process.witnessed import WitnessedCaller

TOKEN = "a secret of this test alone"
COMMAND_TIMEOUT_S = 20.0
TURN_S = 1.5
"""How long turns take that are running when their silo is told to stop."""
STOPPED_WITHIN_S = 8.0
"""For two silos that stop at the same time, so that neither can take what the other has."""


async def silo_command(*arguments: str, **environment: str) -> tuple[int, str, str]:
    """Run the command to its end: its exit code, and what it wrote to standard output and standard error."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "silo",
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(COMMAND_TIMEOUT_S):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


@pytest.mark.fresh
async def test_a_second_silo_on_an_endpoint_is_refused_before_it_touches_the_cluster(
    make_stage: Callable[..., Stage],
) -> None:
    async with make_stage() as stage:
        await stage.start("silo-1")
        endpoint = stage.cluster["silo-1"].endpoint
        before = await stage.view()
        arguments = ("--cluster", stage.cluster_name, "--redis", stage.redis, "--listen", endpoint)
        code, output, errors = await silo_command("run", GRAINS, *arguments, "--name", "silo-2")
        assert code == ExitCode.REFUSED
        assert endpoint in errors
        assert errors == f"silo: another process listens at {endpoint}: choose another port, or stop it\n"
        assert "Traceback" not in errors
        assert output == ""
        assert (await stage.view()).version == before.version
        assert stage.cluster["silo-1"].is_running


def taking_a_while(counter: Counter) -> Callable[[str], Awaitable[int]]:
    """What makes a turn of the counter that lasts."""
    return lambda call: counter.increment(call, TURN_S)


async def test_sigterm_lets_running_turns_end_and_answers_them(make_stage: Callable[..., Stage]) -> None:
    async with make_stage() as stage, stage.client() as client:
        await stage.start("silo-1", "silo-2")
        caller = WitnessedCaller(stage.witness, "caller-1")
        turns: list[asyncio.Task[int | None]] = []
        for key in range(6):
            send = taking_a_while(client.grain(Counter, str(key)))
            turns.append(asyncio.create_task(caller.call(send, target=f"counter/{key}", deadline_s=30.0)))
        for key in range(6):
            await stage.witnessed(turn_of(f"counter/{key}"))
        began = stage.now()
        codes = await asyncio.gather(*(stage.cluster[name].stop() for name in ("silo-1", "silo-2")))
        assert codes == [0, 0]
        assert stage.now() - began < STOPPED_WITHIN_S
        assert await asyncio.gather(*turns) == [1] * 6
        stage.assert_promises_kept()


@pytest.mark.fresh
async def test_a_second_sigterm_ends_the_silo_at_once_with_143(make_stage: Callable[..., Stage]) -> None:
    async with make_stage() as stage, stage.client() as client:
        await stage.start("silo-1", "silo-2")
        counter = with_timeout(client.grain(Counter, "slow"), 60.0)
        running = asyncio.create_task(counter.increment("slow-1", 30.0))
        started = await stage.witnessed(lambda event: event.what is What.TURN_STARTED)
        row = next(row for row in (await stage.view()).living() if str(row.silo) == started.silo)
        silo = stage.cluster[row.info.name]
        silo.signal(signal.SIGTERM)
        await stage.until(lambda view: row.silo not in [each.silo for each in view.active()], 5.0)
        silo.signal(signal.SIGTERM)
        assert await ended_with(silo, 2.0) == 128 + signal.SIGTERM
        running.cancel()
        await asyncio.wait([running])


@pytest.mark.fresh
async def test_listening_beyond_loopback_needs_a_token_or_insecure(make_stage: Callable[..., Stage]) -> None:
    async with make_stage() as stage:
        arguments = ("--cluster", stage.cluster_name, "--redis", stage.redis, "--listen", "0.0.0.0:0")
        code, output, errors = await silo_command("run", GRAINS, *arguments, "--advertise", "127.0.0.1:0")
        assert code == ExitCode.USAGE
        assert "SILO_CLUSTER_TOKEN" in errors
        assert "--insecure" in errors
        assert output == ""
        assert (await stage.view()).version == 0


@pytest.mark.parametrize("token", [None, "another secret"], ids=["none", "wrong"])
async def test_a_client_without_the_right_token_is_refused_and_told_so(
    make_stage: Callable[..., Stage], token: str | None
) -> None:
    async with make_stage(SILO_CLUSTER_TOKEN=TOKEN) as stage:
        await stage.start("silo-1")
        gateway = stage.cluster["silo-1"].endpoint
        strangers = (
            Client.connect(stage.redis, cluster=stage.cluster_name, token=token),
            Client.connect(cluster=stage.cluster_name, gateways=[gateway], token=token),
        )
        for stranger in strangers:
            async with stranger:
                with pytest.raises((HandshakeRefused, NotExecuted), match="token"):
                    await with_timeout(stranger.grain(Counter, "0"), 2.0).read()
        async with stage.client(token=TOKEN) as client:
            assert await client.grain(Counter, "0").read() == 0


@pytest.mark.fresh
async def test_a_silo_with_another_token_does_not_join(make_stage: Callable[..., Stage]) -> None:
    async with make_stage(SILO_CLUSTER_TOKEN=TOKEN) as stage, stage.client(token=TOKEN) as client:
        await stage.start("silo-1")
        stranger = Stage(
            stage.redis, stage.cluster_name, stage.folder, environment={"SILO_CLUSTER_TOKEN": "another secret"}
        )
        async with stranger:
            with pytest.raises(SiloProcessFailed, match="token"):
                await stranger.start("silo-2")
            for key in range(20):
                assert await with_timeout(client.grain(Counter, str(key)), 2.0).read() == 0


async def test_R458_the_command_migrate_says_how_to_treat_running_calls(make_stage: Callable[..., Stage]) -> None:
    async with make_stage() as stage, stage.client() as client:
        await stage.start("silo-1", "silo-2")
        counter = with_hint(client.grain(Counter, "0"), "silo-1")
        assert await counter.read() == 0
        caller = WitnessedCaller(stage.witness, "caller-1")
        running = asyncio.create_task(
            caller.call(lambda call: counter.increment(call, COMMAND_TIMEOUT_S), target="counter/0", deadline_s=30.0)
        )
        await stage.witnessed(turn_of("counter/0"))
        order = ("migrate", "counter/0", "--to", "silo-2", "--cluster", stage.cluster_name, "--redis", stage.redis)
        code, output, errors = await silo_command(*order, "--on-busy", "stay")
        assert code == ExitCode.NOT_MET, errors
        assert "it was asked to stay" in output
        code, output, errors = await silo_command(*order, "--on-busy", "interrupt")
        assert code == ExitCode.DONE, errors
        assert await running is None
        assert caller.ended == {Ended.OUTCOME_UNKNOWN: 1}


async def test_a_token_for_clients_calls_grains_and_moves_none(make_stage: Callable[..., Stage]) -> None:
    async with make_stage(SILO_CLUSTER_TOKEN=TOKEN) as stage:
        await stage.start("silo-1", "silo-2")
        token = Credentials(TOKEN).derive(Role.CLIENT)
        async with stage.client(token=token) as client:
            counter = client.grain(Counter, "0")
            assert await counter.read() == 0
            where = await counter.where()
            with pytest.raises((PermissionRefused, HandshakeRefused)):
                await client.migrate(counter, to="silo-1")
            with pytest.raises((PermissionRefused, HandshakeRefused)):
                await client.migrate(counter, to="silo-2")
            assert await counter.where() == where
        async with stage.client(token=Credentials(TOKEN).derive(Role.ADMIN), role="admin") as admin:
            outcomes = [await admin.migrate(admin.grain(Counter, "0"), to=name) for name in ("silo-1", "silo-2")]
            assert sum(outcome.moved for outcome in outcomes) >= 1
        environment = {"SILO_CLUSTER_TOKEN": token, "SILO_REDIS": stage.redis}
        code, _, errors = await silo_command(
            "migrate", "counter/0", "--to", "silo-1", "--cluster", stage.cluster_name, **environment
        )
        assert code == ExitCode.REFUSED, errors
        assert "Traceback" not in errors


@pytest.mark.fresh
async def test_a_silo_that_cannot_reach_redis_says_so_and_ends(make_stage: Callable[..., Stage]) -> None:
    code, output, errors = await silo_command(
        "run", GRAINS, "--redis", "redis://127.0.0.1:1", "--listen", "127.0.0.1:0", "--set", "lease.lease_s=0.5"
    )
    assert code == ExitCode.UNREACHABLE
    assert "127.0.0.1:1" in errors
    assert "Traceback" not in errors
    assert output == ""
