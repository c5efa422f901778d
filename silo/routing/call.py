"""A call, from when it is made or arrives until it is answered, and the ways in which it can be answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from sys import getsizeof
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.directory.errors import AnswerTooLarge, CallExpired, CallTimeout, NotExecuted, PayloadTooLarge, SiloError
from silo.wire.frames import Flag, Outcome, Reply, Request

if TYPE_CHECKING:
    from collections.abc import Generator

    from silo.class_checks import MethodSpec
    from silo.messaging.link import Link
    from silo.messaging.session import Outgoing
    from silo.routing.book import CallBook
    from silo.routing.lanes import Lane


HERE: Final = "here"
"""The target of a call whose grain is in its caller's silo."""


class ValueCodec(Protocol):
    """What turns values into payloads and back; see `silo.serialization`."""

    def encode(self, value: object) -> tuple[bytes, int]: ...

    def decode(self, payload: bytes, codec: int) -> object: ...

    def encode_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bytes, int]: ...

    def decode_call(self, payload: bytes, codec: int) -> tuple[tuple[Any, ...], dict[str, Any]]: ...

    def isolate(self, value: object) -> object: ...

    def isolate_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]: ...

    def encode_error(self, error: BaseException) -> tuple[bytes, int]: ...

    def decode_error(self, payload: bytes, codec: int) -> BaseException: ...

    def isolate_error(self, error: BaseException) -> BaseException: ...


class ReplyLink(Protocol):
    """What takes a reply; see `silo.messaging.link.Link`."""

    def send(self, frame: Reply) -> object: ...


class Answer(msgspec.Struct, frozen=True):
    """How a call ended, either as a value in this process or as the payload that came over a link."""

    outcome: Outcome
    value: object = None
    error: BaseException | None = None
    payload: bytes | None = None
    codec: int = 0
    entry: Entry | None = None

    @classmethod
    def failed(cls, error: BaseException, entry: Entry | None = None) -> Answer:
        """The answer that an error of the runtime stands for."""
        outcome = Outcome.NOT_EXECUTED if isinstance(error, NotExecuted) else Outcome.OUTCOME_UNKNOWN
        return cls(outcome, error=error, entry=entry)

    def send_on(self, link: ReplyLink, call_id: int, codec: ValueCodec) -> None:
        """Send the answer; one that is too large for the link becomes the error that says so."""
        try:
            link.send(self.as_reply(call_id, codec))
        except PayloadTooLarge as error:  # of a call that has run, which is not what the link's own error says
            too_large = AnswerTooLarge(f"the call ran, and its answer cannot be sent: {error}", error.size, error.limit)
            link.send(Answer.failed(too_large, self.entry).as_reply(call_id, codec))

    def as_reply(self, call_id: int, codec: ValueCodec) -> Reply:
        """The frame that carries this answer; a value that cannot be encoded becomes the error that says so."""
        if self.payload is not None:
            return Reply(call_id, self.outcome, self.payload, self.codec, self.entry)
        if self.outcome is Outcome.VALUE:
            try:
                payload, codec_id = codec.encode(self.value)
            except SiloError as error:
                payload, codec_id = codec.encode_error(error)
                return Reply(call_id, Outcome.APPLICATION_ERROR, payload, codec_id, self.entry)
            return Reply(call_id, Outcome.VALUE, payload, codec_id, self.entry)
        if self.error is None:
            return Reply(call_id, self.outcome, b"", 0, self.entry)
        payload, codec_id = codec.encode_error(self.error)
        return Reply(call_id, self.outcome, payload, codec_id, self.entry)


class Call(msgspec.Struct, eq=False):
    """One call at one silo or client, whatever its role there: made here, passing through, or to be run.

    Its arguments are held as values, as a payload, or both; each form is made from the other when it is first needed.
    """

    id: int
    grain: GrainId
    method: str
    caller: str
    deadline: float | None
    """In the loop's time; None for a call without one."""
    on_answer: Callable[[Call, Answer], None]
    """What ends the call; the first answer counts."""
    args: tuple[Any, ...] | None = None
    kwargs: dict[str, Any] | None = None
    encoded: bytes | None = None
    """The arguments as a payload."""
    codec: int = 0
    size: int = 0
    """What bounds by bytes count it as, from when it is taken in until it is answered; see `measure`."""
    spec: MethodSpec | None = None
    path: tuple[tuple[str, int], ...] = ()
    flags: int = 0
    hops: int = 0
    leg: int = 0
    """The highest leg of its way that is known here; see `Request.leg`."""
    trace: str = ""
    origin: SiloAddress | None = None
    """The caller's silo, where that is another one than this."""
    hint: str = ""
    """The name of the silo to place the grain on, should it have to be placed; advisory."""
    sender_epoch: int = 0
    """The epoch of the entry that the sender went by."""
    sink: asyncio.Future[Any] | tuple[Link, int] | None = None
    """Who waits for the answer here: a future, or a client behind its link."""
    sent_at: float = 0.0
    """When it was sent to another silo, the last time."""
    forwarder: SiloAddress | None = None
    """Who said that it sent the call on to `target`, as long as that has not been heard from itself."""
    target: str | None = None
    """The peer that has it now; None while it has not been sent."""
    outgoing: Outgoing | None = None
    """By which it can be taken back from the link to that peer."""
    lane: Lane | None = None
    tries: int = 0
    obstacle: SiloError | None = None
    """Why it has not been sent yet, for the error should its deadline pass."""
    answered: bool = False
    cancelled: bool = False
    interrupted: bool = False
    left_behind: bool = False
    """Its turn runs on without counting: the grain had to move."""
    queued_at: float = 0.0
    task: asyncio.Task[None] | None = None
    """The turn that runs it here."""
    book: CallBook | None = None
    """Where it is open, if it was made here."""
    timer: asyncio.TimerHandle | None = None
    """Runs once the deadline has passed, until the call is given up."""
    kept: Answer | None = None
    """The answer of one that was run at once, which nobody had to wait for."""

    def __repr__(self) -> str:
        return f"<call {self.id} {self.grain}.{self.method} from {self.caller}>"

    # What whoever made it here does: await its answer, or give it up.

    def __await__(self) -> Generator[Any, None, Any]:
        assert isinstance(self.sink, asyncio.Future)
        return self.sink.__await__()

    def abandon(self) -> None:
        """Nobody waits for it any more."""
        if self.book is not None:
            self.book.abandon(self)

    # What turn admission asks (silo.activation.turns.Turn).

    @property
    def read_only(self) -> bool:
        return self.spec is not None and self.spec.read_only

    @property
    def always_interleave(self) -> bool:
        return self.spec is not None and self.spec.always_interleave

    @property
    def is_called_off(self) -> bool:
        """Its caller has gone, or its grain has to move: if it is cancelled, that is why."""
        return self.cancelled or self.interrupted

    @property
    def is_from_here(self) -> bool:
        """Whether its caller lives in this process, and is answered with values rather than payloads."""
        return self.book is not None

    @property
    def is_one_way(self) -> bool:
        return bool(self.flags & Flag.ONE_WAY)

    @property
    def is_control(self) -> bool:
        return bool(self.flags & Flag.CONTROL)

    def left_s(self, now: float) -> float | None:
        return None if self.deadline is None else self.deadline - now

    def arguments(self, codec: ValueCodec) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments as values of this process; raises SerializationError."""
        if self.args is None:
            assert self.encoded is not None
            self.args, self.kwargs = codec.decode_call(self.encoded, self.codec)
        return self.args, self.kwargs or {}

    def payload(self, codec: ValueCodec) -> bytes:
        """The arguments as a payload; raises SerializationError."""
        if self.encoded is None:
            assert self.args is not None
            self.encoded, self.codec = codec.encode_call(self.args, self.kwargs or {})
            self.args = self.kwargs = None  # from here on the payload is the call's own copy
        return self.encoded

    def measure(self) -> int:
        """Reckon its size: the bytes of its payload, or of the outermost objects where there is none yet."""
        size = len(self.encoded) if self.encoded is not None else size_of(self.args or (), self.kwargs)
        self.size = size
        return size

    def isolate(self, codec: ValueCodec) -> None:
        """Part from the caller's objects, as a remote call would; raises SerializationError."""
        if self.args is not None:
            self.args, self.kwargs = codec.isolate_call(self.args, self.kwargs or {})

    def as_request(
        self,
        codec: ValueCodec,
        reply_to: SiloAddress | None,
        flags: int = 0,
        epoch: int = 0,
        expected: Entry | None = None,
    ) -> Request:
        """The frame that carries this call onwards; the time left is filled in when it is written."""
        payload = self.encoded
        if payload is None:
            payload = self.payload(codec)
        return Request(
            self.id,
            self.grain,
            self.method,
            payload,
            self.codec,
            None,
            self.caller,
            flags,
            reply_to,
            self.hops,
            epoch,
            self.path,
            expected,
            self.trace,
            self.hint,
            self.leg,
        )

    def overdue(self) -> SiloError:
        """The error for a call whose deadline has passed, by what is known of it."""
        if self.target is None:
            if isinstance(self.obstacle, NotExecuted):
                return self.obstacle
            if self.obstacle is not None:
                return CallExpired(f"{self.grain}.{self.method}: the call could not be sent in time: {self.obstacle}")
            return CallExpired(f"{self.grain}.{self.method}: the deadline passed before the call could be sent")
        return self.timed_out(self.target)

    def timed_out(self, peer: str) -> CallTimeout:
        """The error for a call that may be running at this peer; it says who waits for whom."""
        waiting = " <- ".join((f"{self.grain}.{self.method}", *(f"{grain}" for grain, _ in reversed(self.path))))
        return CallTimeout(f"{self.grain}.{self.method}: no answer from {peer} within the deadline; waiting: {waiting}")


def size_of(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> int:
    """What arguments count as while they are no payload: the bytes of the outermost objects."""
    size = 0
    for arg in args:
        size += getsizeof(arg)
    if kwargs:
        size += sum(map(getsizeof, kwargs.values()))
    return size


def keep(call: Call, answer: Answer) -> None:
    """The end of a call that is run at once: its `on_answer` until it has to wait."""
    call.kept = answer


def resolve(future: asyncio.Future[Any], answer: Answer, codec: ValueCodec) -> None:
    """Give a waiting caller its answer: the value, or the error to raise."""
    if future.done():
        return
    if answer.outcome is not Outcome.VALUE:
        future.set_exception(error_of(answer, codec))
    elif answer.payload is None:
        future.set_result(answer.value)
    else:
        try:
            future.set_result(codec.decode(answer.payload, answer.codec))
        except SiloError as unreadable:
            future.set_exception(unreadable)


def error_of(answer: Answer, codec: ValueCodec) -> BaseException:
    """What a caller raises by this answer, which is no value."""
    if answer.error is not None:
        error = codec.isolate_error(answer.error) if answer.outcome is Outcome.APPLICATION_ERROR else answer.error
    elif answer.payload:
        error = codec.decode_error(answer.payload, answer.codec)
    else:
        error = NotExecuted(f"the call was not executed ({answer.outcome.name.lower()})")
    if isinstance(error, (StopIteration, asyncio.CancelledError)):  # a future takes neither: name it instead
        error = SiloError(f"the call ended with {type(error).__name__}: {error}")
    return error
