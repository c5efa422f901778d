"""What hooks are told of their reasons is what happens to them."""

from __future__ import annotations

import enum
from pathlib import Path

import pytest

import silo
from silo.migration.lifecycle import ActivationReason, DeactivationReason


@pytest.mark.parametrize("reasons", [ActivationReason, DeactivationReason])
def test_every_reason_that_a_hook_may_be_told_is_given_somewhere(reasons: type[enum.StrEnum]) -> None:
    package = Path(silo.__file__).parent
    sources = [path.read_text(encoding="utf-8") for path in package.rglob("*.py")]
    given = {reason.name for reason in reasons if any(f"{reasons.__name__}.{reason.name}" in text for text in sources)}
    assert given == {reason.name for reason in reasons}
