"""Where telemetry goes: the standard OTEL_… variables say so."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from silo import Client, InvalidSettings
from silo.application import import_application
from silo.configuration import load
from silo.directory.addresses import SiloAddress
from silo.telemetry.exporting import METRICS, TRACES, exporters, quick, resource_of

ADDRESS = SiloAddress("127.0.0.1:7000", 7)
APPLICATION = """
from silo import Grain, grain

@grain(kind="exported")
class Exported(Grain):
    async def call(self) -> str:
        return self.key
"""


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({}, ["OTLPSpanExporter"]),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, ["OTLPSpanExporter"]),
        ({"OTEL_TRACES_EXPORTER": "console"}, ["ConsoleSpanExporter"]),
        ({"OTEL_TRACES_EXPORTER": "console, otlp"}, ["ConsoleSpanExporter", "OTLPSpanExporter"]),
        ({"OTEL_TRACES_EXPORTER": "none"}, []),
        ({"OTEL_METRICS_EXPORTER": "none"}, ["OTLPSpanExporter"]),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ["OTLPSpanExporter"]),
    ],
)
def test_the_variables_choose_the_exporters_of_traces(environment: dict[str, str], names: list[str]) -> None:
    assert [each.__name__ for each in exporters(TRACES, environment)] == names


def test_the_variables_choose_the_exporters_of_metrics() -> None:
    assert [each.__name__ for each in exporters(METRICS, {})] == ["OTLPMetricExporter"]
    assert [each.__name__ for each in exporters(METRICS, {"OTEL_METRICS_EXPORTER": "console"})] == [
        "ConsoleMetricExporter"
    ]


@pytest.mark.parametrize(
    "environment", [{"OTEL_TRACES_EXPORTER": "carrier-pigeon"}, {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "smoke"}]
)
def test_an_exporter_that_is_not_installed_is_refused_with_those_that_are(environment: dict[str, str]) -> None:
    with pytest.raises(InvalidSettings, match=r"OTEL_TRACES_EXPORTER: no exporter .* \(known: none, otlp, console"):
        exporters(TRACES, environment)


def test_a_silo_is_named_by_its_address_unless_the_environment_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    def attributes() -> dict[str, object]:
        return dict(resource_of(silo=ADDRESS, name="silo-1", cluster="prod", app_version="1.8").attributes)

    assert (
        attributes().items()
        >= {
            "service.name": "silo",
            "service.version": "1.8",
            "service.instance.id": "127.0.0.1:7000@7",
            "silo.address": "127.0.0.1:7000@7",
            "silo.cluster": "prod",
            "silo.name": "silo-1",
        }.items()
    )
    monkeypatch.setenv("OTEL_SERVICE_NAME", "game")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=game-0,silo.name=another")
    assert attributes().items() >= {"service.name": "game", "k8s.pod.name": "game-0", "silo.name": "another"}.items()


def test_only_the_exporter_of_spans_over_grpc_has_one_that_is_quicker() -> None:
    (grpc,) = exporters(TRACES, {})
    (console,) = exporters(TRACES, {"OTEL_TRACES_EXPORTER": "console"})
    assert issubclass(quick(grpc), grpc)
    assert quick(grpc) is not grpc
    assert quick(console) is console


def test_a_variable_that_names_an_exporter_turns_telemetry_on_unless_a_setting_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not load().settings.telemetry.otel
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    assert not load().settings.telemetry.otel
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    configuration = load()
    assert configuration.settings.telemetry.otel
    assert configuration.sources["telemetry.otel"] == "OTEL_TRACES_EXPORTER"
    monkeypatch.setenv("SILO_TELEMETRY__OTEL", "false")
    assert not load().settings.telemetry.otel


@pytest.fixture
async def exporting_silo(
    redis_url: str, cluster_name: str, tmp_path: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    (tmp_path / "exported_application.py").write_text(APPLICATION, encoding="utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])]),
        "OTEL_TRACES_EXPORTER": "console",
        "OTEL_METRICS_EXPORTER": "console",
    }
    command = [
        "run",
        "exported_application",
        "--cluster",
        cluster_name,
        "--redis",
        redis_url,
        "--name",
        "exporting",
        "--bootstrap",
    ]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "silo", *command, "--otel", stdout=asyncio.subprocess.PIPE, env=environment, cwd=tmp_path
    )
    yield process
    if process.returncode is None:
        process.kill()
        await process.wait()


@pytest.mark.process
async def test_a_silo_exports_what_it_has_before_it_ends(
    exporting_silo: asyncio.subprocess.Process,
    redis_url: str,
    cluster_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert exporting_silo.stdout is not None
    async with asyncio.timeout(30):
        ready = await exporting_silo.stdout.readline()
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        application = import_application("exported_application")
        async with Client.connect(redis_url, cluster=cluster_name) as client:
            assert await client.grain(application.Exported, "a").call() == "a"
        exporting_silo.send_signal(signal.SIGTERM)
        told = (await exporting_silo.stdout.read()).decode()
        assert await exporting_silo.wait() == 0
    endpoint = ready.decode().split()[-1]
    assert f'"service.instance.id": "{endpoint}@' in told
    assert '"name": "exported/call"' in told
    assert '"name": "silo.grain.activations"' in told
