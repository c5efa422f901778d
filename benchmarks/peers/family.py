"""The processes of one peer: those that bear its mark in their environment, however they came to be."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

MARK: Final = "BENCHMARK_PEER"
_PROC: Final = Path("/proc")
_CPU_CLOCK_OF_PROCESS: Final = 2
"""See benchmarks/meter.py."""


def families() -> dict[str, list[int]]:
    """The processes that live, by their marks; nothing where the platform does not tell."""
    found: dict[str, list[int]] = {}
    head = f"{MARK}=".encode()
    for folder in _PROC.glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:  # it has ended, or is none of ours
            continue
        for entry in environment.split(b"\0"):
            if entry.startswith(head):
                found.setdefault(entry[len(head) :].decode(), []).append(int(folder.name))
    return found


def family() -> list[int]:
    """Those that bear the same mark as this process."""
    return families().get(os.environ.get(MARK, ""), [])


def cpu_s() -> dict[int, float]:
    """Seconds of processor time that each of this process's family has spent until now."""
    found: dict[int, float] = {}
    for pid in family():
        try:
            found[pid] = time.clock_gettime((~pid << 3) | _CPU_CLOCK_OF_PROCESS)
        except OSError:  # it has ended
            continue
    return found


def cpu_s_since(before: Mapping[int, float]) -> float | None:
    """What they have spent since then, with all that new ones have; None where the platform does not tell.

    What one of them spent that has ended meanwhile is lost: nothing that peers do in a repetition ends processes.
    """
    after = cpu_s()
    return sum(spent - before.get(pid, 0.0) for pid, spent in after.items()) if after else None


def resident_bytes() -> int:
    """The resident memory of this process's family, what some of them share counted once among them.

    Raises OSError where the platform does not tell.
    """
    total_kib = 0
    for pid in family():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            told = re.search(r"^Pss:\s+(\d+) kB$", (_PROC / str(pid) / "smaps_rollup").read_text(), re.MULTILINE)
            total_kib += int(told[1]) if told else 0
    if not total_kib:
        raise OSError("this platform does not tell the resident memory of processes")
    return total_kib * 1024
