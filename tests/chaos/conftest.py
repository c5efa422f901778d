"""Marks what starts silo processes in this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The runs are process tests; what tests the bench itself is quick."""
    for item in items:
        if item.path == HERE / "test_chaos.py":
            item.add_marker(pytest.mark.process)
