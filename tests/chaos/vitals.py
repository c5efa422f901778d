"""What a process takes: tasks, threads, descriptors, memory. Measured from within, compared from without."""

from __future__ import annotations

import asyncio
import os
from collections import Counter as Tally
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from silo.testing.history import Violation

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
TASKS_SLACK: Final = 12
"""Tasks that a healthy process may have more of, at one moment than at another: a renewal, a report on its way, and
three for each link that has gone over from the direct lane to a stream of gRPC."""
THREADS_SLACK: Final = 16
"""gRPC's own pool of threads grows and shrinks."""
DESCRIPTORS_SLACK: Final = 16
MEMORY_SLACK_BYTES: Final = 96 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Vitals:
    """What one process takes at one moment."""

    tasks: int = 0
    threads: int = 0
    descriptors: int = 0
    memory_bytes: int = 0
    tasks_by_name: Mapping[str, int] = field(default_factory=dict[str, int])


def measure() -> Vitals:
    """The vitals of this process."""
    names = Tally(_kind_of(task) for task in asyncio.all_tasks())
    return Vitals(
        tasks=names.total(),
        threads=len(os.listdir("/proc/self/task")),
        descriptors=len(os.listdir("/proc/self/fd")),
        memory_bytes=int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE_BYTES,
        tasks_by_name=dict(names),
    )


def _kind_of(task: asyncio.Task[object]) -> str:
    work = task.get_coro()
    return getattr(work, "__qualname__", type(work).__name__)


def most(many: Iterable[Vitals]) -> Vitals:
    """The largest of each: what a healthy process of this sort may take."""
    found = list(many)
    names = {name for each in found for name in each.tasks_by_name}
    return Vitals(
        tasks=max((each.tasks for each in found), default=0),
        threads=max((each.threads for each in found), default=0),
        descriptors=max((each.descriptors for each in found), default=0),
        memory_bytes=max((each.memory_bytes for each in found), default=0),
        tasks_by_name={name: max(each.tasks_by_name.get(name, 0) for each in found) for name in names},
    )


def leaks(party: str, before: Vitals, after: Vitals) -> list[Violation]:
    """What a process has kept that it had no use for."""
    found: list[Violation] = []
    for what, was, is_now, slack in (
        ("threads", before.threads, after.threads, THREADS_SLACK),
        ("descriptors", before.descriptors, after.descriptors, DESCRIPTORS_SLACK),
        ("bytes of memory", before.memory_bytes, after.memory_bytes, MEMORY_SLACK_BYTES),
    ):
        if is_now > was + slack:
            found.append(Violation("no leak", party, f"{is_now} {what} where {was} were, and {slack} may come"))
    if after.tasks > before.tasks + TASKS_SLACK:
        grown = Tally(after.tasks_by_name)
        grown.subtract(before.tasks_by_name)
        more = ", ".join(f"{count} x {name}" for name, count in grown.most_common() if count > 0)
        found.append(Violation("no leak", party, f"{after.tasks} tasks where {before.tasks} were: {more}"))
    return found
