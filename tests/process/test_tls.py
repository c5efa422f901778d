"""A cluster under TLS, set as an operator sets it: silos, clients and commands show certificates, or are not let in."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from silo.cli import ExitCode
from silo.configuration import variable_of
from silo.directory.errors import NoGateway, NotExecuted
from silo.messaging.certificates import Certificates
from silo.reference import with_hint, with_timeout
from silo.testing.processes import SiloProcessFailed
from tests.process.grains import Counter
from tests.process.stage import ROOT, Stage
from tests.support.authority import Authority, needs_openssl

pytestmark = needs_openssl
COMMAND_TIMEOUT_S = 20.0


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    folder = tmp_path / "authority"
    folder.mkdir()
    return Authority(folder).certify("process")


def settings_of(certificates: Certificates) -> dict[str, object]:
    return {
        "tls.certificate": certificates.chain,
        "tls.key": certificates.key,
        "tls.authorities": certificates.authorities,
    }


async def status_by_command(stage: Stage, settings: dict[str, object]) -> tuple[int, str]:
    """The exit code and the words of `silo status`, with those settings in its environment."""
    variables = {variable_of(name): str(value) for name, value in settings.items()}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "silo", "status", "--cluster", stage.cluster_name, "--redis", stage.redis),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
    )
    try:
        async with asyncio.timeout(COMMAND_TIMEOUT_S):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_silos_clients_and_commands_with_certificates_of_one_authority_make_a_cluster(
    make_stage: Callable[..., Stage], certificates: Certificates
) -> None:
    settings = settings_of(certificates)
    async with make_stage(settings) as stage:
        await stage.start("silo-1", "silo-2")
        async with stage.client(certificates=certificates) as client:
            counter = client.grain(Counter, "under-tls")
            assert await with_hint(counter, "silo-1").increment("first") == 1
            moved = await client.migrate(counter, to="silo-2")
            assert moved.moved, moved
            assert await counter.increment("second") == 2
            status = await client.management.status()
            assert [member.name for member in status.silos] == ["silo-1", "silo-2"]
        code, told = await status_by_command(stage, settings)
        assert code == ExitCode.DONE, told
        assert "silo-2" in told


async def test_who_has_no_certificate_is_not_let_in(
    make_stage: Callable[..., Stage], certificates: Certificates
) -> None:
    async with make_stage(settings_of(certificates)) as stage:
        await stage.start("silo-1")
        async with stage.client() as client:
            with pytest.raises((NoGateway, NotExecuted)):
                await with_timeout(client.grain(Counter, "under-tls"), 1.0).increment("first")


async def test_certificates_that_cannot_be_used_are_said_before_the_cluster_is_touched(
    make_stage: Callable[..., Stage], certificates: Certificates
) -> None:
    settings = settings_of(certificates) | {"tls.key": certificates.chain}
    async with make_stage(settings) as stage:
        with pytest.raises(SiloProcessFailed, match="cannot be used"):
            await stage.start("silo-1")
        assert not (await stage.view()).table.rows
