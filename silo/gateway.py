"""The gateway: how clients enter the cluster through this silo."""

from __future__ import annotations

from typing import TYPE_CHECKING

from silo.caller import CallIds
from silo.directory.addresses import Entry, SiloAddress
from silo.directory.cache import DirectoryCache
from silo.directory.errors import Overloaded
from silo.directory.membership import SiloStatus, View
from silo.messaging.permissions import Role
from silo.routing.book import CallBook, sink_of
from silo.routing.call import HERE, Answer, Call, ValueCodec
from silo.wire.frames import Cancel, Gateways, GoAway, Outcome, Reply, Request

if TYPE_CHECKING:
    from silo.messaging.link import Link
    from silo.messaging.links import Links


class Gateway:
    """Makes the calls of clients its own silo's calls, and hands the answers back.

    Whoever called a grain of another gateway is told so with the answer, and calls it there from then on.
    """

    def __init__(self, book: CallBook, ids: CallIds, links: Links, codec: ValueCodec, cache: DirectoryCache) -> None:
        self._book = book
        self._ids = ids
        self._links = links
        self._codec = codec
        self._cache = cache
        self._gateways: frozenset[SiloAddress] = frozenset()
        self._view: View | None = None
        self._open: dict[tuple[str, int], Call] = {}
        self._is_leaving = False

    @property
    def clients(self) -> list[Link]:
        return [link for link in self._links.all() if link.peer.role is not Role.SILO]

    def on_attached(self, link: Link) -> None:
        """A client is there (again): tell it where the gateways are."""
        if self._view is not None:
            link.send(gateways_of(self._view))
        if self._is_leaving:
            link.send(GoAway())

    def on_request(self, link: Link, request: Request) -> None:
        if self._is_leaving:  # it was on its way before its client knew: it goes in by another door, and loses nothing
            link.send(Reply(request.id, Outcome.MOVED))
            return
        client = link.peer.name
        call = Call(  # by position: by name takes twice the time
            self._ids(),
            request.grain,
            request.method,
            client,
            None if request.left_s is None else self._book.time() + request.left_s,
            self._answered,
            None,
            None,
            request.payload,
            request.codec,
            0,
            None,
            (),
            request.flags,
            0,
            0,
            request.trace,
            None,
            request.hint,
            0,
            (link, request.id),
        )
        self._open[(client, request.id)] = call
        try:
            self._book.place(call)
        except Overloaded as error:
            self._open.pop((client, request.id), None)
            link.send(Answer.failed(error).as_reply(request.id, self._codec))

    def _answered(self, call: Call, answer: Answer) -> None:
        if call.sink is not None:
            link, call_id = sink_of(call)
            self._open.pop((link.peer.name, call_id), None)
            entry = self._served_elsewhere(call)
            if answer.entry is not entry:
                answer = Answer(answer.outcome, answer.value, answer.error, answer.payload, answer.codec, entry)
        self._book.answered(call, answer)

    def _served_elsewhere(self, call: Call) -> Entry | None:
        """The entry of the grain where another gateway has answered the call: what its client had better go by."""
        if call.target is None or call.target == HERE:
            return None
        entry = self._cache.get(call.grain)
        return entry if entry is not None and str(entry.silo) == call.target and entry.silo in self._gateways else None

    def on_cancel(self, link: Link, cancel: Cancel) -> None:
        call = self._open.pop((link.peer.name, cancel.id), None)
        if call is not None:
            self._book.cancel(call)

    def on_lost(self, link: Link) -> None:
        """The client is gone: nobody waits for its calls."""
        for call in self._book.of_link(link):
            self._open.pop((link.peer.name, sink_of(call)[1]), None)
            self._book.cancel(call)

    def on_view(self, view: View) -> None:
        self._view = view
        self._gateways = frozenset(row.silo for row in view.gateways())
        frame = gateways_of(view)
        for link in self.clients:
            link.send(frame)

    def go_away(self) -> None:
        """Ask clients to send their next calls elsewhere; what they have sent is still answered."""
        self._is_leaving = True
        for link in self.clients:
            link.send(GoAway())


def gateways_of(view: View) -> Gateways:
    return Gateways(
        view.version,
        tuple(row.silo for row in view.gateways()),
        tuple(row.silo for row in view.table.rows if row.status is SiloStatus.DEAD),
    )
