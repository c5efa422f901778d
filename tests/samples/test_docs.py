"""The examples of docs/ run as printed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.samples.commands import ROOT, run

BLOCK = re.compile(r"(?:<!-- example: (?P<file>\S+) -->\n)?^```python\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = sorted((ROOT / "docs").glob("*.md"))
EXAMPLES = {
    block["file"]: block["text"] for page in PAGES for block in BLOCK.finditer(page.read_text()) if block["file"]
}
PRINTED = {"players.py": "Profile(name='Ada', medals=['first programmer'])\n"}


def test_every_named_example_has_something_to_print() -> None:
    assert EXAMPLES.keys() == PRINTED.keys()


@pytest.mark.process
@pytest.mark.parametrize("file", EXAMPLES)
async def test_the_example_prints_what_it_should(file: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text(EXAMPLES[file])
    result = await run([sys.executable, file], cwd=tmp_path)
    assert result.code == 0, result.told
    assert result.out == PRINTED[file]
