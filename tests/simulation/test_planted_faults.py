"""Faults planted in the runtime are found by the simulation: else its silence would mean nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import pytest

from silo.activation.activation import Activation
from silo.directory.addresses import Entry
from silo.directory.contract import Registration
from silo.directory.memory_directory import DirectoryRows
from silo.directory.turn_right import LeasedRight
from silo.messaging.session import Leftovers, Session
from silo.routing.call import Call
from silo.soft_state import SoftStatePart
from silo.testing.logs import quiet
from silo.wire.frames import Batch, Frame
from tests.simulation.profiles import LONG, PROFILES, SHORT, Size
from tests.simulation.scenario import run_seed

SEEDS_MAX = 100
"""Seeds within which each planted fault must be found."""
Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with quiet():
        yield


def never_fenced(patch: pytest.MonkeyPatch) -> None:
    """A silo that lost its lease goes on."""

    def is_held(right: LeasedRight) -> bool:
        return not right.is_resigned

    patch.setattr(LeasedRight, "is_held", is_held)


def last_writer_wins(patch: pytest.MonkeyPatch) -> None:
    """The directory does not compare before it sets."""
    register = DirectoryRows.register

    def set_always(rows: DirectoryRows, asked: Registration) -> Entry | None:
        return register(rows, Registration(asked.grain, asked.silo, asked.activation, rows.look_up(asked.grain)))

    patch.setattr(DirectoryRows, "register", set_always)


def resent_and_taken_twice(patch: pytest.MonkeyPatch) -> None:
    """A link sends again what has arrived, and hands on whatever it reads."""
    receive, connected = Session.receive, Session.connected

    def resend_all(session: Session, peer_nonce: bytes, _peer_received: int) -> None:
        connected(session, peer_nonce, 0)

    def receive_all(session: Session, batch: Batch, size: int, now: float) -> Sequence[Frame]:
        session.received = min(session.received, batch.first - 1)
        return receive(session, batch, size, now)

    patch.setattr(Session, "receive", receive_all)
    patch.setattr(Session, "connected", resend_all)


def unknown_taken_for_unsent(patch: pytest.MonkeyPatch) -> None:
    """A link that ends says of all it has written that it was never sent, so that it is sent again."""
    end = Session.end

    def end_wrongly(session: Session) -> Leftovers:
        left = end(session)
        return Leftovers([*left.unsent, *left.unknown], [])

    patch.setattr(Session, "end", end_wrongly)


def state_left_behind(patch: pytest.MonkeyPatch) -> None:
    """A move forgets to put soft state back, once in a while."""
    rehydrate, chance = SoftStatePart.rehydrate, random.Random(1)

    def forget(part: SoftStatePart, *arguments: object) -> None:
        if chance.random() < 0.9:
            rehydrate(part, *arguments)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - passed on

    patch.setattr(SoftStatePart, "rehydrate", forget)


def queue_turned_around(patch: pytest.MonkeyPatch) -> None:
    """A move forwards the calls that it held in the wrong order."""
    abandon = Activation.abandon

    def turned(activation: Activation) -> list[Call]:
        return abandon(activation)[::-1]

    patch.setattr(Activation, "abandon", turned)


def queue_dropped(patch: pytest.MonkeyPatch) -> None:
    """A move forgets the calls that it held."""
    abandon = Activation.abandon

    def dropped(activation: Activation) -> list[Call]:
        return abandon(activation)[:0]

    patch.setattr(Activation, "abandon", dropped)


PLANTED: tuple[tuple[Plant, str, Size, str], ...] = (
    (never_fenced, "pauses", SHORT, "one activation"),
    (last_writer_wins, "planned", SHORT, "one activation"),
    (resent_and_taken_twice, "unnoticed", SHORT, "executed once"),
    (resent_and_taken_twice, "lanes", SHORT, "executed once"),
    (unknown_taken_for_unsent, "partitions", LONG, "executed once"),
    (state_left_behind, "planned", SHORT, "state kept"),
    (queue_turned_around, "moves", SHORT, "order kept"),
    (queue_dropped, "moves", SHORT, "call answered"),
)


@pytest.mark.parametrize(
    ("plant", "profile", "size", "rule"),
    PLANTED,
    ids=[f"{plant.__name__} in {profile}" for plant, profile, _, _ in PLANTED],
)
def test_a_planted_fault_is_found(
    plant: Plant, profile: str, size: Size, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weather = next(each for each in PROFILES if each.name == profile)
    with monkeypatch.context() as patch:
        plant(patch)
        found: set[str] = set()
        for seed in range(SEEDS_MAX):
            found |= {violation.rule for violation in run_seed(seed, weather, size).violations}
            if rule in found:
                return
    pytest.fail(f"{SEEDS_MAX} seeds did not find it, but only {sorted(found)}")
