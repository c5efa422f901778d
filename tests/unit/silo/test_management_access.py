"""Who may manage a silo: one proof, for one request, by an admin."""

from __future__ import annotations

import pytest

from silo import PermissionRefused
from silo.management_access import (
    CHALLENGE_TIMEOUT_S,
    CHALLENGES_MAX,
    NONCE_KEY,
    PROOF_KEY,
    ROLE_KEY,
    Challenges,
    Unproved,
    check,
    prove,
    spoken,
)
from silo.messaging.greeting import Credentials
from silo.messaging.permissions import Role

CLUSTER = Credentials("the token of the cluster")
NONCE = b"n" * 16
Metadata = dict[str, str | bytes]


def proof(
    credentials: Credentials = CLUSTER, *, nonce: bytes = NONCE, method: str = "Drain", request: bytes = b"one"
) -> Metadata:
    return dict(prove(credentials, nonce, method, request))


@pytest.fixture
def challenges() -> Challenges:
    challenges = Challenges()
    challenges.give(NONCE, 0.0)
    return challenges


@pytest.mark.parametrize("token", ["the token of the cluster", CLUSTER.derive(Role.ADMIN)])
def test_the_cluster_token_and_one_for_admins_open(challenges: Challenges, token: str) -> None:
    check(CLUSTER, challenges, proof(Credentials(token)), "Drain", b"one", 1.0)


def test_a_challenge_is_good_for_one_request(challenges: Challenges) -> None:
    check(CLUSTER, challenges, proof(), "Drain", b"one", 1.0)
    with pytest.raises(Unproved, match="used before"):
        check(CLUSTER, challenges, proof(), "Drain", b"one", 1.0)


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({}, "asks for a token"),
        (proof() | {NONCE_KEY: "text"}, "asks for a token"),
        (proof(Credentials("another token")), "the proof is wrong"),
        (proof(nonce=b"m" * 16), "not given here"),
        (proof(method="Status"), "the proof is wrong"),
        (proof(request=b"two"), "the proof is wrong"),
        (proof() | {ROLE_KEY: "client"}, "the proof is wrong"),
        (proof() | {ROLE_KEY: "emperor"}, "the proof is wrong"),
        (proof() | {PROOF_KEY: b""}, "the proof is wrong"),
    ],
)
def test_a_proof_is_of_this_cluster_this_challenge_this_method_and_this_request(
    challenges: Challenges, metadata: Metadata, why: str
) -> None:
    with pytest.raises(Unproved, match=why):
        check(CLUSTER, challenges, metadata, "Drain", b"one", 1.0)


def test_who_proves_to_be_a_client_is_known_and_refused(challenges: Challenges) -> None:
    client = Credentials(CLUSTER.derive(Role.CLIENT))
    metadata: Metadata = {
        ROLE_KEY: "client",
        NONCE_KEY: NONCE,
        PROOF_KEY: client.proof(Role.CLIENT, spoken(Role.CLIENT, NONCE, "Drain", b"one")),
    }
    with pytest.raises(PermissionRefused, match="takes the role admin"):
        check(CLUSTER, challenges, metadata, "Drain", b"one", 1.0)


def test_a_clients_token_does_not_even_ask() -> None:
    with pytest.raises(PermissionRefused, match="takes the role admin"):
        proof(Credentials(CLUSTER.derive(Role.CLIENT)))


def test_a_challenge_is_answered_in_time_or_never(challenges: Challenges) -> None:
    assert not challenges.take(NONCE, CHALLENGE_TIMEOUT_S)


def test_challenges_are_bounded_and_the_oldest_gives_way() -> None:
    challenges = Challenges()
    for number in range(CHALLENGES_MAX + 1):
        challenges.give(b"%d" % number, 0.0)
    assert len(challenges) == CHALLENGES_MAX
    assert not challenges.take(b"0", 1.0)
    assert challenges.take(b"1", 1.0)


def test_challenges_that_nobody_answered_are_forgotten() -> None:
    challenges = Challenges()
    for number in range(10):
        challenges.give(b"%d" % number, 0.0)
    challenges.give(b"later", CHALLENGE_TIMEOUT_S)
    assert len(challenges) == 1
