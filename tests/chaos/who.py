"""Which process holds the other end of a loopback connection: the kernel's tables know."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
"""A socket that speaks both protocols stands in the second."""


def inode_of(local_port: int, remote_port: int) -> str | None:
    """The inode of the socket with these ports; None where there is none."""
    for table in TABLES:
        for line in table.read_text(encoding="ascii").splitlines()[1:]:
            fields = line.split()
            ports = tuple(int(address.rpartition(":")[2], 16) for address in fields[1:3])
            if ports == (local_port, remote_port):
                return fields[9]
    return None


def holds(pid: int, inode: str) -> bool:
    """Whether the process has the socket open; a process that has ended holds nothing."""
    wanted = f"socket:[{inode}]"
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
                if os.readlink(descriptor) == wanted:
                    return True
    return False


def process_of(local_port: int, remote_port: int, pids: Iterable[int]) -> int | None:
    """Which of these processes has the socket with these ports."""
    inode = inode_of(local_port, remote_port)
    return next((pid for pid in pids if holds(pid, inode)), None) if inode is not None else None
