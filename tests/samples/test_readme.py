"""The README holds: its example and its commands run as printed, and what it points to is there."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
import signal
import sys
from pathlib import Path

import pytest

from silo.cli import invoke
from silo.client import Client
from silo.embedded import EmbeddedServer
from silo.grain import grain
from silo.reference import with_hint
from tests.samples.commands import ROOT, SILO, ended, line_with, run, started

README = (ROOT / "README.md").read_text()
BLOCK = re.compile(
    r"(?:<!-- example: (?P<file>\S+) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
BLOCKS = list(BLOCK.finditer(README))
EXAMPLES = {block["file"]: block["text"] for block in BLOCKS if block["file"]}
COMMANDS = [
    shlex.split(line, comments=True)
    for block in BLOCKS
    if block["language"] == "sh"
    for line in block["text"].splitlines()
    if shlex.split(line, comments=True)
]
PROSE = BLOCK.sub("", README)
INLINE = re.findall(r"`([^`\n]+)`", PROSE)
SILO_COMMANDS = {command[1]: command[1:] for command in COMMANDS if command[0] == "silo"}
LINES_MAX = 40


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def words_after(first: str) -> list[list[str]]:
    """The arguments of each command that begins so, in blocks and in the text."""
    inline = [shlex.split(text) for text in INLINE if text.startswith(f"{first} ")]
    return [command[1:] for command in [*COMMANDS, *inline] if command[0] == first]


def test_every_block_of_python_is_an_example_that_is_run() -> None:
    assert EXAMPLES
    assert all(block["file"] for block in BLOCKS if block["language"] == "python")


def test_the_example_has_forty_lines() -> None:
    assert EXAMPLES["rooms.py"].count("\n") <= LINES_MAX


@pytest.mark.process
@pytest.mark.parametrize("file", EXAMPLES)
async def test_the_example_runs_as_printed(file: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text(EXAMPLES[file])
    result = await run([sys.executable, file], cwd=tmp_path)
    assert result.code == 0, result.told
    if file == "rooms.py":
        *moves, players = result.out.splitlines()
        assert len(moves) == 3, result.told
        assert all(line.startswith("room/lobby moved from silo-") for line in moves), result.told
        assert ast.literal_eval(players) == ["ada", "barbara", "edsger", "grace"]


def test_every_make_target_of_the_readme_exists() -> None:
    assert words_after("make")
    assert {words[0] for words in words_after("make")} <= make_targets()


@pytest.mark.parametrize("words", words_after("silo"), ids=" ".join)
def test_every_silo_command_of_the_readme_exists(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    command = [word for word in words[:1] if not word.startswith("-")]
    assert invoke([*command, "--help"]) == 0
    flags = {word for word in words if word.startswith("--")}
    shown = capsys.readouterr().out
    assert not [flag for flag in flags if flag not in shown]


def test_a_silo_that_others_can_reach_is_given_a_token_before_it_is_run() -> None:
    token = next(command for command in COMMANDS if command[0] == "export")
    assert token[1].startswith("SILO_CLUSTER_TOKEN=")
    assert COMMANDS.index(token) < COMMANDS.index(["silo", *SILO_COMMANDS["run"]])


def test_every_sample_of_the_readme_can_be_run() -> None:
    names = re.findall(r"`samples/(\w+)`", PROSE)
    assert set(names) == {"hello", "chat", "presence", "rolling", "restart_under_traffic", "demo"}
    for name in names:
        package = (ROOT / "samples" / name).is_dir()
        module = f"samples.{name}.__main__" if package else f"samples.{name}"
        assert importlib.util.find_spec(module) is not None, f"python -m samples.{name} runs nothing"


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#]+)\)", PROSE))
def test_what_the_readme_points_to_is_there(target: str) -> None:
    assert "://" in target or (ROOT / target).exists()


def test_whoever_adds_a_command_to_the_readme_adds_its_run_here() -> None:
    assert set(SILO_COMMANDS) == {"dev", "run", "migrate", "status"}


@grain(kind="room")
class Room:
    """The example's room, as a caller knows it."""

    async def enter(self, player: str) -> int:
        raise NotImplementedError(player)


@pytest.fixture
def rooms(tmp_path: Path) -> Path:
    """A folder with the example, as a newcomer has it."""
    (tmp_path / "rooms.py").write_text(EXAMPLES["rooms.py"])
    return tmp_path


@pytest.mark.process
async def test_silo_dev_runs_a_cluster_as_printed(rooms: Path) -> None:
    async with started([*SILO, *SILO_COMMANDS["dev"]], cwd=rooms) as process:
        await line_with(process, "3 silos are ready")
        told = await line_with(process, "in another terminal: ")
        look = shlex.split(told.partition(": ")[2])
        assert look[:2] == ["silo", "status"]
        status = await run([*SILO, *look[1:]], cwd=rooms)
        assert "silos answered: 3 of 3" in status.out, status.told
        process.send_signal(signal.SIGINT)
        result = await ended(process)
    assert result.code == 0, result.told


@pytest.mark.process
@pytest.mark.usefixtures("warm_processes")
async def test_silo_run_migrate_and_status_work_as_printed(rooms: Path, own_redis_server: EmbeddedServer) -> None:
    def here(command: str, **changed: str) -> list[str]:
        """The command, with the addresses of this machine, and further changes."""
        change = {"redis://db:6379": own_redis_server.url, "10.0.0.5:7000": "127.0.0.1:0", **changed}
        return [*SILO, *(change.get(word, word) for word in SILO_COMMANDS[command])]

    second = here("run", **{"silo-1": "silo-2"})
    async with started(here("run"), cwd=rooms) as one, started(second, cwd=rooms) as two:
        await line_with(one, "silo ready: silo-1 of cluster prod")
        await line_with(two, "silo ready: silo-2 of cluster prod")
        async with Client.connect(own_redis_server.url, cluster="prod") as client:
            assert await with_hint(client.grain(Room, "lobby"), "silo-1").enter("ada") == 1
        moved = await run(here("migrate"), cwd=rooms)
        assert moved.code == 0, moved.told
        assert "room/lobby moved from silo-1 to silo-2" in moved.out
        status = await run(here("status"), cwd=rooms)
        assert status.code == 0, status.told
        assert "silo-1" in status.out
        assert "silo-2" in status.out
        for process in (one, two):
            process.send_signal(signal.SIGTERM)
            stopped = await ended(process)
            assert stopped.code == 0, stopped.told
