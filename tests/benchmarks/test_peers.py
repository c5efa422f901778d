"""Peers: which rows they have, what is said of one that is not installed, and the whole path with one made up here."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.__main__ import all_rows, main, parse
from benchmarks.bars import PEERS as BARS_BESIDE_PEERS
from benchmarks.harness import Measured, Rows, measure
from benchmarks.meter import Sample
from benchmarks.peers.contract import ActorPeer, Unfit, in_order
from benchmarks.peers.known import KNOWN, ROWS, Known
from benchmarks.peers.process import python_of, python_variable
from benchmarks.report import skipped
from benchmarks.rows_peers import add_rows

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "peers"
MADE_UP = Known("made_up", "an adapter of these tests", left_out={"ring.3": "it has no ring"})
ADAPTER = textwrap.dedent(
    """
    import asyncio

    from benchmarks.peers.contract import ActorPeer, start_host

    class Adapter(ActorPeer):
        async def actor(self, place, name):
            if place == "first" and not hasattr(self, "host"):
                self.host = await start_host(self.parts, "made_up", "argument")
            if place == "second":
                raise ValueError("there is no second")
            return [0]

        async def add(self, actor):
            actor[0] += 1
            return actor[0]

        async def echo(self, actor, body):
            return body[:-1]

    async def serve(ready, argument):
        assert argument == "argument"
        ready()
        await asyncio.Event().wait()
    """
)


async def _measured(rows: Rows, *only: str) -> dict[str, Measured]:
    chosen = [row for row in rows.all() if row.name in only]
    return await measure(chosen, rounds=2, seconds=0.01, progress=lambda _what: None)


def _rows_of(peer: Known) -> Rows:
    rows = Rows()
    add_rows(rows, {peer.name: peer})
    return rows


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Known:
    """A peer whose adapter lies elsewhere: the interpreter that it runs under finds it there."""
    (tmp_path / "made_up.py").write_text(ADAPTER)
    python = tmp_path / "python"
    python.write_text(
        f"#!{sys.executable}\n"
        "import runpy, sys\n"
        "import benchmarks.peers\n"
        f"benchmarks.peers.__path__.append({str(tmp_path)!r})\n"
        "sys.executable = __file__\n"
        "sys.argv = sys.argv[2:]\n"
        "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)\n"
    )
    python.chmod(0o755)
    monkeypatch.setitem(KNOWN, MADE_UP.name, MADE_UP)
    monkeypatch.setenv(python_variable(MADE_UP.name), str(python))
    return MADE_UP


def test_every_peer_has_an_adapter_and_every_row_it_leaves_out_a_reason() -> None:
    for peer in KNOWN.values():
        assert (FOLDER / f"{peer.name}.py").exists()
        assert set(peer.left_out) | set(peer.rows()) == set(ROWS)
        assert set(peer.otherwise) <= set(ROWS)
        assert all(peer.left_out.values())


def test_peers_are_chosen_with_what_they_are_compared_with_and_left_out_of_a_quick_run() -> None:
    rows = all_rows()
    chosen = [row.name for row in rows.chosen(["peer.casty.remote.1"])]
    assert set(chosen) >= {"echo.1", "echo.tcp.1", "remote.1", "peer.casty.remote.1"}
    assert not any(name.startswith("peer.") and not name.startswith("peer.casty.") for name in chosen)
    named = {row.name.split(".")[1] for row in rows.chosen(["peer"]) if row.name.startswith("peer.")}
    assert named == set(KNOWN)
    assert any(row.name.startswith("peer.") for row in rows.chosen([]))
    assert not any(row.name.startswith("peer.") for row in rows.chosen([], quick=True))


def test_bars_beside_peers_name_rows_that_there_are() -> None:
    names = {row.name for row in all_rows().all()}
    assert {other for bar in BARS_BESIDE_PEERS for other in bar.others} <= names


def test_the_interpreter_of_a_peer_is_named_by_the_command_line_or_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(python_variable("xoscar"), "/of/the/environment")
    monkeypatch.setenv(python_variable("casty"), "")  # restored after what `parse` sets
    parse(all_rows(), ["--peer-python", "casty=/of/the/line"])
    assert python_of("casty") == "/of/the/line"
    assert python_of("xoscar") == "/of/the/environment"
    assert python_of("pykka") == sys.executable
    for wrong in ("casty", "casty=", "erlang=/usr/bin/erl"):
        with pytest.raises(SystemExit, match="2"):
            main(["--peer-python", wrong])
        assert "write NAME=PYTHON" in capsys.readouterr().err


@pytest.mark.process
async def test_a_peer_that_is_not_installed_is_skipped_with_the_fix_and_fails_nothing(made_up: Known) -> None:
    adapter = Path(python_of(made_up.name)).with_name("made_up.py")
    adapter.write_text("import no_such_package_anywhere\n")
    measured = await _measured(_rows_of(made_up), "peer.made_up.local.1", "peer.made_up.remote.1")
    assert not any(one.error or one.samples for one in measured.values())
    assert skipped(measured) == {
        "peer.made_up.*": "needs no_such_package_anywhere: pip install 'grain-silo[peers]'",
    }


def test_a_peer_that_wants_a_newer_python_is_skipped_with_the_way_to_name_one() -> None:
    assert KNOWN["casty"].lacks("casty") == (
        "needs casty: pip install 'grain-silo[peers]' under Python 3.12 or newer (--peer-python casty=PYTHON)"
    )


@pytest.mark.process
async def test_a_peer_is_measured_by_a_process_of_its_own_and_what_it_cannot_do_is_said(made_up: Known) -> None:
    names = [f"peer.made_up.{row}" for row in ("local.64", "remote.1", "remote.10k.64", "fan.10", "activate.local")]
    measured = await _measured(_rows_of(made_up), *names)
    assert "peer.made_up.ring.3" not in {row.name for row in _rows_of(made_up).all()}
    for row in ("local.64", "remote.1", "activate.local"):
        one = measured[f"peer.made_up.{row}"]
        assert not one.error
        assert len(one.samples) == 2
        assert one.median.count > 0
        assert one.median.per_s > 0
        if sys.platform == "linux":
            assert one.median.cpu_s > 0
    assert "is right" in measured["peer.made_up.remote.10k.64"].error, "an echo that is not one is not measured"
    assert "there is no second" in measured["peer.made_up.fan.10"].error


@pytest.mark.process
async def test_a_peer_that_ends_fails_its_rows_with_its_last_words(made_up: Known) -> None:
    adapter = Path(python_of(made_up.name)).with_name("made_up.py")
    adapter.write_text("import sys\nsys.exit('it has had enough')\n")
    measured = await _measured(_rows_of(made_up), "peer.made_up.local.1")
    assert "ended with 1: it has had enough" in measured["peer.made_up.local.1"].error


async def test_calls_that_block_are_finished_in_the_order_of_their_start() -> None:
    started, finished = list[int](), list[int]()

    def start(number: int) -> int:
        started.append(number)
        assert len(started) - len(finished) <= 3
        return number

    tally = in_order(start, finished.append, 3, 0.001)
    assert finished == started == sorted(started)
    assert len(tally.latencies_ns) == len(finished) >= 3


class _NoFan(ActorPeer):
    async def actor(self, place: str, name: str) -> list[int]:
        return [0]

    async def add(self, actor: list[int]) -> int:
        actor[0] += 1
        return actor[0]

    async def echo(self, actor: list[int], body: bytes) -> bytes:
        return body


@pytest.mark.parametrize("row", [row for row in ROWS if row != "memory"])
async def test_every_row_that_peers_have_is_one_that_an_adapter_can_be_asked_for(row: str) -> None:
    if row in ("fan.10", "ring.3"):
        with pytest.raises(Unfit, match="no others"):
            await _NoFan().prepare(row)
        return
    work = await _NoFan().prepare(row)
    tally = await work(0.001)
    assert tally.latencies_ns


def test_skipped_rows_of_a_kind_share_a_line() -> None:
    rows = _rows_of(MADE_UP).all()[:3]
    measured: Mapping[str, Measured] = {
        row.name: Measured(row, skipped="why" if number else "another", samples=list[Sample]())
        for number, row in enumerate(rows)
    }
    assert skipped(measured) == {rows[0].name: "another", "peer.made_up.*": "why"}
