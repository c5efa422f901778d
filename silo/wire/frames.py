"""The frames of a link, as positional msgpack: fields are only ever appended, and a decoder ignores surplus ones.

No clock reading crosses a link: a deadline travels as the time left, in seconds, taken when the frame is written.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from silo.directory.addresses import Entry, GrainId, SiloAddress

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1


class Flag:
    """What is special about a request: bits, as plain ints, since each call looks at them several times.

    One operation of an `enum.IntFlag` takes longer than a frame takes to encode.
    """

    NONE: Final = 0
    ONE_WAY: Final = 1
    """Nobody waits for the answer."""
    CONTROL: Final = 2
    """For the runtime at the grain's silo, not for the grain: `method` names a control verb, such as `migrate`."""
    PLACED: Final = 4
    """The sender placed the grain on the receiver: activate it there, expecting the entry that `expected` names."""
    FORWARDED: Final = 8
    """Came by way of another silo than the caller's: tell the caller's silo when it is admitted."""
    INNER: Final = 16
    """Made by a grain: should its own have to be activated, that may use a place which another activation has lent."""


class Outcome(enum.IntEnum):
    """How a call ended."""

    VALUE = 0
    APPLICATION_ERROR = 1
    """The grain's own exception, encoded by the codec."""
    NOT_EXECUTED = 2
    """`payload` is an encoded error of the runtime; safe to retry."""
    OUTCOME_UNKNOWN = 3
    MOVED = 4
    """Not executed, since the grain is not here; `entry`, where given, says who does. The caller's silo tries again."""


VALUE: Final = int(Outcome.VALUE)
"""The usual one, as it is on the wire: comparing with a member of an enum takes longer."""
OUTCOMES: Final = {int(outcome): outcome for outcome in Outcome}
"""By number: a look-up takes a small part of the time that `Outcome(number)` does."""


class Request(msgspec.Struct, array_like=True, tag=1, gc=False):
    """One call on its way to a grain."""

    id: int
    grain: GrainId
    method: str
    payload: bytes
    codec: int
    left_s: float | None
    """Time left until the deadline; None for a call without one."""
    caller: str
    """Who calls: the text form of a grain, or a client's name. Order is kept per caller and grain."""
    flags: int = 0
    reply_to: SiloAddress | None = None
    """The caller's silo; None from a client, whose gateway is it."""
    hops: int = 0
    epoch: int = 0
    """The epoch of the entry that the sender went by; 0 for none."""
    path: tuple[tuple[str, int], ...] = ()
    """The turns that wait for this call, outermost first: (grain, call id)."""
    expected: Entry | None = None
    trace: str = ""
    """W3C traceparent, or empty."""
    hint: str = ""
    """The name of the silo to place the grain on, should it have to be placed."""
    leg: int = 0
    """How often it has been forwarded, whatever `hops` has been given back; a try begins well above the one before."""


class Reply(msgspec.Struct, array_like=True, tag=2, gc=False):
    """The end of a call."""

    id: int
    outcome: int
    payload: bytes = b""
    codec: int = 0
    entry: Entry | None = None
    """The entry that the caller's silo should go by from now on, where it went by another."""


class Cancel(msgspec.Struct, array_like=True, tag=3, gc=False):
    """The caller no longer waits for the call."""

    id: int
    grain: GrainId
    reply_to: SiloAddress | None = None


class Forwarded(msgspec.Struct, array_like=True, tag=4, gc=False):
    """To the caller's silo: this call went on to another silo."""

    id: int
    to: SiloAddress
    entry: Entry | None = None
    """The entry that it went by; None where the grain has yet to be activated there."""
    leg: int = 0
    """The call's leg from here on: what silos say of one call overtakes each other, and the highest leg is true."""


class Admitted(msgspec.Struct, array_like=True, tag=5, gc=False):
    """To the caller's silo: the turn of this forwarded call starts, so later ones may go direct."""

    id: int
    grain: GrainId


class Claim(msgspec.Struct, array_like=True, tag=6, gc=False):
    """To the holder of an entry: have you this call? If not, refuse its id until its deadline."""

    id: int
    grain: GrainId
    left_s: float | None


class ClaimAnswer(msgspec.Struct, array_like=True, tag=7, gc=False):
    """Whether the call was there; if not, it is refused there from now on."""

    id: int
    held: bool
    was_queued: bool = False
    """If not: it stood in the queue that the grain left behind when it moved here, and so had not been run there."""
    open_s: float | None = None
    """If not: for how long the grain has been open here; None where that says nothing of the call."""


class Ask(msgspec.Struct, array_like=True, tag=8):
    """Before a move stops anything: would you take this grain? Costs nothing, since it still runs."""

    move: int
    grain: GrainId
    payload_bytes: int
    schemas: dict[str, int] = {}


class AskAnswer(msgspec.Struct, array_like=True, tag=9):
    """Empty `refused` is yes; otherwise the reason."""

    move: int
    refused: str = ""


class Offer(msgspec.Struct, array_like=True, tag=10):
    """The drained, dehydrated grain. The target rehydrates it while closed, then takes the entry by compare-and-set."""

    move: int
    entry: Entry
    activation: str
    """The id that the new activation shall have."""
    payload: bytes
    reason: str
    trace: str = ""


class OfferAnswer(msgspec.Struct, array_like=True, tag=11):
    """The target's answer: the entry it holds now, or why it has none and will take none."""

    move: int
    entry: Entry | None = None
    refused: str = ""
    lost: bool = False
    """It did send its compare-and-set, and lost: the source must ask the directory whose the entry is."""


class Opened(msgspec.Struct, array_like=True, tag=12):
    """The grain is open at the target: the source may let its frozen instance go."""

    move: int
    failed: str = ""
    """Why `on_activate` failed for good, where it did."""
    entry: Entry | None = None
    """Then: the entry, which is the source's again."""


class Withdraw(msgspec.Struct, array_like=True, tag=13):
    """The source no longer waits: a target that has not sent its compare-and-set must not send it."""

    move: int


class Load(msgspec.Struct, array_like=True, tag=14, gc=False):
    """What a silo says of its load, about once a second, and at once when it is full or has room again."""

    activations: int
    lag_s: float = 0.0
    """Its loop's recent lag."""
    in_flight: int = 0
    """How many of the activations are still being made, or arriving."""
    in_flight_max: int = 0
    """How many it begins at a time, at its present age; 0 from a silo that does not say."""
    activations_max: int = 0
    """How many it hosts at most; 0 for no bound."""


class Gateways(msgspec.Struct, array_like=True, tag=15):
    """To clients: where the gateways are, by this view version, and which incarnations are dead."""

    version: int
    silos: tuple[SiloAddress, ...]
    dead: tuple[SiloAddress, ...] = ()


class GoAway(msgspec.Struct, array_like=True, tag=16):
    """The sender is leaving: send it no new calls; what it has already it answers."""


class Chunk(msgspec.Struct, array_like=True, tag=17):
    """A piece of the payload of a frame too large for one message; others may come between those of one frame."""

    stream: int
    data: bytes
    last: bool
    dropped: bool = False
    """With `last`: the sender gave the frame up half-way; what came of it is thrown away."""
    head: bytes = b""
    """In the first piece: the frame, encoded without its payload."""
    size: int = 0
    """In the first piece: the bytes of the whole payload."""


class Order(msgspec.Struct, array_like=True):
    """What one call of an envelope has to itself."""

    id: int
    grain: GrainId
    left_s: float | None
    epoch: int = 0
    trace: str = ""


class Orders(msgspec.Struct, array_like=True, tag=18):
    """One order for many grains: control calls that are alike but for what each has to itself.

    Only for peers that have the feature. It is an envelope and no more: at the other end of the link it is the requests
    that it was made of, each of which is routed, followed and answered alone.
    """

    calls: tuple[Order, ...]
    method: str
    payload: bytes
    codec: int
    caller: str
    flags: int
    reply_to: SiloAddress | None = None
    hops: int = 0
    path: tuple[tuple[str, int], ...] = ()
    leg: int = 0


class Seek(msgspec.Struct, array_like=True, tag=19):
    """To every member, while the directory cannot be asked or has lost rows: do you serve this grain?"""

    grain: GrainId


class SeekAnswer(msgspec.Struct, array_like=True, tag=20):
    """The entry by which the sender serves the grain, or to where it has moved from there; None if neither."""

    grain: GrainId
    entry: Entry | None = None


class Unsettled(msgspec.Struct, array_like=True, tag=21):
    """To every member: these buckets have begun these lives, which are not settled before the receiver has claimed.

    Under this run of the membership table: whoever knows another one claims everything anyway once it has changed.
    """

    run: str
    lives: dict[int, str]


Frame = (
    Request
    | Reply
    | Cancel
    | Forwarded
    | Admitted
    | Claim
    | ClaimAnswer
    | Ask
    | AskAnswer
    | Offer
    | OfferAnswer
    | Opened
    | Withdraw
    | Load
    | Gateways
    | GoAway
    | Chunk
    | Orders
    | Seek
    | SeekAnswer
    | Unsettled
)


class Batch(msgspec.Struct, array_like=True, tag=64, gc=False):
    """What one message carries: consecutive frames, the number of the first, and all that was received up to now."""

    first: int
    ack: int
    view: int
    """The sender's view version."""
    frames: tuple[Frame, ...] = ()
