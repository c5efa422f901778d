"""What the event loop of one silo sees of the cluster: the view, the right to start turns, and who waits for what."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence

from silo.directory.addresses import SiloAddress
from silo.directory.errors import SiloError
from silo.directory.lease_events import (
    AdoptView,
    AskTable,
    Conclude,
    HoldRight,
    Order,
    ResignRight,
    Tell,
    UnwatchProcess,
    WatchProcess,
)
from silo.directory.logs import get_logger
from silo.directory.membership import EMPTY_VIEW, SiloStatus, View
from silo.directory.turn_right import LeasedRight

_log = get_logger("silo.membership")


class MembershipBoard:
    """The half of a membership that belongs to the event loop. The lease's shell posts the core's orders here."""

    def __init__(self, right: LeasedRight) -> None:
        self.right = right
        self.view = EMPTY_VIEW
        self.me: SiloAddress | None = None
        self._tokens = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._subscribers: dict[int, Callable[[View], None]] = {}
        self._ended = asyncio.Event()
        self._failure: BaseException | None = None

    def subscribe(self, on_view: Callable[[View], None]) -> Callable[[], None]:
        token = next(self._tokens)
        self._subscribers[token] = on_view

        def end() -> None:
            self._subscribers.pop(token, None)

        return end

    def await_token(self) -> tuple[int, asyncio.Future[None]]:
        """A new token, and what ends when it is concluded."""
        token = next(self._tokens)
        waiting = asyncio.get_running_loop().create_future()
        self._waiting[token] = waiting
        waiting.add_done_callback(lambda _: self._waiting.pop(token, None))
        return token, waiting

    def post(self, orders: Sequence[Order]) -> None:
        """Carry out what of these orders concerns the event loop."""
        for order in orders:
            match order:
                case AdoptView(view):
                    self._adopt(view)
                case HoldRight(leased_until=leased_until):
                    self.right.leased_until = leased_until
                    self.right.extended()
                case ResignRight(dead, because):
                    self.right.resign(because)
                    if dead:
                        _log.error("membership.declared_dead", silo=str(self.me), because=because)
                        self._ended.set()
                case Conclude(token, error):
                    self._conclude(token, error)
                case AskTable() | Tell() | WatchProcess() | UnwatchProcess():
                    pass  # the shell's own

    def close(self, error: SiloError) -> None:
        """No order will come any more: whoever still waits gets this error."""
        self.right.resign(str(error))
        for token in list(self._waiting):
            self._conclude(token, error)

    def fail(self, error: BaseException) -> None:
        """The lease itself has failed: as fatal for this silo as its death, and told to whoever waits for that."""
        self._failure = error
        self._ended.set()

    async def declared_dead(self) -> None:
        await self._ended.wait()
        if self._failure is not None:
            raise self._failure

    def _conclude(self, token: int, error: SiloError | None) -> None:
        waiting = self._waiting.get(token)
        if waiting is None or waiting.done():
            return  # the caller gave up
        if error is None:
            waiting.set_result(None)
        else:
            waiting.set_exception(error)

    def _adopt(self, view: View) -> None:
        before, self.view = self.view, view
        self._report(before, view)
        for on_view in list(self._subscribers.values()):
            try:
                on_view(view)
            except Exception:
                _log.exception("membership.subscriber_failed", version=view.version)

    def _report(self, before: View, view: View) -> None:
        for row in view.living():
            old = before.row(row.silo)
            if old is None or old.status is not row.status:
                status = row.status.name.lower()
                _log.info("membership.member", silo=str(row.silo), name=row.info.name, status=status)
            if row.cordoned is not (old is not None and old.cordoned):
                _log.info("membership.cordon", silo=str(row.silo), name=row.info.name, cordoned=row.cordoned)
        for row in before.living():
            if not view.is_alive(row.silo):
                left = row.status is SiloStatus.LEAVING
                level = logging.INFO if left else logging.WARNING
                event = "membership.member_left" if left else "membership.member_dead"
                _log.log(level, event, silo=str(row.silo), name=row.info.name)
        mine = view.row(self.me) if self.me is not None else None
        if mine is None or mine.status is not SiloStatus.JOINING or before.row(mine.silo) is not None:
            return
        for row in view.others(mine.silo):
            if row.info.name == mine.info.name or row.silo.endpoint == mine.silo.endpoint:
                # allowed: it may be the one before this start; but only proof or a verdict says that it is gone
                _log.warning("membership.namesake", silo=str(mine.silo), alive=str(row.silo))
