"""What is kept of runs, the pages that quote it, and the charts that are drawn of it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import anatomy, choices, marked, quotes, results
from benchmarks.plots import plot

SURROUNDINGS = dict.fromkeys(results.COMPARABLE, "x")


def row(name: str, per_s: float = 1000.0, **more: Any) -> dict[str, Any]:
    figures = {"per_s": per_s, "p50_us": 1e6 / per_s, "p99_us": 2e6 / per_s, "cpu_s": 1.0, "count": 10}
    return {
        "name": name,
        "what": "a row",
        "beside": None,
        "error": None,
        "skipped": None,
        **figures,
        "samples": [figures],
        **more,
    }


def run(when: str, *rows: dict[str, Any], cpu: str = "x", bars: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    surroundings = {**SURROUNDINGS, "cpu": cpu}
    return {
        "when": when,
        "surroundings": surroundings,
        "rounds": 5,
        "seconds": 0.4,
        "rows": list(rows),
        "bars": bars or [],
    }


def bar(name: str, passes: bool | None, **more: Any) -> dict[str, Any]:
    bounds = {"figure": "per_s", "at": "least", "bound": 2.0, "beside": "echo.1", "of": None, "goal": None}
    return {"row": name, **bounds, "times": 1.5, "passes": passes, **more}


def test_a_run_takes_the_place_of_its_rows_and_leaves_the_others(tmp_path: Path) -> None:
    results.save(run("2026-01-01", row("echo.1"), row("remote.1"), bars=[bar("remote.1", False)]), tmp_path)
    kept = results.save(run("2026-01-02", row("remote.1", 2000.0), bars=[bar("remote.1", True)]), tmp_path)
    assert kept == results.load(tmp_path)
    assert {each["name"]: (each["per_s"], each["run"]) for each in kept["rows"]} == {
        "echo.1": (1000.0, "2026-01-01"),
        "remote.1": (2000.0, "2026-01-02"),
    }
    assert [(each["passes"], each["run"]) for each in kept["bars"]] == [(True, "2026-01-02")]
    assert set(kept["runs"]) == {"2026-01-01", "2026-01-02"}


def test_a_row_that_could_not_be_measured_here_leaves_what_was_measured_before() -> None:
    before = results.merged(None, run("2026-01-01", row("other")))
    kept = results.merged(before, run("2026-01-02", row("other", skipped="needs more")))
    assert [each["run"] for each in kept["rows"]] == ["2026-01-01"]


def test_results_of_another_machine_go_at_once() -> None:
    before = results.merged(None, run("2026-01-01", row("echo.1")))
    kept = results.merged(before, run("2026-01-02", row("remote.1"), cpu="another"))
    assert [each["name"] for each in kept["rows"]] == ["remote.1"]


def test_the_page_says_which_bars_are_missed_and_which_are_open() -> None:
    page = results.as_page(
        results.merged(
            None,
            run(
                "2026-01-01",
                row("remote.1", failed=0.0, cpu_s=2.5),
                bars=[bar("remote.1", False), bar("local.1", None, times=None)],
            ),
        )
    )
    assert "| remote.1 | per second | at least 2 × echo.1 | 1.5 × | **falls short** |" in page
    assert "Not judged, since no peer was measured: local.1." in page
    assert "| remote.1 | a row | 1,000 | 1,000 | 2,000 | 25 | 0 |" in page


def test_what_the_pages_quote_is_what_was_measured() -> None:
    """`python -m benchmarks.quotes` writes it."""
    kept = results.load()
    blocks = 0
    for page in quotes.PAGES:
        text = page.read_text(encoding="utf-8")
        assert quotes.quoted(text, kept) == text, f"{page.name} quotes other figures than are kept"
        blocks += len(quotes.BLOCK.findall(text))
    assert blocks
    assert (results.FOLDER / results.TABLE).read_text(encoding="utf-8") == results.as_page(kept)


def test_a_block_that_quotes_a_row_that_there_is_not_is_refused() -> None:
    with pytest.raises(KeyError, match="no-such-row"):
        quotes.quoted("<!-- figures: rows no-such-row -->\n<!-- /figures -->", results.merged(None, run("2026-01-01")))


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_charts_are_drawn_of_whatever_was_measured(tmp_path: Path) -> None:
    rows = [row("remote.1"), row("echo.1"), row("peer.x.remote.1"), row("move.1k"), row("move.10k")]
    rows += [row("memory.100k", bytes_each=1000.0), row("scale.silos.1"), row("scale.silos.8")]
    assert plot({"rows": rows}, tmp_path) == ""
    assert {path.name for path in tmp_path.glob("*.png")} == {"calls.png", "moves.png", "memory.png", "scale.png"}


def test_the_pages_show_charts_that_are_there() -> None:
    for page in quotes.PAGES:
        for target in re.findall(r"!\[[^\]]*\]\(([^)]+\.png)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} shows {target}, which is not there"


def test_layers_lie_between_the_moments_of_a_call_and_make_up_its_time() -> None:
    here = {marked.WRITE: [5, 101], marked.RECEIVED: [18, 60]}
    there = {marked.RECEIVED: [9], marked.TURN: [11], marked.WRITE: [14]}
    layers = anatomy.layers_of([(1, 20), (100, 120)], here, there)
    assert layers == [(4, 4, 2, 3, 4, 2)]  # of the other call the moments there are missing
    assert sum(layers[0]) == 19
    assert anatomy.near_the_median(layers) == pytest.approx([0.004, 0.004, 0.002, 0.003, 0.004, 0.002])


def test_a_choice_is_worth_what_its_rows_take_without_it() -> None:
    def measured(p50_us: float) -> dict[str, dict[str, float]]:
        return {row: {"p50_us": p50_us, "cpu_s": 1.0} for row in choices.ROWS}

    runs = {choices.AS_IT_IS: [measured(100.0), measured(200.0)], "without": [measured(150.0), measured(300.0)]}
    (gain,) = choices.gains(runs)
    assert gain["without"] == "without"
    assert gain["times"]["remote.1"] == {"p50_us": 1.5, "cpu_s": 1.0}
