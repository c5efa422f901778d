"""Greetings: who may open a link, and what the other side is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.directory.errors import HandshakeRefused, InvalidSettings
from silo.messaging.greeting import (
    NONCE_BYTES,
    Credentials,
    DiallerGreeting,
    Hello,
    Identity,
    ListenerGreeting,
    Proof,
    RefusalCode,
    Refused,
    message_decoder,
    message_encoder,
)
from silo.messaging.permissions import Role, refused
from silo.wire.frames import Admitted, Cancel, Flag, Frame, Load, Reply, Request

ONE, TWO = SiloAddress("h:1", 11), SiloAddress("h:2", 22)
SILO_ONE = Identity(str(ONE), Role.SILO, "prod", ONE, "1.0", ("a", "b"))
SILO_TWO = Identity(str(TWO), Role.SILO, "prod", TWO, "1.1", ("b", "c"))
CLIENT = Identity("client-7", Role.CLIENT, "prod")
TOKEN = Credentials("secret")


def nonce(number: int) -> bytes:
    return number.to_bytes(NONCE_BYTES, "big")


def greet(
    dialler: Identity = SILO_ONE,
    listener: Identity = SILO_TWO,
    dialler_token: Credentials | None = TOKEN,
    listener_token: Credentials | None = TOKEN,
    *,
    expects: SiloAddress | None = None,
    change_hello: Callable[[bytes], bytes] = bytes,
    change_welcome: Callable[[bytes], bytes] = bytes,
    change_proof: Callable[[bytes], bytes] = bytes,
) -> tuple[DiallerGreeting, ListenerGreeting, Proof]:
    here = DiallerGreeting(dialler, dialler_token, challenge=nonce(1), session=nonce(2), expects=expects)
    there = ListenerGreeting(listener, listener_token, change_hello(here.hello))
    here.on_answer(change_welcome(there.welcome(challenge=nonce(3), session=nonce(4), received=5)))
    return here, there, there.on_proof(change_proof(here.proof(received=6)))


def refusal(**arguments: Any) -> Refused:
    with pytest.raises(HandshakeRefused) as caught:
        greet(**arguments)
    assert isinstance(caught.value, Refused)
    return caught.value


@pytest.mark.parametrize("token", [None, TOKEN])
@pytest.mark.parametrize("dialler", [SILO_ONE, CLIENT, Identity("root", Role.ADMIN, "prod")])
def test_peers_of_one_cluster_meet(dialler: Identity, token: Credentials | None) -> None:
    here = DiallerGreeting(dialler, token, challenge=nonce(1), session=nonce(2))
    there = ListenerGreeting(SILO_TWO, token, here.hello)
    peer, terms = here.on_answer(there.welcome(challenge=nonce(3), session=nonce(4), received=5))
    assert there.on_proof(here.proof(received=6)).received == 6
    assert (peer.name, peer.role, peer.silo, peer.app_version) == (str(TWO), Role.SILO, TWO, "1.1")
    assert (there.peer.name, there.peer.role, there.peer.silo) == (dialler.name, dialler.role, dialler.silo)
    assert (terms.session, terms.received, terms.protocol) == (nonce(4), 5, 1)
    assert there.hello.session == nonce(2)


def test_features_are_those_that_both_have() -> None:
    _, there, _ = greet()
    assert there.peer.features == ("b",)


def test_a_client_proves_its_role_with_the_key_of_its_role_alone() -> None:
    greet(CLIENT, dialler_token=Credentials(TOKEN.derive(Role.CLIENT)))


def test_a_clients_key_proves_no_other_role() -> None:
    key = Credentials(TOKEN.derive(Role.CLIENT))
    refused = refusal(dialler_token=key)
    assert refused.code is RefusalCode.TOKEN
    assert str(refused) == "a token of the role client does not prove the role silo: give the cluster token"
    with pytest.raises(Refused, match="or one that `silo token --role admin` makes"):
        key.demand(Role.ADMIN)
    with pytest.raises(InvalidSettings):
        key.derive(Role.ADMIN)
    forged = Credentials("silo:" + TOKEN.derive(Role.CLIENT).partition(":")[2])
    assert refusal(dialler_token=forged).code is RefusalCode.TOKEN


def test_another_clusters_token_is_refused_by_either_side() -> None:
    assert "not the one of the silo that answered: give" in str(refusal(dialler_token=Credentials("other")))
    here = DiallerGreeting(CLIENT, Credentials("other"), challenge=nonce(1), session=nonce(2))
    there = ListenerGreeting(SILO_TWO, TOKEN, here.hello)
    there.welcome(challenge=nonce(3), session=nonce(4), received=0)
    with pytest.raises(Refused, match="client-7 does not hold"):
        there.on_proof(message_encoder.encode(Proof(0, b"guess")))


def test_a_token_on_one_side_only_is_refused_and_says_what_to_do() -> None:
    assert "SILO_CLUSTER_TOKEN" in str(refusal(dialler_token=None))
    assert "runs without a cluster token" in str(refusal(listener_token=None))


def test_a_token_does_not_show_in_a_representation() -> None:
    assert "secret" not in repr(TOKEN)
    assert repr(Credentials(TOKEN.derive(Role.CLIENT))) == "Credentials(<client token>)"


def test_another_cluster_is_refused_by_name() -> None:
    refused_ = refusal(dialler=Identity("c", Role.CLIENT, "test"))
    assert refused_.code is RefusalCode.CLUSTER
    assert "'prod'" in str(refused_)
    assert "'test'" in str(refused_)


def test_another_incarnation_than_the_one_dialled_is_refused() -> None:
    assert refusal(expects=SiloAddress("h:2", 21)).code is RefusalCode.INCARNATION


def test_no_common_protocol_names_both_ranges() -> None:
    def from_the_future(body: bytes) -> bytes:
        hello = message_decoder.decode(body)
        assert isinstance(hello, Hello)
        hello.protocol_min, hello.protocol_max = 7, 9
        return message_encoder.encode(hello)

    refused_ = refusal(change_hello=from_the_future, dialler_token=None, listener_token=None)
    assert refused_.code is RefusalCode.PROTOCOL
    assert "speaks 1 to 1" in str(refused_)
    assert "speaks 7 to 9" in str(refused_)


def test_a_newer_peer_that_also_speaks_ours_is_welcome_with_its_surplus_fields() -> None:
    def newer(body: bytes) -> bytes:
        fields = msgspec.msgpack.decode(body)
        fields[2] = 9
        return msgspec.msgpack.encode([*fields, "surplus"])

    greet(change_hello=newer, dialler_token=None, listener_token=None)


def test_a_greeting_that_was_changed_on_the_way_is_refused() -> None:
    def other_session(body: bytes) -> bytes:
        return body.replace(nonce(2), nonce(9))

    def other_terms(body: bytes) -> bytes:
        return body.replace(nonce(4), nonce(9))

    def other_received(body: bytes) -> bytes:
        proof = message_decoder.decode(body)
        assert isinstance(proof, Proof)
        return message_encoder.encode(Proof(7, proof.proof))

    assert refusal(change_hello=other_session).code is RefusalCode.TOKEN
    assert refusal(change_welcome=other_terms).code is RefusalCode.TOKEN
    assert refusal(change_proof=other_received).code is RefusalCode.TOKEN


def test_a_proof_is_worth_nothing_in_another_greeting() -> None:
    here, _, _ = greet()
    old = here.proof(received=6)
    again = DiallerGreeting(SILO_ONE, TOKEN, challenge=nonce(1), session=nonce(2))
    there = ListenerGreeting(SILO_TWO, TOKEN, again.hello)
    there.welcome(challenge=nonce(33), session=nonce(4), received=5)
    with pytest.raises(Refused):
        there.on_proof(old)


def test_nobody_may_take_a_silos_name_without_its_role() -> None:
    with pytest.raises(InvalidSettings):
        Identity(str(ONE), Role.CLIENT, "prod")
    with pytest.raises(InvalidSettings):
        Identity("somebody", Role.SILO, "prod", ONE)


def test_a_silo_does_not_greet_itself() -> None:
    assert "itself" in str(refusal(listener=SILO_ONE))


@given(st.binary(max_size=200))
def test_bytes_that_are_no_greeting_are_refused(body: bytes) -> None:
    with pytest.raises(Refused) as caught:
        ListenerGreeting(SILO_TWO, TOKEN, body)
    assert caught.value.code is RefusalCode.MALFORMED
    here = DiallerGreeting(SILO_ONE, TOKEN, challenge=nonce(1), session=nonce(2))
    with pytest.raises(Refused):
        here.on_answer(body)


def test_a_refusal_reaches_the_dialler_with_its_reason() -> None:
    here = DiallerGreeting(SILO_ONE, None, challenge=nonce(1), session=nonce(2))
    with pytest.raises(Refused) as at_listener:
        ListenerGreeting(SILO_TWO, TOKEN, here.hello)
    with pytest.raises(Refused) as at_dialler:
        here.on_answer(at_listener.value.message())
    assert str(at_dialler.value) == str(at_listener.value)
    assert at_dialler.value.code is RefusalCode.TOKEN


GRAIN = GrainId("k", "g")
CALL = Request(1, GRAIN, "m", b"", 1, None, "c")
FRAMES: list[tuple[Frame, set[Role]]] = [
    (CALL, {Role.CLIENT, Role.ADMIN}),
    (Cancel(1, GRAIN), {Role.CLIENT, Role.ADMIN}),
    (msgspec.structs.replace(CALL, flags=Flag.ONE_WAY), {Role.CLIENT, Role.ADMIN}),
    (msgspec.structs.replace(CALL, flags=Flag.CONTROL), {Role.ADMIN}),
    (msgspec.structs.replace(CALL, flags=Flag.PLACED), set()),
    (msgspec.structs.replace(CALL, flags=Flag.FORWARDED), set()),
    (msgspec.structs.replace(CALL, codec=2), set()),
    (msgspec.structs.replace(CALL, reply_to=ONE), set()),
    (msgspec.structs.replace(CALL, expected=Entry(GRAIN, ONE, "a", 1)), set()),
    (Cancel(1, GRAIN, ONE), set()),
    (Reply(1, 0), set()),
    (Admitted(1, GRAIN), set()),
    (Load(1), set()),
]


@pytest.mark.parametrize(("frame", "allowed"), FRAMES)
def test_frames_are_refused_by_role(frame: Frame, allowed: set[Role]) -> None:
    for role in Role:
        assert (refused(role, frame) == "") == (role is Role.SILO or role in allowed)
