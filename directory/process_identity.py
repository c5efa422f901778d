"""Which operating system process a silo is, and the proof that it has ended.

A pid alone proves nothing: containers on one machine share the boot id but number their processes apart, and numbers
are used again. So an identity names boot, pid namespace and time namespace, and the start time that goes with the pid.
Where the platform offers none of this (macOS), there is no identity, and deaths are not proved but waited for.
"""

from __future__ import annotations

import os
from pathlib import Path

from silo.directory.membership import ProcessIdentity

_PROC = Path("/proc")
_START_TICKS_FIELD = 22
"""Of `/proc/PID/stat`, counted from 1 as proc(5) does."""


def process_identity(pid: int | None = None) -> ProcessIdentity | None:
    """The identity of a process of this machine, by default of this one; None where none can be told."""
    if pid is None:
        pid = os.getpid()
    try:
        if os.readlink("/proc/self") != str(os.getpid()):
            return None  # a /proc of another pid namespace: its numbers are not ours
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        namespaces = [os.stat(f"/proc/self/ns/{name}").st_ino for name in ("pid", "time")]
        started = _start_ticks(pid)
    except OSError:
        return None
    if started is None:
        return None
    return ProcessIdentity(f"{boot}/{namespaces[0]}/{namespaces[1]}", pid, started)


def _start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None if there is no such process."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    after_name = stat.rpartition(")")[2].split()  # the name in front may hold spaces and parentheses
    return int(after_name[_START_TICKS_FIELD - 3])


class ProcessWatch:
    """Watches one process of this machine until it ends.

    `has_ended` is proof. `fileno()` becomes readable when the process ends; it is None where nothing can be watched,
    because the process has ended already or because the system does not let us.
    """

    def __init__(self, process: ProcessIdentity) -> None:
        self.has_ended = False
        self._fd: int | None = None
        mine = process_identity()
        if mine is None or mine.machine != process.machine:
            return
        # The descriptor first: it stands for whichever process has the number now. If the start time, read afterwards,
        # is not the one we know, then ours is gone; if it is, the descriptor is of ours, for it was there before.
        try:
            self._fd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            self.has_ended = True
            return
        except (AttributeError, OSError):  # not Linux, or not allowed
            return
        if _start_ticks(process.pid) != process.start_ticks:
            self.has_ended = True
            self.close()

    def fileno(self) -> int | None:
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
