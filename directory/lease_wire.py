"""How the leases of two processes talk: small frames over TCP, on sockets that belong to the lease's thread.

Each silo dials the others and writes; what it hears comes in by connections that the others have dialled. Whoever
accepts says a challenge first. Then come frames: a length of four bytes, and a body of MessagePack; the first says who
dials whom in which cluster, the others are `LeaseMessage`s. Where the cluster has a token, the body is preceded by an
HMAC-SHA256 over challenge, number of the frame, and body, so that no stranger renews, acknowledges or assents.

What cannot be sent is dropped: the protocol above asks again.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import selectors
import socket
import struct
from collections.abc import Callable, Collection
from typing import Final

import msgspec

from silo.directory.addresses import SiloAddress
from silo.directory.lease_messages import LeaseMessage
from silo.directory.logs import get_logger
from silo.directory.names import HostNames, split_host

_log = get_logger("silo.membership")

PROTOCOL: Final = 1
CHALLENGE_BYTES: Final = 16
FRAME_BYTES_MAX: Final = 4 * 1024 * 1024
"""A table of ten thousand silos fits in."""
WAITING_BYTES_MAX: Final = 2 * FRAME_BYTES_MAX
"""What may wait to be written to one silo; more is dropped."""
WAITING_MESSAGES_MAX: Final = 16
"""Likewise, before the connection is open."""
INCOMING_MAX: Final = 4096
"""Connections that others have dialled; of those who have not said who they are, the oldest goes first."""
RECEIVE_BYTES: Final = 64 * 1024
_LENGTH = struct.Struct(">I")
_NUMBER = struct.Struct(">Q")


class _Hello(msgspec.Struct, frozen=True, array_like=True):
    """The first frame of a connection."""

    protocol: int
    cluster: str
    sender: SiloAddress
    receiver: SiloAddress


_encoder = msgspec.msgpack.Encoder()
_hello_decoder = msgspec.msgpack.Decoder(_Hello)
_message_decoder: msgspec.msgpack.Decoder[LeaseMessage] = msgspec.msgpack.Decoder(LeaseMessage)


class Seal:
    """What proves that frames come from the cluster, in this order, on this connection; nothing without a key."""

    def __init__(self, key: bytes | None, challenge: bytes) -> None:
        self._key = key
        self._challenge = challenge
        self._number = 0

    def close(self, body: bytes) -> bytes:
        """The frame for a body."""
        proof = self._proof(body)
        return _LENGTH.pack(len(proof) + len(body)) + proof + body

    def open(self, sealed: bytes) -> bytes:
        """The body of a frame; raises ValueError."""
        if self._key is None:
            return sealed
        proof, body = sealed[: hashlib.sha256().digest_size], sealed[hashlib.sha256().digest_size :]
        if not hmac.compare_digest(proof, self._proof(body)):
            raise ValueError("a frame is not proved by the cluster's token")
        return body

    def _proof(self, body: bytes) -> bytes:
        if self._key is None:
            return b""
        self._number += 1
        return hmac.digest(self._key, self._challenge + _NUMBER.pack(self._number) + body, "sha256")


class _Outgoing:
    """A connection that this silo has dialled."""

    def __init__(self, wire: LeaseWire, peer: SiloAddress, address: tuple[socket.AddressFamily, object], now: float):
        family, where = address
        self.opened_at = now
        self.is_closed = False
        self._wire = wire
        self._challenge = b""
        self._seal: Seal | None = None
        self._waiting: list[bytes] = [_encoder.encode(_Hello(PROTOCOL, wire.cluster, wire.me, peer))]
        self._buffer = bytearray()
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        wire.tune(self._socket)
        self._socket.connect_ex(where)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - as getaddrinfo gave it
        wire.selector.register(self._socket, selectors.EVENT_READ, self.ready)

    @property
    def is_open(self) -> bool:
        """Whether the other end has answered."""
        return self._seal is not None

    def send(self, body: bytes) -> None:
        """Write it now or when the socket takes it."""
        if self._seal is None:
            if len(self._waiting) < WAITING_MESSAGES_MAX:
                self._waiting.append(body)
        elif len(self._buffer) < WAITING_BYTES_MAX:
            self._buffer += self._seal.close(body)
            self._write()

    def ready(self) -> None:
        """The socket has something to read, or takes more."""
        if self.is_closed:
            return
        try:
            received = self._socket.recv(CHALLENGE_BYTES - len(self._challenge) or 1)
        except BlockingIOError:
            received = None
        except OSError as error:
            self.close(str(error))
            return
        if received is not None:
            if not received or self._seal is not None:
                self.close("the other end has closed it")
                return
            self._challenge += received
            if len(self._challenge) == CHALLENGE_BYTES:
                self._seal = Seal(self._wire.key, self._challenge)
                for body in self._waiting:
                    self._buffer += self._seal.close(body)
                self._waiting.clear()
        self._write()

    def close(self, why: str) -> None:
        if not self.is_closed:
            self.is_closed = True
            _log.debug("membership.lease_link_closed", why=why)
            self._wire.selector.unregister(self._socket)
            self._socket.close()

    def _write(self) -> None:
        try:
            while self._buffer:
                del self._buffer[: self._socket.send(self._buffer)]
        except BlockingIOError:
            pass
        except OSError as error:
            self.close(str(error))
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._buffer else 0)
        self._wire.selector.modify(self._socket, events, self.ready)


class _Incoming:
    """A connection that another silo has dialled."""

    def __init__(self, wire: LeaseWire, accepted: socket.socket) -> None:
        self.sender: SiloAddress | None = None
        self._wire = wire
        self._socket = accepted
        self._buffer = bytearray()
        self._challenge = secrets.token_bytes(CHALLENGE_BYTES)
        self._seal = Seal(wire.key, self._challenge)
        accepted.setblocking(False)
        wire.tune(accepted)
        wire.selector.register(accepted, selectors.EVENT_READ, self.ready)

    def greet(self) -> None:
        """Say the challenge: the first bytes of a new connection, which takes them or is broken."""
        try:
            self._socket.send(self._challenge)
        except OSError as error:
            self.close(str(error))

    def ready(self) -> None:
        """The socket has something to read."""
        if self not in self._wire.incoming:
            return
        try:
            received = self._socket.recv(RECEIVE_BYTES)
            if not received:
                self.close("the other end has closed it")
                return
            self._buffer += received
            while self in self._wire.incoming and (frame := self._next()) is not None:
                self._take(self._seal.open(frame))
        except BlockingIOError:
            return
        except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
            self.close(str(error))

    def close(self, why: str) -> None:
        if self in self._wire.incoming:
            self._wire.incoming.remove(self)
            _log.debug("membership.lease_link_closed", sender=str(self.sender or "a stranger"), why=why)
            self._wire.selector.unregister(self._socket)
            self._socket.close()

    def _next(self) -> bytes | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        length = _LENGTH.unpack_from(self._buffer)[0]
        if length > FRAME_BYTES_MAX:
            raise ValueError(f"a frame of {length} bytes")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        frame = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return frame

    def _take(self, body: bytes) -> None:
        if self.sender is not None:
            self._wire.on_message(self.sender, _message_decoder.decode(body))
            return
        hello = _hello_decoder.decode(body)
        if (hello.protocol, hello.cluster, hello.receiver) != (PROTOCOL, self._wire.cluster, self._wire.me):
            raise ValueError(f"{hello} is not meant for {self._wire.me} of cluster {self._wire.cluster}")
        for other in [other for other in self._wire.incoming if other.sender == hello.sender]:
            other.close("its sender has dialled anew")
        self.sender = hello.sender


class LeaseWire:
    """The sockets of one lease. Bound when made; all else is for the lease's thread.

    Args:
        listen: the host to listen on.
        port: the port; 0 for any free one.
        advertise: the host by which others reach it.
        cluster: the name of the cluster.
        key: what proves that a silo belongs to the cluster; None where there is no token.
        patience_s: a connection that takes nothing for so long is given up.

    Raises:
        OSError: the address cannot be listened on.
    """

    def __init__(
        self, *, listen: str, port: int, advertise: str, cluster: str, key: bytes | None, patience_s: float
    ) -> None:
        family = socket.getaddrinfo(listen, port, type=socket.SOCK_STREAM)[0][0]
        self._listener = socket.create_server((listen, port), family=family, reuse_port=False)
        self._listener.setblocking(False)
        bound: int = self._listener.getsockname()[1]
        self.endpoint = f"[{advertise}]:{bound}" if ":" in advertise else f"{advertise}:{bound}"
        self.cluster = cluster
        self.key = key
        self.incoming: list[_Incoming] = []
        self.me = SiloAddress("", 0)
        self.selector: selectors.BaseSelector
        self.on_message: Callable[[SiloAddress, LeaseMessage], None]
        self._patience_s = patience_s
        self._outgoing: dict[SiloAddress, _Outgoing] = {}
        self._names = HostNames()

    def start(
        self,
        me: SiloAddress,
        selector: selectors.BaseSelector,
        on_message: Callable[[SiloAddress, LeaseMessage], None],
    ) -> None:
        """Take what others say."""
        self.me, self.selector, self.on_message = me, selector, on_message
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def send(self, peer: SiloAddress, endpoint: str, message: LeaseMessage, now: float) -> None:
        """Send it by the connection there is, or by a new one."""
        connection = self._outgoing.get(peer)
        if connection is not None and not connection.is_open and now - connection.opened_at > self._patience_s:
            connection.close("it was not answered")
        if connection is None or connection.is_closed:
            address = self._names.address(*split_host(endpoint))
            if address is None:
                return  # a name that is being looked up, or is nobody's
            try:
                connection = self._outgoing[peer] = _Outgoing(self, peer, address, now)
            except OSError as error:
                _log.debug("membership.lease_link_not_dialled", endpoint=endpoint, why=str(error))
                return
        connection.send(_encoder.encode(message))

    def forget_all_but(self, peers: Collection[SiloAddress]) -> None:
        """Close what leads to silos that are members no more."""
        for peer in [peer for peer in self._outgoing if peer not in peers]:
            self._outgoing.pop(peer).close("it is a member no more")

    def tune(self, connected: socket.socket) -> None:
        """Small frames leave at once, and a dead connection is known as such before the system would say so."""
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._patience_s * 1000))

    def close(self) -> None:
        """Let go of all sockets."""
        for outgoing in self._outgoing.values():
            outgoing.close("this lease ends")
        for incoming in list(self.incoming):
            incoming.close("this lease ends")
        self._listener.close()

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except OSError as error:
            _log.debug("membership.lease_link_not_accepted", why=str(error))
            return
        if len(self.incoming) >= INCOMING_MAX:
            stranger = next((each for each in self.incoming if each.sender is None), self.incoming[0])
            stranger.close("there are too many")
        incoming = _Incoming(self, accepted)
        self.incoming.append(incoming)
        incoming.greet()
