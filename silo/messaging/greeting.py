"""The greeting that opens a connection: who is there, by which protocol, proved by whom, resuming what.

The dialler says Hello, the listener answers Welcome or Refusal, the dialler closes with Proof. Each proof is an
HMAC-SHA256, by the key of the dialler's role, over all that both said, the two fresh challenges included. A silo can
derive the key of every role from the cluster token; a client that was given only its role's key can prove that role
and no other. The key of a role is shared by its holders: it keeps strangers out, and does not tell one client from
another.

Plain code without I/O; challenges and nonces are arguments, and must not be guessable.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from silo.directory.addresses import SiloAddress
from silo.directory.errors import HandshakeRefused, InvalidSettings
from silo.messaging.limits import PEER_NAME_MAX, REFUSAL_TEXT_MAX
from silo.messaging.permissions import Role
from silo.wire.frames import PROTOCOL_MAX, PROTOCOL_MIN, Batch

NONCE_BYTES = 16
"""The length of challenges and session nonces."""
ORDERS = "orders"
"""The feature of a peer that takes orders for many grains in one frame."""
DIRECT = "direct"
"""The feature of a silo whose links may take the direct lane."""
FEATURES = (ORDERS,)
"""What a process of this version can do beyond the protocol version."""
_SILO_NAME = re.compile(r"@\d+$")
_ROLE_TOKEN = re.compile(r"(silo|client|admin):([0-9a-f]{64})")


class RefusalCode(enum.IntEnum):
    """Why a link was refused or ended by the other side."""

    MALFORMED = 0
    PROTOCOL = 1
    CLUSTER = 2
    TOKEN = 3
    INCARNATION = 4
    """Another incarnation was dialled than the one that listens."""
    DEAD = 5
    """The cluster's view calls the peer dead."""
    PERMISSION = 6
    CLOSING = 7
    BROKEN = 8
    """What was sent cannot be right."""
    FAILED = 9
    """The receiver could not deal with a frame; the fault is its own."""


class Hello(msgspec.Struct, array_like=True, tag=65):
    """The dialler's first word."""

    protocol_min: int
    protocol_max: int
    features: tuple[str, ...]
    cluster: str
    name: str
    role: str
    silo: SiloAddress | None
    app_version: str
    expects: SiloAddress | None
    """Who must answer; None for whoever does."""
    holds_token: bool
    challenge: bytes
    session: bytes
    """The nonce of the dialler's session with this peer."""
    last: bytes
    """The challenge that opened the last connection of this session; empty if it had none."""


class Terms(msgspec.Struct, array_like=True):
    """What the listener answers; it travels encoded, so that both sides hash the same bytes."""

    protocol: int
    features: tuple[str, ...]
    name: str
    silo: SiloAddress | None
    app_version: str
    challenge: bytes
    session: bytes
    received: int
    """The number of the last frame received in that session."""
    direct: str = ""
    """`host:port` of the listener's direct lane, where both ends may take it."""
    local: str = ""
    """The name of its socket, by which silos on its host may take the lane."""


class Welcome(msgspec.Struct, array_like=True, tag=66):
    """The listener's answer."""

    terms: bytes
    proof: bytes


class Refusal(msgspec.Struct, array_like=True, tag=67):
    """The listener's answer to a peer that it will not have."""

    code: int
    text: str


class Proof(msgspec.Struct, array_like=True, tag=68):
    """The dialler's last word: from here on batches travel both ways."""

    received: int
    """The number of the last frame received in this session."""
    proof: bytes


class Goodbye(msgspec.Struct, array_like=True, tag=69):
    """The last message of a session that one side ends on purpose."""

    code: int
    text: str
    received: int
    """The number of the last frame received."""


Message = Batch | Hello | Welcome | Refusal | Proof | Goodbye
message_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
message_encoder = msgspec.msgpack.Encoder()
_terms_decoder: msgspec.msgpack.Decoder[Terms] = msgspec.msgpack.Decoder(Terms)
_MessageT = TypeVar("_MessageT", Hello, Proof)


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a link."""

    name: str
    """The text form of a silo's address, or a client's name."""
    role: Role
    silo: SiloAddress | None
    app_version: str = ""
    features: tuple[str, ...] = ()
    """What both ends can do, in the listener's order."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What this process says of itself in a greeting.

    Args:
        name: the text form of a silo's own address; a client's name, unlike any other's in the cluster.
        role: the role it takes.
        cluster: the cluster it belongs to.
        silo: a silo's own address.
        app_version: the application's version, for people.
        features: what it can do beyond the protocol version.
    """

    name: str
    role: Role
    cluster: str
    silo: SiloAddress | None = None
    app_version: str = ""
    features: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if wrong := _name_wrong(self.name, self.role, self.silo):
            raise InvalidSettings(wrong)


def _name_wrong(name: str, role: Role, silo: SiloAddress | None) -> str:
    if role is Role.SILO:
        return "" if silo is not None and name == str(silo) else f"a silo is called by its address, not {name!r}"
    if silo is not None:
        return f"a {role} has no silo address"
    if not 0 < len(name) <= PEER_NAME_MAX or _SILO_NAME.search(name):
        return f"{name[:PEER_NAME_MAX]!r} is no name for a {role}: 1 to {PEER_NAME_MAX} characters, not like a silo's"
    return ""


class Credentials:
    """The right to take roles: the cluster token, for every role, or the key of one role.

    Args:
        token: the cluster token, or `client:` or `admin:` and the key in hexadecimal that `derive` gave.
    """

    def __init__(self, token: str) -> None:
        if not token:
            raise InvalidSettings("an empty cluster token proves nothing; leave it out to run without one")
        self._token = token
        found = _ROLE_TOKEN.fullmatch(token)
        self._only = Role(found[1]) if found else None
        self._key = bytes.fromhex(found[2]) if found else token.encode()

    def __repr__(self) -> str:
        return f"Credentials(<{self._only or 'cluster'} token>)"

    def derive(self, role: Role) -> str:
        """A token that proves this role and no other. Raises InvalidSettings where this is such a token itself."""
        if self._only is not None:
            raise InvalidSettings(
                f"from a token of the role {self._only} no other can be derived; use the cluster token"
            )
        return f"{role}:{self._role_key(role).hex()}"

    def holds(self, role: Role) -> bool:
        """Whether this role can be proved and verified."""
        return self._only in (None, role)

    def demand(self, role: Role) -> None:
        """Raise Refused, which says what would do, where this role cannot be proved and verified."""
        if not self.holds(role):
            derived = f", or one that `silo token --role {role}` makes" if role is not Role.SILO else ""
            wanted = f"give the cluster token{derived}"
            raise Refused(
                RefusalCode.TOKEN, f"a token of the role {self._only} does not prove the role {role}: {wanted}"
            )

    def proof(self, role: Role, spoken: bytes) -> bytes:
        """The proof, by the key of a role, over what was said. Raises Refused where the key is not held."""
        self.demand(role)
        return hmac.digest(self._role_key(role), spoken, "sha256")

    def verify(self, role: Role, spoken: bytes, proof: bytes) -> bool:
        """Whether the proof is right, compared in constant time."""
        return hmac.compare_digest(self.proof(role, spoken), proof)

    def _role_key(self, role: Role) -> bytes:
        return self._key if self._only is not None else hmac.digest(self._key, f"silo role {role}".encode(), "sha256")


class Refused(HandshakeRefused):
    """A greeting that failed, with the code that tells why."""

    def __init__(self, code: RefusalCode, text: str) -> None:
        super().__init__(text[:REFUSAL_TEXT_MAX])
        self.code = code

    def message(self) -> bytes:
        """The Refusal to send to the peer."""
        return message_encoder.encode(Refusal(self.code, str(self)))


def refusal_code(number: int) -> RefusalCode:
    """The code that a peer sent; MALFORMED stands for those of later versions."""
    try:
        return RefusalCode(number)
    except ValueError:
        return RefusalCode.MALFORMED


def _spoken(speaker: str, hello: bytes, terms: bytes, rest: bytes = b"") -> bytes:
    return b"silo link 1 " + speaker.encode() + b"".join(hashlib.sha256(part).digest() for part in (hello, terms, rest))


def _decode(body: bytes, kind: type[_MessageT]) -> _MessageT:
    try:
        message = message_decoder.decode(body)
    except msgspec.DecodeError as error:
        raise Refused(RefusalCode.MALFORMED, f"the peer does not speak the link protocol: {error}") from None
    if not isinstance(message, kind):
        raise Refused(RefusalCode.MALFORMED, f"a {type(message).__name__} where a {kind.__name__} belongs")
    return message


class DiallerGreeting:
    """The dialler's side of one greeting: `hello`, then `on_answer`, then `proof`."""

    def __init__(
        self,
        identity: Identity,
        credentials: Credentials | None,
        *,
        challenge: bytes,
        session: bytes,
        expects: SiloAddress | None = None,
        last: bytes = b"",
    ) -> None:
        if credentials is not None:
            credentials.demand(identity.role)
        self._identity = identity
        self._credentials = credentials
        self._expects = expects
        self._challenge = challenge
        self._terms = b""
        self.hello = message_encoder.encode(
            Hello(
                PROTOCOL_MIN,
                PROTOCOL_MAX,
                identity.features,
                identity.cluster,
                identity.name,
                identity.role,
                identity.silo,
                identity.app_version,
                expects,
                credentials is not None,
                challenge,
                session,
                last,
            )
        )

    def on_answer(self, body: bytes) -> tuple[Peer, Terms]:
        """Check the listener's answer. Raises Refused: by it, or by us."""
        try:
            message = message_decoder.decode(body)
            if isinstance(message, Refusal):
                raise Refused(refusal_code(message.code), message.text)
            if not isinstance(message, Welcome):
                raise Refused(RefusalCode.MALFORMED, f"a {type(message).__name__} where a Welcome belongs")
            terms = _terms_decoder.decode(message.terms)
        except msgspec.DecodeError as error:
            raise Refused(RefusalCode.MALFORMED, f"the listener does not speak the link protocol: {error}") from None
        self._terms = message.terms
        if self._credentials is not None:
            spoken = _spoken("listener", self.hello, message.terms)
            if not self._credentials.verify(self._identity.role, spoken, message.proof):
                raise Refused(
                    RefusalCode.TOKEN,
                    "the token given here is not the one of the silo that answered: "
                    "give its cluster's token, or one derived from that, in SILO_CLUSTER_TOKEN",
                )
        if not PROTOCOL_MIN <= terms.protocol <= PROTOCOL_MAX:
            raise Refused(RefusalCode.PROTOCOL, f"the listener chose protocol {terms.protocol}, which was not offered")
        if wrong := _name_wrong(terms.name, Role.SILO, terms.silo):
            raise Refused(RefusalCode.MALFORMED, wrong)
        if self._expects is not None and terms.silo != self._expects:
            raise Refused(RefusalCode.INCARNATION, f"{terms.silo} answered where {self._expects} was dialled")
        features = tuple(feature for feature in terms.features if feature in self._identity.features)
        return Peer(terms.name, Role.SILO, terms.silo, terms.app_version, features), terms

    def proof(self, received: int) -> bytes:
        """The last word, once the answer was good.

        Args:
            received: the number of the last frame received in the session.
        """
        proof = b""
        if self._credentials is not None:
            spoken = _spoken("dialler", self.hello, self._terms, b"%d" % received)
            proof = self._credentials.proof(self._identity.role, spoken)
        return message_encoder.encode(Proof(received, proof))


class ListenerGreeting:
    """The listener's side of one greeting: takes the Hello, then `welcome`, then `on_proof`.

    Raises:
        Refused: what the Hello says will not do; `message()` is the answer to it.
    """

    def __init__(self, identity: Identity, credentials: Credentials | None, body: bytes) -> None:
        self._identity = identity
        self._credentials = credentials
        self._body = body
        self._terms = b""
        self.hello = hello = _decode(body, Hello)
        try:
            self._role = Role(hello.role)
        except ValueError:
            raise Refused(RefusalCode.MALFORMED, f"no such role: {hello.role[:PEER_NAME_MAX]!r}") from None
        self._check_protocol()
        self._check_who()
        self._check_token()
        features = tuple(feature for feature in identity.features if feature in hello.features)
        self.peer = Peer(hello.name, self._role, hello.silo, hello.app_version, features)

    def _check_protocol(self) -> None:
        hello = self.hello
        self._protocol = min(hello.protocol_max, PROTOCOL_MAX)
        if self._protocol < max(hello.protocol_min, PROTOCOL_MIN):
            raise Refused(
                RefusalCode.PROTOCOL,
                f"no common link protocol: {self._identity.name} speaks {PROTOCOL_MIN} to {PROTOCOL_MAX}, "
                f"{hello.name[:PEER_NAME_MAX]} speaks {hello.protocol_min} to {hello.protocol_max}",
            )

    def _check_who(self) -> None:
        identity, hello = self._identity, self.hello
        if hello.cluster != identity.cluster:
            raise Refused(
                RefusalCode.CLUSTER,
                f"{identity.name} belongs to cluster {identity.cluster!r}, not to {hello.cluster[:PEER_NAME_MAX]!r}",
            )
        if hello.expects is not None and hello.expects != identity.silo:
            raise Refused(RefusalCode.INCARNATION, f"here is {identity.name}, not {hello.expects}")
        if wrong := _name_wrong(hello.name, self._role, hello.silo):
            raise Refused(RefusalCode.MALFORMED, wrong)
        if hello.name == identity.name:
            raise Refused(RefusalCode.MALFORMED, f"{identity.name} dialled itself")
        if len(hello.session) != NONCE_BYTES or len(hello.challenge) != NONCE_BYTES:
            raise Refused(RefusalCode.MALFORMED, f"session nonces and challenges have {NONCE_BYTES} bytes")

    def _check_token(self) -> None:
        if self._credentials is not None and not self.hello.holds_token:
            raise Refused(
                RefusalCode.TOKEN,
                f"cluster {self._identity.cluster!r} asks for a token, and {self.hello.name} has none: "
                "give it the token of the cluster or of its role in SILO_CLUSTER_TOKEN",
            )
        if self._credentials is None and self.hello.holds_token:
            raise Refused(
                RefusalCode.TOKEN,
                f"{self._identity.name} runs without a cluster token, and {self.hello.name} has one: "
                "give both the same, or neither",
            )
        if self._credentials is not None and not self._credentials.holds(self._role):
            raise Refused(RefusalCode.TOKEN, f"{self._identity.name} holds no token that could verify a {self._role}")

    def welcome(self, *, challenge: bytes, session: bytes, received: int, direct: str = "", local: str = "") -> bytes:
        """The answer.

        Args:
            challenge: fresh for this greeting.
            session: the nonce of our session with this peer.
            received: the number of the last frame received in it.
            direct: where this silo's direct lane listens, for peers that may take it.
            local: its socket on this host, likewise.
        """
        identity = self._identity
        self._terms = message_encoder.encode(
            Terms(
                self._protocol,
                self.peer.features,
                identity.name,
                identity.silo,
                identity.app_version,
                challenge,
                session,
                received,
                direct if DIRECT in self.peer.features else "",
                local if DIRECT in self.peer.features else "",
            )
        )
        proof = b""
        if self._credentials is not None:
            proof = self._credentials.proof(self._role, _spoken("listener", self._body, self._terms))
        return message_encoder.encode(Welcome(self._terms, proof))

    def on_proof(self, body: bytes) -> Proof:
        """Check the dialler's last word. Raises Refused."""
        message = _decode(body, Proof)
        if self._credentials is not None:
            spoken = _spoken("dialler", self._body, self._terms, b"%d" % message.received)
            if not self._credentials.verify(self._role, spoken, message.proof):
                raise Refused(
                    RefusalCode.TOKEN, f"{self.hello.name} does not hold this cluster's token for the role {self._role}"
                )
        return message
