"""Orders for many grains in one frame: put together where they wait, taken apart where they arrive.

Nothing waits for an envelope to fill: what stands in the queue of a link when its writer comes goes together, as much
as the bounds allow. Plain code without I/O.
"""

from __future__ import annotations

from collections.abc import Iterator

from silo.messaging.limits import ORDERS_BYTES_MAX, ORDERS_MAX
from silo.wire.frames import Flag, Order, Orders, Request

ORDER_OVERHEAD_BYTES = 48
"""What an order in an envelope is reckoned to take beside its grain and trace."""


class EnvelopeTooLarge(Exception):
    """An envelope beyond its bound: the peer does not keep to the protocol."""


def order_bytes(request: Request) -> int:
    """What a request takes in an envelope."""
    grain = request.grain
    return len(grain.kind) + len(grain.key.encode()) + len(request.trace) + ORDER_OVERHEAD_BYTES


def are_alike(one: Request, other: Request) -> bool:
    """Whether two requests may share an envelope: control calls that differ by their grains."""
    return (
        bool(one.flags & Flag.CONTROL)
        and one.flags == other.flags
        and one.method == other.method
        and one.payload == other.payload
        and one.codec == other.codec
        and one.caller == other.caller
        and one.reply_to == other.reply_to
        and one.hops == other.hops
        and one.leg == other.leg
        and one.path == other.path
        and one.hint == other.hint == ""
        and one.expected is other.expected is None
    )


class Envelope:
    """Requests that are being put together, as long as they are alike and within the bounds.

    Args:
        first: the request that the others are to be like.
        bytes_max: the room there is, if that is less than an envelope may take.
    """

    __slots__ = ("_bytes_max", "_first", "_orders", "size")

    def __init__(self, first: Request, bytes_max: int = ORDERS_BYTES_MAX) -> None:
        self.size = len(first.payload) + order_bytes(first)
        self._bytes_max = min(bytes_max, ORDERS_BYTES_MAX)
        self._first = first
        self._orders = [_order_of(first)]

    def takes(self, request: Request) -> bool:
        """Whether there is room for this one, and it is alike."""
        return (
            len(self._orders) < ORDERS_MAX
            and self.size + order_bytes(request) <= self._bytes_max
            and are_alike(self._first, request)
        )

    def add(self, request: Request) -> Order:
        """Put it in; what it has to itself, which from now on carries its time left."""
        order = _order_of(request)
        self._orders.append(order)
        self.size += order_bytes(request)
        return order

    @property
    def first(self) -> Order:
        return self._orders[0]

    def __len__(self) -> int:
        return len(self._orders)

    def frame(self) -> Orders:
        like = self._first
        return Orders(
            tuple(self._orders),
            like.method,
            like.payload,
            like.codec,
            like.caller,
            like.flags,
            like.reply_to,
            like.hops,
            like.path,
            like.leg,
        )


def _order_of(request: Request) -> Order:
    return Order(request.id, request.grain, request.left_s, request.epoch, request.trace)


def requests_of(orders: Orders) -> Iterator[Request]:
    """The requests that an envelope was made of.

    Raises:
        EnvelopeTooLarge: there are more than an envelope holds.
    """
    if len(orders.calls) > ORDERS_MAX:
        raise EnvelopeTooLarge(f"{len(orders.calls)} orders in one envelope; {ORDERS_MAX} is the most")
    for order in orders.calls:
        yield Request(
            order.id,
            order.grain,
            orders.method,
            orders.payload,
            orders.codec,
            order.left_s,
            orders.caller,
            orders.flags,
            orders.reply_to,
            orders.hops,
            order.epoch,
            orders.path,
            trace=order.trace,
            leg=orders.leg,
        )
