"""Who may manage a silo: proofs over one-time challenges. Plain code without I/O; time and nonces are arguments."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Final

from silo.directory.errors import HandshakeRefused, PermissionRefused
from silo.messaging.greeting import Credentials
from silo.messaging.permissions import Role

NONCE_BYTES: Final = 16
CHALLENGES_MAX: Final = 1000
"""Challenges that one silo remembers; the oldest gives way to one more."""
CHALLENGE_TIMEOUT_S: Final = 60.0
"""How long a challenge may be answered."""

ROLE_KEY: Final = "silo-role"
NONCE_KEY: Final = "silo-nonce-bin"
PROOF_KEY: Final = "silo-proof-bin"
"""The metadata of a call that proves something."""


class Challenges:
    """The nonces that one silo has given out and nobody has used."""

    def __init__(self) -> None:
        self._expiry: OrderedDict[bytes, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._expiry)

    def give(self, nonce: bytes, now: float) -> bytes:
        """Remember a nonce, which must not be guessable."""
        while self._expiry and (len(self._expiry) >= CHALLENGES_MAX or next(iter(self._expiry.values())) <= now):
            self._expiry.popitem(last=False)
        self._expiry[nonce] = now + CHALLENGE_TIMEOUT_S
        return nonce

    def take(self, nonce: bytes, now: float) -> bool:
        """Use a nonce up; False where it was not given, was used before, or is too old."""
        expiry = self._expiry.pop(nonce, None)
        return expiry is not None and now < expiry


def spoken(role: Role, nonce: bytes, method: str, request: bytes) -> bytes:
    """What a proof is made over: it is good for this one request only."""
    parts = (str(role).encode(), nonce, method.encode(), request)
    return b"silo management 1 " + b"".join(hashlib.sha256(part).digest() for part in parts)


def prove(credentials: Credentials, nonce: bytes, method: str, request: bytes) -> tuple[tuple[str, str | bytes], ...]:
    """The metadata that proves the role `admin` for one request; raises PermissionRefused where it cannot be proved."""
    try:
        proof = credentials.proof(Role.ADMIN, spoken(Role.ADMIN, nonce, method, request))
    except HandshakeRefused as error:
        raise PermissionRefused(f"{method} takes the role admin: {error}") from None
    return ((ROLE_KEY, str(Role.ADMIN)), (NONCE_KEY, nonce), (PROOF_KEY, proof))


class Unproved(Exception):
    """A call that proves nothing; the message says what is wrong."""


def check(
    credentials: Credentials,
    challenges: Challenges,
    metadata: dict[str, str | bytes],
    method: str,
    request: bytes,
    now: float,
) -> None:
    """Let a call of an admin pass.

    Raises:
        Unproved: who calls has not proved to be anyone.
        PermissionRefused: who calls has, and it is not enough.
    """
    role, nonce, proof = metadata.get(ROLE_KEY), metadata.get(NONCE_KEY), metadata.get(PROOF_KEY)
    if not (isinstance(role, str) and isinstance(nonce, bytes) and isinstance(proof, bytes)):
        raise Unproved("this cluster asks for a token: give that of the cluster or of the role admin")
    if not challenges.take(nonce, now):
        raise Unproved("the challenge was not given here, was used before, or is too old")
    try:
        claimed = Role(role)
        is_proved = credentials.verify(claimed, spoken(claimed, nonce, method, request), proof)
    except (ValueError, HandshakeRefused):
        is_proved = False
    if not is_proved:
        raise Unproved("the proof is wrong: is it the token of this cluster?")
    if role != Role.ADMIN:
        raise PermissionRefused(f"{method} takes the role admin, not {role}")
