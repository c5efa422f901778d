"""Asks the membership table on a thread of its own, so that a store that stands still does not stop the lease's.

The lease's thread must go on meanwhile: it is then that it answers the probes of others and sends its own.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from silo.directory.errors import MembershipUnavailable, SiloError
from silo.directory.lease_events import Answered, Failed
from silo.directory.logs import get_logger
from silo.directory.membership import MembershipTable, Renew, TableRequest

_log = get_logger("silo.membership")


class TableAsker(threading.Thread):
    """One request after the other, renewals first.

    Args:
        table: asked by this thread alone, and closed by it.
        timeout_s: how long one request may take.
        clock: read before each request leaves.
        tell: takes what became of each request; called on this thread.
        fail: takes what should never be raised; the thread has ended then.
    """

    def __init__(
        self,
        table: MembershipTable,
        timeout_s: float,
        clock: Callable[[], float],
        tell: Callable[[Answered | Failed], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        super().__init__(name="silo-lease-table", daemon=True)  # must not keep a process alive whose loop is gone
        self._table = table
        self._timeout_s = timeout_s
        self._clock = clock
        self._tell = tell
        self._fail = fail
        self._requests: deque[TableRequest] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._failures = 0

    @property
    def is_failing(self) -> bool:
        """Whether the last request was not answered; from any thread."""
        return self._failures > 0

    def ask(self, request: TableRequest) -> None:
        """From any thread; never waits."""
        with self._changed:
            if isinstance(request, Renew):
                self._requests.appendleft(request)  # never behind a queue
            else:
                self._requests.append(request)
            self._changed.notify()

    def stop(self) -> None:
        """Ask nothing more; `join` waits for what is being asked."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def run(self) -> None:
        try:
            while (request := self._next()) is not None:
                self._ask(request)
        except BaseException as error:  # nobody is above this frame; the lease's thread is told, and treats it as fatal
            self._fail(error)
        finally:
            self._table.close()

    def _next(self) -> TableRequest | None:
        with self._changed:
            self._changed.wait_for(lambda: self._requests or self._stopping)
            return None if self._stopping else self._requests.popleft()

    def _ask(self, request: TableRequest) -> None:
        sent_at = self._clock()
        try:
            answer = self._table.ask(request, self._timeout_s)
        except SiloError as error:
            self._report(error)
            with self._changed:
                waiting, self._requests = self._requests, deque()
            for failed in (request, *waiting):  # a store that is away costs one timeout, not one per request
                self._tell(Failed(failed, sent_at, error))
            return
        if self._failures:
            _log.warning("membership.store_back", failures=self._failures)
            self._failures = 0
        self._tell(Answered(request, sent_at, answer))

    def _report(self, error: SiloError) -> None:
        self._failures += 1
        if self._failures & (self._failures - 1) == 0:  # the 1st, 2nd, 4th, 8th … in a row
            level = logging.WARNING if isinstance(error, MembershipUnavailable) else logging.ERROR
            _log.log(level, "membership.store_unreachable", why=str(error), failures=self._failures)
