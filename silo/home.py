"""Where a client lives: the one event loop, and process, that it may be used in."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref

from silo.directory.errors import ClientMisused


class Home:
    """Knows its loop from `settle` on. Asked before every call, so it asks the system for nothing."""

    __slots__ = ("__weakref__", "_loop", "_name", "_thread", "is_left")

    def __init__(self, name: str) -> None:
        self.is_left = False
        """Whether this is the copy that a forked process has got."""
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        _homes.add(self)

    def settle(self) -> None:
        """This is the loop."""
        self.check()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def check(self) -> None:
        """Raises ClientMisused where this is not the place; before it has settled, any is."""
        if self.is_left:
            raise ClientMisused(
                f"{self._name} was made in the process that this one was forked from: make a client of its own here,"
                " or start processes by `spawn`"
            )
        loop = self._loop
        # Two loops cannot run in one thread at the same time: if it is this thread and that loop runs, it is that loop.
        if loop is not None and (threading.get_ident() != self._thread or not loop.is_running()):
            raise ClientMisused(f"{self._name} lives on another event loop: open one client for each loop and thread")


_homes: weakref.WeakSet[Home] = weakref.WeakSet()


def _leave_all() -> None:
    for home in list(_homes):
        home.is_left = True


os.register_at_fork(after_in_child=_leave_all)
