"""The witness: one line per event, whole and in order, from several processes at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from silo.testing.witness import FileWitness, ListWitness, What, in_order, read_events

ROOT = Path(__file__).parents[3]
WRITER = """
import sys
from silo.testing.witness import FileWitness, What
witness = FileWitness(sys.argv[1])
for number in range(300):
    witness(What.TURN_STARTED, grain="kind/key", silo=sys.argv[2], number=number, because="x" * (number % 50))
witness.close()
"""


@pytest.mark.usefixtures("warm_processes")
def test_lines_of_several_processes_never_mix(tmp_path: Path) -> None:
    path = tmp_path / "witness.jsonl"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), f"s{number}"], env=environment, cwd=ROOT, start_new_session=True
        )
        for number in range(3)
    ]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 0]
    events = read_events(path)
    assert len(events) == 900
    for number in range(3):
        mine = [event for event in events if event.silo == f"s{number}"]
        assert [event.number for event in mine] == list(range(300))
        assert [event.at for event in mine] == sorted(event.at for event in mine)


def test_a_file_gives_back_what_was_told(tmp_path: Path) -> None:
    path = tmp_path / "witness.jsonl"
    witness = FileWitness(path)
    witness(What.CALL_SENT, call="1", caller="client", grain="k/ü", number=3, deadline_s=5.0)
    witness(What.CALL_ENDED, call="1", outcome="value", value=2**40)
    witness.close()
    sent, ended = read_events(path)
    assert (sent.what, sent.grain, sent.number, sent.deadline_s) == (What.CALL_SENT, "k/ü", 3, 5.0)
    assert (ended.outcome, ended.value, ended.deadline_s) == ("value", 2**40, None)
    assert sent.at <= ended.at


def test_a_line_that_is_still_being_written_is_yet_to_come(tmp_path: Path) -> None:
    path = tmp_path / "witness.jsonl"
    witness = FileWitness(path)
    assert read_events(path) == []
    witness(What.OPENED, number=1)
    witness(What.OPENED, number=2)
    witness.close()
    path.write_bytes(path.read_bytes()[:-7])
    assert [event.number for event in read_events(path)] == [1]
    path.write_bytes(path.read_bytes().replace(b"opened", b"ope", 1))
    with pytest.raises(msgspec.ValidationError):
        read_events(path)


def test_events_of_one_moment_stay_in_the_order_in_which_they_were_told() -> None:
    witness = ListWitness(lambda: 1.0)
    for number in range(5):
        witness(What.OPENED, number=number)
    assert [event.number for event in in_order(witness.events)] == [0, 1, 2, 3, 4]
