"""The face of the testing kit: the names that users may rely on, and that it asks for no test framework."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from silo import testing

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
NAMES = (
    *("FLAKY", "LAN", "WAN", "Cluster", "Event", "InjectedFault", "NetworkProfile", "NotMigratable", "NotMoved"),
    *("Place", "Planned", "ProcessCluster", "PromiseBroken", "Run", "SiloProcess", "SiloProcessFailed"),
    *("SimulationFailure", "Step", "StepNotReached", "Violation", "check_migratable", "run_simulated"),
)
VERBS = (
    *("arrived", "connect", "draining", "elsewhere", "entry", "fail", "heal", "home", "is_active", "isolate", "kill"),
    *("migrate", "now", "partition", "pause", "queued", "redis_down", "redis_unreliable", "redis_up", "reset"),
    *("restart", "resume", "seen", "settle", "silos", "slow", "start", "stop", "waiting", "when"),
)


def test_the_public_names_are_these() -> None:
    assert testing.__all__ == sorted(testing.__all__, key=lambda name: (not name.isupper(), name.islower(), name))
    assert sorted(testing.__all__) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_each_public_name_is_there_and_explained(name: str) -> None:
    found = getattr(testing, name)
    assert found.__doc__
    assert f"`{name}`" in (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_of_the_cluster_is_explained(verb: str) -> None:
    assert getattr(testing.Cluster, verb).__doc__
    assert re.search(rf"`(?:await )?(?:cluster\.)?{verb}\b", (ROOT / "docs" / "testing.md").read_text(encoding="utf-8"))


def test_the_examples_of_its_page_are_tests_that_pass(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    named = re.findall(r"^def (test_\w+)", "".join(blocks), re.MULTILINE)
    assert len(named) == 3
    example = tmp_path / "example.py"
    example.write_text("\n\n".join([*blocks, *(f"{name}()" for name in named), "print('passed')"]), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, example], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "passed\n"), done.stderr


def test_it_is_imported_and_used_without_any_test_framework() -> None:
    code = (
        "import sys\n"
        "class Blocked:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('pytest', '_pytest', 'unittest', 'hypothesis'):\n"
        "            raise ImportError(f'{name} is not installed')\n"
        "sys.meta_path.insert(0, Blocked())\n"
        "from silo import Grain, grain\n"
        "from silo.testing import check_migratable, run_simulated\n"
        "@grain(kind='echo')\n"
        "class Echo(Grain):\n"
        "    async def echo(self, word: str) -> str:\n"
        "        return word\n"
        "async def scenario(cluster):\n"
        "    return await cluster.client.grain(Echo, 'k').echo('hello')\n"
        "print(run_simulated(scenario, kinds=[Echo]).result)\n"
        "check_migratable(Echo, lambda echo: echo.echo('hello'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
