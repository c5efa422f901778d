"""All that can befall one grain while the store of directory and members loses rows: states, and the steps from each.

Silos register the grain, move it, are fenced, declared dead, or crash; the store is wiped, or comes back as it was
earlier. Requests and answers are under way for as long as anything may happen meanwhile, or are lost. Each step of a
silo is taken by the real core (`directory/settling.py`), each step of the store by the real rows, so that what is
walked here is what the product runs.

Of the members it is modelled what matters for who must be heard: a table that was lost is made again by those who join
again, and brings who was dead only where somebody who knows it is back. A silo that is new and comes first begins
one that knows of nobody, and waits for those who may still serve, until one of them is back or none can any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Literal

import msgspec

from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.directory.contract import Claim, Inquiry, Registration, Standing
from silo.directory.directory_scripts import bucket_of
from silo.directory.errors import DirectoryLifeOver
from silo.directory.memory_directory import DirectoryRows
from silo.directory.settling import (
    AwaitRegistrations,
    BucketSettling,
    Claimed,
    Doubted,
    Drained,
    Event,
    Phase,
    Seen,
    SendClaim,
)
from tests.exploration.explore import Part

GRAIN = GrainId("place", "lobby")
BUCKET = bucket_of(str(GRAIN))
SILOS = tuple(SiloAddress(f"silo-{number}:1", 1) for number in range(4))
NEW = "new-"
"""Before the number of a silo: the life that the claim begins which it sends now, should it begin one."""
LIVES = tuple(f"life-{number}" for number in range(1, 100))
"""The names that lives have, in the order in which they come up."""
SILOS_KEPT_MAX = 200_000
"""Of how many silos it is remembered which lives they name, and what they are once these have other names."""
Right = Literal["held", "fenced", "withheld", "told dead"]


class Store(Part, frozen=True, cache_hash=True, gc=False):
    """The bucket, as the store has it."""

    life: str = ""
    is_settled: bool = False
    said: frozenset[int] = frozenset()
    row: Entry | None = None
    counter: int = 0


class Knowledge(Part, frozen=True, cache_hash=True, gc=False):
    """The core of one silo."""

    phase: Phase = Phase.UNKNOWN
    life: str = ""
    over: str = ""
    again: Doubted | None = None


class Request(Part, frozen=True, cache_hash=True, gc=False):
    """A request of one silo, under way to the store, or its answer on the way back."""

    asked: Registration | Claim | Inquiry
    answer: Entry | Standing | Literal["over", "gone", ""] = ""
    """Empty until it was carried out."""


class Silo(Part, frozen=True, cache_hash=True, gc=False):
    """One silo, as far as it concerns the grain."""

    knows: Knowledge = Knowledge()
    entry: Entry | None = None
    """By which it serves the grain, or did until it was frozen."""
    is_open: bool = False
    wants: Entry | None = None
    """The entry of a move to here, whose registration is repeated until it is answered."""
    right: Right = "held"
    runs: bool = True
    has_joined: bool = True
    """Whether it is in the table that is now."""
    is_new: bool = False
    """Whether it has never been in any: nobody brings its row, and nobody waits for it."""
    dead: frozenset[int] = frozenset()
    """Whom it knows to be dead."""
    registration: Request | None = None
    claim: Request | None = None
    floor: int = 0
    """The highest epoch of which it has heard."""
    inquiry: Request | None = None
    checked: str = ""
    """The life in which it has claimed once more, before it goes on without having had the right."""


class State(Part, frozen=True, cache_hash=True, gc=False):
    """Everything, right now."""

    store: Store
    silos: tuple[Silo, ...]
    declared: frozenset[int] = frozenset()
    """Whom the table that is now calls dead."""
    earlier: Literal["known", "awaited", "given up"] = "known"
    """What the table that is now says of those who were in the one before, as long as none of them is back."""
    kept: Store | None = None
    late: tuple[Claim, ...] = ()
    """Claims of which nobody hears any more, and which may yet be carried out, whatever has become of who sent them."""
    left_behind: int = 0
    ends: int = 0
    wipes: int = 0
    set_backs: int = 0
    crashes: int = 0
    fences: int = 0
    moves: int = 0
    lost: int = 0
    given_up: bool = False
    """Whether a silo that held the right all the time had to give the grain up."""


@dataclass(frozen=True)
class Bounds:
    """How large the world is, and how often what may go wrong in it."""

    name: str
    silos: int = 2
    wipes: int = 0
    set_backs: int = 0
    crashes: int = 0
    fences: int = 0
    moves: int = 0
    answers_lost: int = 0
    late: int = 0
    """How many claims stay under way though their silo has sent them once more, or has claimed anew."""
    ends: int = 0
    """How often the grain is deactivated."""
    registrations: int = 3
    """How many epochs are given at most."""
    epoch: int = 1
    """By which 0 serves the grain. Higher ones than those that are given anew in a wiped store outdo them, whoever has
    died since: there it is only looked whether two serve, and not whether one has had to give the grain up."""
    newcomers: int = 0
    """How many of the silos, the last ones, have never been in a table."""
    begins: Literal["empty", "open", "begun twice", "died", "moved", "replaced", "registered", "wiped"] = "empty"
    """With the grain nowhere; open on 0; so, and the claim with which 0 began the life is under way once more; nowhere
    in a life that has begun, while a claim is under way from 0, where it was and which is dead; open on 1, and frozen
    on 0 which does not know; taken over by 1 from 0, which is fenced and dead, and whoever knew that is gone;
    registered by 0, which has not heard of it yet; or open on 0, in a store that has been wiped."""


@dataclass(frozen=True)
class Rules:
    """The rule as it is; each of these taken away is a planted fault."""

    rows: type[DirectoryRows] = DirectoryRows
    core: type[BucketSettling] = BucketSettling
    names_life: bool = True
    """A registration names the life in which it counts."""
    drains: bool = True
    """A claim waits for registrations that are out."""
    drops_late_answers: bool = True
    """The answer to a registration counts while its life is the one that is known."""
    learns: bool = True
    """A silo asks for the life first, and what it serves then counts in that life and in no other."""
    hears_all: bool = True
    """A life is settled once all members have claimed."""
    awaits_earlier: bool = True
    """Nor while it may be that silos of a lost table serve of which the next one knows nothing."""
    awaits_their_end: bool = True
    """They are given up when none of them holds the right any more."""
    ends_the_given_up: bool = True
    """One that comes back after that is dead."""
    awaits_recovery: bool = True
    """Nothing is settled while silos of the lost table are missing from the next."""
    withholds: bool = True
    """A silo without the right, whose table was lost, starts nothing before the directory has judged."""
    checks: bool = True
    """It claims once more when all others have."""


class World:
    """The steps of one configuration."""

    def __init__(self, bounds: Bounds, rules: Rules | None = None) -> None:
        self._of = bounds
        self._rules = rules or Rules()
        self._told = cache(self._tell)
        self._carried_out = cache(self._carry_out)

    def first(self) -> State:
        """A settled bucket."""
        everybody = frozenset(range(self._of.silos))
        silo = Silo(Knowledge(Phase.SETTLED, "life-1"))
        state = State(Store("life-1", True, everybody), (silo,) * self._of.silos)
        if self._of.begins == "empty":
            return state
        if self._of.begins == "registered":
            asked = self._asked(state, 0, None)
            store, answer = self._carried_out(state.store, asked)
            return _with(state.but(store=store), 0, registration=Request(asked, answer))
        first, second = Entry(GRAIN, SILOS[0], "on-0", 1), Entry(GRAIN, SILOS[1], "on-1", 2)
        if self._of.begins == "wiped":
            old = self._of.silos - self._of.newcomers
            new = Silo(has_joined=False, is_new=True)
            silos = (*(each.but(has_joined=False) for each in state.silos[:old]), *(new,) * self._of.newcomers)
            entry = Entry(GRAIN, SILOS[0], "on-0", self._of.epoch)
            return _with(state.but(store=Store(), silos=silos), 0, entry=entry, is_open=True, floor=self._of.epoch)
        if self._of.begins in ("open", "begun twice"):
            state = state.but(store=state.store.but(row=first, counter=1))
            if self._of.begins == "begun twice":
                late = Claim(BUCKET, SILOS[0], new_life="life-1", whole=not self._rules.learns)
                state = state.but(late=(late,))
            return _with(state, 0, entry=first, is_open=True, floor=1)
        if self._of.begins == "died":
            served, life = (Entry(GRAIN, SILOS[0], "on-0", 2),), "life-1" if self._rules.learns else ""
            late = Claim(BUCKET, SILOS[0], served, life, new_life="life-2")
            state = _with(state, 0, runs=False).but(store=Store("life-1"), declared=frozenset({0}), late=(late,))
            return _renamed(self._send_claim(_with(state, 1, knows=Knowledge(Phase.CLAIMING)), 1, ""))
        state = _with(state, 1, entry=second, is_open=True, floor=2).but(store=state.store.but(row=second, counter=2))
        if self._of.begins == "moved":
            return _with(state, 0, entry=first, floor=1)
        state = _with(state, 0, entry=first, is_open=True, right="fenced", floor=1)
        return state.but(declared=frozenset({0}))

    def violated(self, state: State) -> bool:
        """Whether two may start turns of the grain, or one lost it for nothing."""
        serving = sum(silo.is_open and silo.right == "held" and silo.runs for silo in state.silos)
        return serving > 1 or (state.given_up and self._of.epoch == 1)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """What may happen next, and what comes of it. Lives are named by when they first come up."""
        for label, after in self._steps(state):
            yield label, _renamed(after)

    def _steps(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._steps_of_store(state)
        for place, claim in enumerate(state.late):
            others = state.late[:place] + state.late[place + 1 :]
            store, _ = self._carried_out(state.store, claim)
            what = "claims late" if claim.whole else "asks late for the life"
            yield f"{SILOS.index(claim.silo)} {what}", state.but(store=store, late=others)
        for number, silo in enumerate(state.silos):
            for request in ("registration", "claim", "inquiry"):
                yield from self._under_way(state, number, request)
            yield from self._left_behind(state, number, silo)
            if silo.runs and silo.right != "told dead":
                yield from self._registers(state, number, silo)
                yield from self._asks(state, number, silo)
                yield from self._membership(state, number, silo)
            if silo.runs and state.crashes < self._of.crashes:
                yield f"{number} crashes", _with(state.but(crashes=state.crashes + 1), number, runs=False)
            known = silo.has_joined or (state.earlier == "known" and not silo.is_new)
            if known and number not in state.declared and (silo.right == "fenced" or not silo.runs):
                yield f"{number} is declared dead", state.but(declared=state.declared | {number})

    # ---- the store

    def _steps_of_store(self, state: State) -> Iterator[tuple[str, State]]:
        if state.wipes < self._of.wipes:
            yield "the store is wiped", self._lost(state.but(store=Store(), wipes=state.wipes + 1))
        if state.set_backs < self._of.set_backs and state.kept is None:
            yield "the store is copied", state.but(kept=state.store)
        if state.kept is not None and state.set_backs < self._of.set_backs:
            store = self._restarted(state.kept)
            yield (
                "the store is set back",
                self._lost(state.but(store=store, set_backs=state.set_backs + 1, kept=None)),
            )

    def _lost(self, state: State) -> State:
        """The table is lost with the rows: it is made again by those who join again."""
        silos = tuple(silo.but(has_joined=False) for silo in state.silos)
        return state.but(silos=silos, declared=frozenset())

    def _rows(self, store: Store) -> DirectoryRows:
        rows = self._rules.rows()
        head = rows._heads[BUCKET]  # pyright: ignore[reportPrivateUsage] - made to stand in the state
        head.life, head.is_settled, head.counter = store.life, store.is_settled, store.counter
        head.said = {SILOS[number] for number in store.said}
        if store.row is not None:
            rows._rows[GRAIN] = store.row  # pyright: ignore[reportPrivateUsage] - likewise
        return rows

    def _read(self, rows: DirectoryRows) -> Store:
        head = rows._heads[BUCKET]  # pyright: ignore[reportPrivateUsage] - read again
        said = frozenset(SILOS.index(silo) for silo in head.said)
        return Store(head.life, head.is_settled, said, rows.look_up(GRAIN), min(head.counter, 9))

    def _restarted(self, store: Store) -> Store:
        rows = self._rows(store.but(counter=0))
        rows.restart()
        return self._read(rows).but(counter=store.counter)

    def _carry_out(
        self, store: Store, asked: Registration | Claim | Inquiry
    ) -> tuple[Store, Entry | Standing | Literal["over", "gone"]]:
        rows = self._rows(store)
        answer: Entry | Standing | Literal["over", "gone"]
        match asked:
            case Registration():
                try:
                    answer = rows.register(asked) or "gone"
                except DirectoryLifeOver:
                    answer = "over"
            case Claim():
                answer = rows.claim(asked)
            case Inquiry():
                answer = rows.inquire(asked)
        return self._read(rows), answer

    def _under_way(self, state: State, number: int, which: str) -> Iterator[tuple[str, State]]:
        silo = state.silos[number]
        request: Request | None = getattr(silo, which)
        if request is None:
            return
        if request.answer == "":
            store, answer = self._carried_out(state.store, request.asked)
            asked = request.asked
            if isinstance(asked, Claim):  # the name that it brought is the store's by now, or nobody's
                asked = msgspec.structs.replace(asked, new_life="")
            after = _with(state.but(store=store), number, **{which: Request(asked, answer)})
            yield f"the {which} of {number} is carried out", after
        elif silo.runs:
            yield f"the {which} of {number} is answered", self._answered(state, number, request)
        if silo.runs and state.lost < self._of.answers_lost:
            yield (
                f"the {which} of {number} fails, or its answer is lost",
                self._failed(state.but(lost=state.lost + 1), number, request),
            )

    def _left_behind(self, state: State, number: int, silo: Silo) -> Iterator[tuple[str, State]]:
        """A claim that seems to be lost: it is sent once more as it is, or the silo gives it up and claims anew."""
        request = silo.claim
        if request is None or request.answer != "" or state.left_behind >= self._of.late:
            return
        assert isinstance(request.asked, Claim)
        after = state.but(late=(*state.late, request.asked), left_behind=state.left_behind + 1)
        if silo.runs:
            yield f"the claim of {number} goes out twice", after
            yield f"{number} gives its claim up, and claims anew", self._failed(after, number, request)

    # ---- a silo that registers, or is moved to

    def _registers(self, state: State, number: int, silo: Silo) -> Iterator[tuple[str, State]]:
        knows, row = silo.knows, state.store.row
        if knows.phase is not Phase.SETTLED or silo.registration is not None or silo.right != "held":
            return
        if state.store.counter >= self._of.registrations:
            return
        if silo.wants is not None:
            yield f"{number} registers for a move", self._register(state, number, silo.wants)
        elif silo.entry is not None and not silo.is_open and silo.entry.silo == SILOS[number]:
            yield f"{number} fences what it has moved", self._register(state, number, silo.entry)
        elif silo.entry is None:
            owner = SILOS.index(row.silo) if row is not None else number
            if owner in (number, *state.declared):
                known = _with(state, number, dead=silo.dead | ({owner} - {number}))
                yield f"{number} registers", self._register(known, number, row)
        if silo.is_open and state.moves < self._of.moves:
            yield from self._moves(state, number, silo)
        if silo.is_open and state.ends < self._of.ends:
            store = state.store.but(row=None) if row == silo.entry else state.store
            after = state.but(store=store, ends=state.ends + 1)
            yield f"{number} deactivates the grain", _with(after, number, entry=None, is_open=False)

    def _register(self, state: State, number: int, expected: Entry | None) -> State:
        return _with(state, number, registration=Request(self._asked(state, number, expected)))

    def _asked(self, state: State, number: int, expected: Entry | None) -> Registration:
        life = state.silos[number].knows.life if self._rules.names_life else ""
        floor = max(expected.epoch if expected is not None else 0, state.silos[number].floor)
        return Registration(GRAIN, SILOS[number], f"on-{number}-{floor}", expected, floor, life)

    def _moves(self, state: State, number: int, silo: Silo) -> Iterator[tuple[str, State]]:
        for target, other in enumerate(state.silos):
            if target != number and other.runs and other.entry is None and other.wants is None:
                after = _with(state.but(moves=state.moves + 1), number, is_open=False)
                yield f"{number} offers the grain to {target}", _with(after, target, wants=silo.entry)

    def _answered(self, state: State, number: int, request: Request) -> State:
        match request.asked, request.answer:
            case Registration() as asked, answer:
                return self._registered(state, number, asked, answer)
            case Claim() as asked, Standing() as standing:
                return self._claimed(state, number, asked, standing)
            case _, Standing() as standing:
                after = _with(state, number, inquiry=None)
                return self._on(after, number, Seen(standing.life, standing.is_settled))
            case _:
                raise AssertionError(f"no answer to {request}")

    def _registered(self, state: State, number: int, asked: Registration, answer: object) -> State:
        silo = state.silos[number]
        state = _with(state, number, registration=None)
        counts = (silo.knows.phase is Phase.SETTLED and silo.knows.life == asked.life) or not (
            self._rules.drops_late_answers and self._rules.names_life
        )
        if counts and isinstance(answer, Entry):
            state = _with(state, number, floor=max(silo.floor, answer.epoch))
        if counts and isinstance(answer, Entry) and silo.right == "held":
            if answer.silo == SILOS[number] and answer.activation == asked.activation:
                state = _with(state, number, entry=answer, is_open=True, wants=None)
            else:  # somebody else has it: a source yields, a target discards, a newcomer calls there
                state = _with(state, number, entry=None, is_open=False, wants=None)
        elif counts and answer == "gone":
            state = _with(state, number, wants=None)
        elif answer == "over":
            state = self._on(state, number, Doubted())
        if state.silos[number].knows.phase is Phase.DRAINING:
            state = self._on(state, number, Drained())
        return state

    def _failed(self, state: State, number: int, request: Request) -> State:
        match request.asked:
            case Registration():
                state = _with(state, number, registration=None)
                draining = state.silos[number].knows.phase is Phase.DRAINING
                return self._on(state, number, Drained()) if draining else state
            case Claim():
                return self._send_claim(state, number, state.silos[number].knows.over)
            case _:
                return _with(state, number, inquiry=None)

    # ---- a silo that claims, and asks whether the others have

    def _send_claim(self, state: State, number: int, over: str) -> State:
        """Ask for the life that there is, which may begin with that."""
        if not self._rules.learns:
            return self._send_rows(state, number, "", over)
        asked = Claim(BUCKET, SILOS[number], over=over, new_life=NEW + str(number), whole=False)
        return _with(state, number, claim=Request(asked))

    def _send_rows(self, state: State, number: int, life: str, over: str = "") -> State:
        """Say all that is served, in this life."""
        silo = state.silos[number]
        entries = (silo.entry,) if silo.entry is not None else ()
        asked = Claim(BUCKET, SILOS[number], entries, life, over, NEW + str(number), floor=silo.floor)
        return _with(state, number, claim=Request(asked))

    def _claimed(self, state: State, number: int, asked: Claim, standing: Standing) -> State:
        if not asked.whole:
            return self._send_rows(state, number, standing.life)
        silo = state.silos[number]
        if len(standing.entries) < len(asked.entries) or standing.life != asked.life != "":
            return self._send_claim(state, number, silo.knows.over)
        state = _with(state, number, claim=None)
        stands = standing.entries[0] if standing.entries else None
        if stands is not None and silo.entry is not None and silo.entry in asked.entries and stands != silo.entry:
            if silo.is_open and silo.right == "held":
                state = state.but(given_up=True)
            if silo.is_open:
                state = _with(state, number, entry=None, is_open=False)
        return self._on(state, number, Claimed(standing.life, standing.is_settled))

    def _asks(self, state: State, number: int, silo: Silo) -> Iterator[tuple[str, State]]:
        if silo.knows.phase not in (Phase.CLAIMED, Phase.SETTLED) or silo.inquiry is not None:
            return
        missing = [
            other
            for other, each in enumerate(state.silos)
            if not each.has_joined and not each.is_new and other not in state.declared and state.earlier == "known"
        ]
        if state.earlier == "awaited" and self._rules.awaits_earlier:
            missing.append(number)
        if silo.knows.phase is Phase.SETTLED:
            if state.store.life != silo.knows.life:
                yield f"{number} looks at the life", _with(state, number, inquiry=Request(Inquiry(BUCKET)))
        elif silo.has_joined and (not missing or not self._rules.awaits_recovery):
            unknown = [other for other, each in enumerate(state.silos) if not each.has_joined] if not missing else []
            living = [other for other in range(len(state.silos)) if other not in (*state.declared, *unknown)]
            heard = living if self._rules.hears_all else [number]
            if not self._rules.awaits_recovery:
                heard = [other for other in heard if state.silos[other].has_joined]
            asked = Inquiry(BUCKET, silo.knows.life, tuple(SILOS[other] for other in heard))
            yield f"{number} asks whether all have claimed", _with(state, number, inquiry=Request(asked))

    def _on(self, state: State, number: int, event: Event) -> State:
        """What the silo's core makes of an event."""
        knows, orders = self._told(state.silos[number].knows, event)
        state = _with(state, number, knows=knows)
        for order in orders:
            match order:
                case AwaitRegistrations():
                    if state.silos[number].registration is None or not self._rules.drains:
                        state = self._on(state, number, Drained())
                case SendClaim(over):
                    state = self._send_claim(state, number, over)
                case _:
                    pass  # registrations may go out, which they try at any time
        return state

    def _tell(self, knows: Knowledge, event: Event) -> tuple[Knowledge, tuple[object, ...]]:
        core = self._rules.core()
        core.phase, core.life = knows.phase, knows.life
        core._over, core._again = knows.over, knows.again  # pyright: ignore[reportPrivateUsage] - made to stand
        orders = tuple(core.on(event))
        return Knowledge(core.phase, core.life, core._over, core._again), orders  # pyright: ignore[reportPrivateUsage] - and read

    # ---- the members

    def _membership(self, state: State, number: int, silo: Silo) -> Iterator[tuple[str, State]]:
        if silo.right == "held" and silo.has_joined and state.fences < self._of.fences:
            yield f"{number} is fenced", _with(state.but(fences=state.fences + 1), number, right="fenced")
        if silo.right == "held" and not silo.has_joined and not silo.is_new and state.fences < self._of.fences:
            yield f"{number} is fenced", _with(state.but(fences=state.fences + 1), number, right="fenced")
        if silo.is_new:
            yield f"{number} joins", self._joins(state, number)
            return
        if not silo.has_joined:
            yield f"{number} joins again", self._joined(state, number, silo)
            return
        if state.earlier == "awaited":
            yield from self._gives_up(state, number)
        if number in state.declared:
            yield (
                f"{number} is told that it is dead",
                _with(state, number, right="told dead", entry=None, is_open=False),
            )
        elif silo.right == "fenced":
            yield f"{number} is renewed", _with(state, number, right="held")
        elif silo.right == "withheld" and silo.knows.phase is Phase.SETTLED:
            if silo.checked == silo.knows.life or not self._rules.checks:
                yield f"{number} is given the right again", _with(state, number, right="held", checked="")
            else:
                after = _with(state, number, checked=silo.knows.life)
                yield f"{number} claims once more", self._on(after, number, Doubted())

    def _joins(self, state: State, number: int) -> State:
        """It is new. Where it finds no table, it cannot tell whether there has been one."""
        founds = not any(each.has_joined for each in state.silos)
        after = _with(state.but(earlier="awaited" if founds else state.earlier), number, has_joined=True, is_new=False)
        return self._on(after, number, Doubted())

    def _gives_up(self, state: State, number: int) -> Iterator[tuple[str, State]]:
        """When S is over, those of the table before have no right left, and none of them can have come back."""
        earlier = [(other, each) for other, each in enumerate(state.silos) if not each.has_joined and not each.is_new]
        if not self._rules.awaits_their_end or not any(each.right == "held" and each.runs for _, each in earlier):
            dead = frozenset(other for other, _ in earlier) if self._rules.ends_the_given_up else frozenset[int]()
            yield (
                f"{number} gives up those of the table before",
                state.but(earlier="given up", declared=state.declared | dead),
            )

    def _joined(self, state: State, number: int, silo: Silo) -> State:
        """It brings whom it knows to be dead, and is told so itself if somebody has brought that."""
        earlier = "given up" if state.earlier == "given up" else "known"
        state = state.but(declared=state.declared | silo.dead, earlier=earlier)
        if number in state.declared:
            return _with(state, number, has_joined=True, right="told dead", entry=None, is_open=False)
        if silo.right == "fenced":
            state = _with(state, number, right="withheld" if self._rules.withholds else "held")
        state = _with(state, number, has_joined=True)
        return self._on(state, number, Doubted(is_over=True))


@lru_cache(SILOS_KEPT_MAX)
def _lives_of(silo: Silo) -> tuple[str, ...]:
    """All names of lives that a silo has, in the order in which they are to be numbered."""
    lives = [silo.knows.life, silo.knows.over, silo.checked]
    for request in (silo.registration, silo.claim, silo.inquiry):
        if request is not None:
            lives += _lives_asked(request.asked)
            if isinstance(request.answer, Standing):
                lives.append(request.answer.life)
    return tuple(dict.fromkeys(lives))


def _lives_asked(asked: Registration | Claim | Inquiry) -> tuple[str, ...]:
    return (asked.life, asked.over, asked.new_life) if isinstance(asked, Claim) else (asked.life,)


def _renamed(state: State) -> State:
    """The same state, its lives named in the order in which they come up, so that it is known again."""
    lives = [state.store.life]
    for silo in state.silos:
        lives += _lives_of(silo)
    for claim in state.late:
        lives += _lives_asked(claim)
    if state.kept is not None:
        lives.append(state.kept.life)
    found = tuple(dict.fromkeys(filter(None, lives)))
    if found == LIVES[: len(found)]:
        return state
    name = _names(found)
    return state.but(
        store=state.store.but(life=name[state.store.life]),
        silos=tuple(_silo_renamed(silo, found) for silo in state.silos),
        late=tuple(_claim_renamed(claim, name) for claim in state.late),
        kept=None if state.kept is None else state.kept.but(life=name[state.kept.life]),
    )


def _names(found: tuple[str, ...]) -> dict[str, str]:
    return {"": "", **dict(zip(found, LIVES, strict=False))}


@lru_cache(SILOS_KEPT_MAX)
def _silo_renamed(silo: Silo, found: tuple[str, ...]) -> Silo:
    """Silos are few where states are many: the same one is met again and again."""
    name = _names(found)

    def under_way(request: Request | None) -> Request | None:
        if request is None:
            return None
        asked, answer = request.asked, request.answer
        if isinstance(asked, Claim):
            asked = _claim_renamed(asked, name)
        else:
            asked = msgspec.structs.replace(asked, life=name[asked.life])
        if isinstance(answer, Standing):
            answer = msgspec.structs.replace(answer, life=name[answer.life])
        return Request(asked, answer)

    return silo.but(
        knows=silo.knows.but(life=name[silo.knows.life], over=name[silo.knows.over]),
        checked=name[silo.checked],
        registration=under_way(silo.registration),
        claim=under_way(silo.claim),
        inquiry=under_way(silo.inquiry),
    )


def _claim_renamed(claim: Claim, name: Mapping[str, str]) -> Claim:
    return msgspec.structs.replace(claim, life=name[claim.life], over=name[claim.over], new_life=name[claim.new_life])


def _with(state: State, number: int, **changes: object) -> State:
    silos = state.silos
    return state.but(silos=(*silos[:number], silos[number].but(**changes), *silos[number + 1 :]))
