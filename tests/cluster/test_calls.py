"""What a call promises: its end, errors, deadline and cancellation, and that nobody can tell where it ran."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from silo.directory.errors import (
    CallCycle,
    CallExpired,
    CallTimeout,
    GrainUnplaceable,
    NestedCallFailed,
    NotExecuted,
    OutcomeUnknown,
    Overloaded,
    SerializationError,
)
from silo.grain import Grain, always_interleave, current_grain, grain, one_way, read_only, soft_state, timeout
from silo.reference import with_hint, with_timeout
from silo.routing.book import ANSWERED_AT_ONCE_MAX
from silo.serialization.exceptions import RemoteError
from silo.serialization.registry import TypeRegistry, register
from tests.cluster.clusters import Cluster
from tests.cluster.grains import Ledger
from tests.cluster.stage import Stage, gate, say

pytestmark = pytest.mark.real


@register
class Refused(Exception):
    """Registered: it arrives as itself."""

    def __init__(self, why: str, amount: int) -> None:
        super().__init__(why, amount)
        self.why = why
        self.amount = amount


class Unheard(Exception):
    """Not registered."""


@grain(kind="fallible")
class Fallible(Grain):
    async def refuse(self, amount: int) -> None:
        self._check(amount)

    def _check(self, amount: int) -> None:
        raise Refused("too much", amount)

    async def unheard(self) -> None:
        raise Unheard("of")

    async def give_strange(self) -> object:
        return Strange(1)

    async def take(self, thing: object) -> str:
        say("took")
        return type(thing).__name__

    async def through(self, key: str, silo: str) -> str:
        """What another grain's failure looks like from a grain."""
        try:
            await with_hint(self.grain(Fallible, key), silo).refuse(3)
        except Refused as error:
            return f"{error.why} {error.amount} {'_check' in ''.join(error.__notes__)}"
        return "nothing"


@dataclass
class Strange:
    """A class that the test registers on one side alone."""

    number: int


async def test_an_exception_of_a_registered_class_arrives_as_itself_with_the_remote_traceback(cluster: Cluster) -> None:
    await cluster.start("a", "b", kinds=(Fallible,))
    client = await cluster.client()
    fallible = client.grain(Fallible, "k")
    with pytest.raises(Refused) as raised:
        await fallible.refuse(7)
    assert (raised.value.why, raised.value.amount) == ("too much", 7)
    notes = "\n".join(raised.value.__notes__)
    assert "Remote traceback" in notes
    assert "in _check" in notes


async def test_an_exception_looks_the_same_from_a_local_call_as_from_a_remote_one(cluster: Cluster) -> None:
    await cluster.start("a", "b", kinds=(Fallible,))
    client = await cluster.client()
    fallible = with_hint(client.grain(Fallible, "k"), "a")
    assert await fallible.through("here", "a") == await fallible.through("there", "b") == "too much 3 True"
    assert cluster.home(client.grain(Fallible, "here")) == "a"
    assert cluster.home(client.grain(Fallible, "there")) == "b"


async def test_an_exception_that_is_not_registered_arrives_as_a_remote_error_that_names_it(cluster: Cluster) -> None:
    await cluster.start("a", kinds=(Fallible,))
    client = await cluster.client()
    with pytest.raises(RemoteError) as raised:
        await client.grain(Fallible, "k").unheard()
    assert raised.value.type_name.endswith("test_calls.Unheard")
    assert raised.value.message == "of"


async def test_a_class_that_the_target_does_not_know_is_refused_with_the_fix_and_harms_nobody(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", "b", kinds=(Fallible,), registry=TypeRegistry())
    knowing = TypeRegistry()
    knowing.register(Strange)
    client = await cluster.client(registry=knowing)
    fallible = client.grain(Fallible, "k")
    with pytest.raises(SerializationError, match=r"Strange.*register it with silo\.register"):
        await fallible.take(Strange(1))
    assert stage.lines == []
    assert await fallible.take("a plain thing") == "str"
    with pytest.raises(SerializationError, match=r"Strange.*register it"):
        await fallible.give_strange()
    assert await fallible.take(1) == "int"


@grain(kind="patient")
class Patient(Grain):
    """Waits, and says how that ended."""

    async def wait(self, gate_name: str) -> str:
        return await self._wait(gate_name)

    @timeout(0.2)
    async def wait_briefly(self, gate_name: str) -> str:
        return await self._wait(gate_name)

    async def _wait(self, gate_name: str) -> str:
        say(f"{self.key} waits at {gate_name}")
        try:
            await gate(gate_name)
        except asyncio.CancelledError:
            say(f"{self.key} was cancelled")
            raise
        return self.silo

    async def wait_through(self, keys: list[str], gate_name: str) -> str:
        """Have the next grain wait, and this one for that."""
        if not keys:
            return await self._wait(gate_name)
        try:
            return await self.grain(Patient, keys[0]).wait_through(keys[1:], gate_name)
        except asyncio.CancelledError:
            say(f"{self.key} was cancelled")
            raise

    async def leave_waiting(self, key: str, gate_name: str) -> None:
        """Leave a task behind that waits for another grain, with the deadline of this turn."""

        async def ask() -> None:
            try:
                await self.grain(Patient, key).wait(gate_name)
            except Exception as error:
                say(f"asked in vain: {type(error).__name__}")

        self._asking = asyncio.create_task(ask())

    async def idle(self) -> str:
        return self.silo


async def test_a_methods_timeout_ends_its_call_in_the_caller_and_in_the_callee(cluster: Cluster, stage: Stage) -> None:
    await cluster.start("a", "b", kinds=(Patient,))
    client = await cluster.client()
    patient = client.grain(Patient, "k")
    started = asyncio.get_running_loop().time()
    with pytest.raises(CallTimeout) as raised:
        await patient.wait_briefly("never")
    assert 0.19 < asyncio.get_running_loop().time() - started < 1.2
    assert isinstance(raised.value, OutcomeUnknown)
    assert isinstance(raised.value, TimeoutError)
    await stage.heard("k was cancelled")
    assert await patient.idle() == cluster.home(patient)


async def test_deadlines_travel_and_cut_the_calls_made_inside(cluster: Cluster, stage: Stage) -> None:
    await cluster.start("a", "b", kinds=(Patient,))
    client = await cluster.client()
    outer, inner = client.grain(Patient, "outer"), client.grain(Patient, "inner")
    await with_hint(outer, "a").idle()
    await with_hint(inner, "b").idle()
    started = asyncio.get_running_loop().time()
    await with_timeout(outer, 0.3).leave_waiting("inner", "never")  # the outer call has ended: not its cancellation
    await stage.heard("asked in vain: CallTimeout")
    await stage.heard("inner was cancelled")
    assert asyncio.get_running_loop().time() - started < 1.3


async def test_a_call_that_expires_in_the_queue_is_not_run(cluster: Cluster, stage: Stage) -> None:
    await cluster.start("a", "b", kinds=(Patient,))
    client = await cluster.client()
    patient = client.grain(Patient, "k")
    running = asyncio.create_task(patient.wait("go"))
    await stage.heard("k waits at go")
    with pytest.raises((CallExpired, CallTimeout)):
        await with_timeout(patient, 0.2).wait("second")
    await cluster.seen(lambda: cluster.waiting(patient) == 0)
    stage.gate("go").open()
    await running
    await patient.idle()
    assert "k waits at second" not in stage.lines


@pytest.mark.parametrize("left_s", [1e-9, 1e-6, 1e-5])
async def test_a_call_that_expires_before_its_grain_was_looked_for_says_that_it_expired(
    cluster: Cluster, left_s: float
) -> None:
    (a,) = await cluster.start("a", kinds=(Ledger,))
    with pytest.raises(CallExpired, match="the deadline passed before the call could be sent"):
        await with_timeout(a.grain(Ledger, "k"), left_s).write("x")
    assert not cluster.is_active(a.grain(Ledger, "k"))
    assert await a.grain(Ledger, "k").write("y") == 1


async def test_the_cancellation_of_a_caller_reaches_a_callee_two_silos_away(cluster: Cluster, stage: Stage) -> None:
    await cluster.start("a", "b", "c", kinds=(Patient,))
    client = await cluster.client()
    for key in ("a", "b", "c"):
        await with_hint(client.grain(Patient, key), key).idle()
    call = asyncio.create_task(client.grain(Patient, "a").wait_through(["b", "c"], "never"))
    await stage.heard("c waits at never")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    for key in ("a", "b", "c"):
        await stage.heard(f"{key} was cancelled")
        assert await client.grain(Patient, key).idle() == key


async def test_the_cancellation_of_a_caller_takes_a_queued_call_out(cluster: Cluster, stage: Stage) -> None:
    await cluster.start("a", "b", kinds=(Patient,))
    client = await cluster.client()
    patient = client.grain(Patient, "k")
    running = asyncio.create_task(patient.wait("go"))
    await stage.heard("k waits at go")
    queued = asyncio.create_task(patient.wait("second"))
    await cluster.queued(patient, 1)
    queued.cancel()
    await cluster.seen(lambda: cluster.waiting(patient) == 0)
    stage.gate("go").open()
    await running
    await patient.idle()
    assert "k waits at second" not in stage.lines


async def test_a_call_to_a_grain_next_door_is_timed_cancelled_and_queued_like_any_other(
    cluster: Cluster, stage: Stage
) -> None:
    (silo,) = await cluster.start("a", kinds=(Patient,))
    patient = silo.grain(Patient, "k")
    await patient.idle()
    with pytest.raises(CallTimeout):
        await with_timeout(patient, 0.2).wait("never")
    await stage.heard("k was cancelled")
    call = asyncio.create_task(patient.wait("not yet"))
    await stage.heard("k waits at not yet")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await stage.heard("k was cancelled", times=2)
    first, second = asyncio.create_task(patient.wait("go")), asyncio.create_task(patient.wait("on"))
    await cluster.queued(patient, 1)
    assert "k waits at on" not in stage.lines
    stage.gate("on").open()
    stage.gate("go").open()
    await asyncio.gather(first, second)
    assert [line for line in stage.lines if line.endswith((" go", " on"))] == ["k waits at go", "k waits at on"]


async def test_grains_next_door_that_answer_at_once_let_others_run_now_and_then(cluster: Cluster) -> None:
    (silo,) = await cluster.start("a", kinds=(Patient, Fallible))
    patient, fallible = silo.grain(Patient, "k"), silo.grain(Fallible, "k")
    await patient.idle()
    await fallible.take(1)
    passes = 0

    async def count_passes() -> None:
        nonlocal passes
        while True:
            passes += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_passes())
    for _ in range(200):
        await patient.idle()
        with pytest.raises(Refused):
            await fallible.refuse(1)
    counting.cancel()
    assert 400 / ANSWERED_AT_ONCE_MAX - 1 <= passes < 100


@grain(kind="herald")
class Herald(Grain):
    @one_way
    async def announce(self, what: str) -> None:
        await gate("announce")
        say(what)

    @one_way
    async def fail(self) -> None:
        say("failing")
        raise ValueError("nobody hears this")

    async def idle(self) -> None:
        """The calls before it have ended."""


async def test_a_one_way_call_is_over_when_it_is_sent_and_never_tells_how_it_ended(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", "b", kinds=(Herald,))
    client = await cluster.client()
    herald = client.grain(Herald, "k")
    await herald.announce("first")
    await herald.announce("second")
    assert stage.lines == []
    stage.gate("announce").open()
    await herald.fail()
    await herald.idle()
    assert stage.lines == ["first", "second", "failing"]


async def test_a_one_way_call_that_waits_at_a_moving_grain_moves_along(cluster: Cluster, stage: Stage) -> None:
    await cluster.start("a", "b", kinds=(Herald,))
    client = await cluster.client()
    herald = client.grain(Herald, "k")
    await with_hint(herald, "a").idle()
    for number in range(5):
        await herald.announce(str(number))
    await cluster.queued(herald, 4)
    moving = asyncio.create_task(client.migrate(herald, to="b"))
    await cluster.draining(herald)
    stage.gate("announce").open()
    assert (await moving).held_calls == 4
    await herald.idle()
    assert stage.lines == ["0", "1", "2", "3", "4"]


class _Chain(Grain):
    async def call(self, kind: str, key: str) -> str:
        """Call another grain that calls back; say what came of it."""
        return await self.grain(KINDS[kind], key).call_back(type(self).__name__, self.key)

    async def call_back(self, kind: str, key: str) -> str:
        try:
            return await self.grain(KINDS[kind], key).answer()
        except CallCycle as error:
            return " -> ".join(error.chain)

    async def answer(self) -> str:
        return f"{self.key} answers"

    async def wait_and_call(self, kind: str, key: str) -> str:
        say("waiting")
        await gate("go")
        return await self.call(kind, key)

    async def interleave(self) -> str:
        say("interleaved")
        return self.key

    @read_only
    async def look(self, gate_name: str) -> None:
        say(f"looks until {gate_name}")
        await gate(gate_name)

    @always_interleave
    async def peek(self) -> str:
        return self.key


@grain(kind="closed")
class ClosedKind(_Chain):
    pass


@grain(kind="chained", reentrant="call_chain")
class Chained(_Chain):
    pass


@grain(kind="reentrant", reentrant=True)
class Reentrant(_Chain):
    pass


KINDS: dict[str, type[_Chain]] = {"ClosedKind": ClosedKind, "Chained": Chained, "Reentrant": Reentrant}
SPREAD = pytest.mark.parametrize("silo", ["a", "b"], ids=["on one silo", "across silos"])


async def placed(cluster: Cluster, kind: type[_Chain], silo: str) -> _Chain:
    """A grain `one` on a, whose partner `two` is on this silo."""
    client = await cluster.client()
    await with_hint(client.grain(ClosedKind, "two"), silo).answer()
    one = client.grain(kind, "one")
    await with_hint(one, "a").answer()
    return one


@SPREAD
async def test_a_call_that_waits_for_its_own_chain_fails_at_once_and_names_the_chain(
    cluster: Cluster, silo: str
) -> None:
    await cluster.start("a", "b", kinds=(ClosedKind,))
    one = await placed(cluster, ClosedKind, silo)
    started = asyncio.get_running_loop().time()
    assert await one.call("ClosedKind", "two") == "closed/one -> closed/two -> closed/one"
    assert asyncio.get_running_loop().time() - started < 1.0


@SPREAD
@pytest.mark.parametrize("kind", [Chained, Reentrant])
async def test_a_reentrant_grain_answers_its_own_chain(cluster: Cluster, silo: str, kind: type[_Chain]) -> None:
    await cluster.start("a", "b", kinds=(ClosedKind, Chained, Reentrant))
    one = await placed(cluster, kind, silo)
    assert await one.call("ClosedKind", "two") == "one answers"


@SPREAD
async def test_call_chain_reentrancy_lets_in_its_own_chain_and_nobody_else(
    cluster: Cluster, stage: Stage, silo: str
) -> None:
    await cluster.start("a", "b", kinds=(ClosedKind, Chained))
    one = await placed(cluster, Chained, silo)
    running = asyncio.create_task(one.wait_and_call("ClosedKind", "two"))
    await stage.heard("waiting")
    other = asyncio.create_task(one.interleave())
    await cluster.queued(one, 1)
    stage.gate("go").open()
    assert await running == "one answers"
    assert await other == "one"
    assert stage.lines == ["waiting", "interleaved"]


async def test_a_reentrant_grain_starts_calls_while_others_wait(cluster: Cluster, stage: Stage) -> None:
    await cluster.start("a", "b", kinds=(ClosedKind, Reentrant))
    one = await placed(cluster, Reentrant, "b")
    running = asyncio.create_task(one.wait_and_call("ClosedKind", "two"))
    await stage.heard("waiting")
    assert await one.interleave() == "one"
    stage.gate("go").open()
    assert await running == "one answers"


async def test_read_only_calls_run_together_and_always_interleaving_ones_run_beside_anything(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", "b", kinds=(ClosedKind,))
    one = await placed(cluster, ClosedKind, "b")
    looking = [asyncio.create_task(one.look("first")), asyncio.create_task(one.look("second"))]
    await stage.heard("looks until first")
    await stage.heard("looks until second")
    writing = asyncio.create_task(one.interleave())  # an ordinary call
    await cluster.queued(one, 1)
    assert await one.peek() == "one"
    stage.gate("second").open()
    stage.gate("first").open()
    await asyncio.gather(*looking)
    assert await writing == "one"


async def test_a_failed_inner_call_says_that_the_outer_one_has_run(cluster: Cluster, stage: Stage) -> None:
    await cluster.start("a", "b", kinds=(Patient, Bounded))
    client = await cluster.client()
    bounded = with_hint(client.grain(Bounded, "outer"), "a")
    full = client.grain(Bounded, "full")
    calls = [asyncio.create_task(full.work("go"))]
    await stage.heard("working")
    calls += [asyncio.create_task(full.work("go")) for _ in range(2)]
    await cluster.queued(full, 2)
    with pytest.raises(NestedCallFailed, match="Overloaded"):
        await bounded.call("full")
    stage.gate("go").open()
    await asyncio.gather(*calls)


@grain(kind="bounded", queue_calls_max=2)
class Bounded(Grain):
    async def work(self, gate_name: str) -> str:
        say("working")
        await gate(gate_name)
        return self.silo

    async def call(self, key: str) -> str:
        return await self.grain(Bounded, key).work("go")


async def test_a_call_beyond_the_bound_of_the_queue_is_refused_at_once_and_names_the_bound(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", "b", kinds=(Bounded,))
    client = await cluster.client()
    bounded = client.grain(Bounded, "k")
    calls = [asyncio.create_task(bounded.work("go"))]
    await stage.heard("working")
    calls += [asyncio.create_task(bounded.work("go")) for _ in range(2)]
    await cluster.queued(bounded, 2)
    with pytest.raises(Overloaded, match="2 calls waiting") as raised:
        await bounded.work("go")
    assert raised.value.limit == "queue_calls_max"
    assert isinstance(raised.value, NotExecuted)
    stage.gate("go").open()
    assert len(await asyncio.gather(*calls)) == 3
    assert stage.lines.count("working") == 3


@grain(kind="keeper")
class Keeper(Grain):
    """Keeps what it is given, and gives it away."""

    def __init__(self) -> None:
        self.kept: list[list[int]] = []

    async def keep(self, items: list[int]) -> list[int]:
        self.kept = [items]
        return items

    @one_way
    async def note(self, items: list[int]) -> None:
        await asyncio.sleep(0)  # whoever made the call goes on meanwhile
        self.kept = [items]

    async def give(self) -> list[int]:
        return self.kept[0]


@grain(kind="borrower")
class Borrower(Grain):
    async def meddle(self, key: str) -> list[list[int]]:
        """Change what was passed and what was given, and see whether the keeper's own has changed."""
        keeper = self.grain(Keeper, key)
        items = [1]
        echoed = await keeper.keep(items)
        items.append(2)
        echoed.append(3)
        first = await keeper.give()
        first.append(4)
        noted = [5]
        before = await keeper.give()
        await keeper.note(noted)
        noted.append(6)
        return [items, echoed, first, before, await keeper.give()]

    async def pass_on(self, key: str) -> str:
        try:
            await self.grain(Keeper, key).keep([object()])  # type: ignore[list-item] # pyright: ignore[reportArgumentType] - what the test is about
        except SerializationError as error:
            return str(error)
        return "it was passed"


async def test_arguments_and_results_are_isolated_on_a_local_call_as_on_a_remote_one(cluster: Cluster) -> None:
    await cluster.start("a", "b", kinds=(Keeper, Borrower))
    client = await cluster.client()
    for key in ("a", "b"):
        await with_hint(client.grain(Keeper, key), key).keep([])
    borrower = with_hint(client.grain(Borrower, "k"), "a")
    here, there = await borrower.meddle("a"), await borrower.meddle("b")
    assert here == there == [[1, 2], [1, 3], [1, 4], [1], [5]]
    assert await borrower.pass_on("a") == await borrower.pass_on("b")
    assert "object" in await borrower.pass_on("a")


@grain(kind="friends")
class Friends(Grain):
    known: set[Ledger] = soft_state(default_factory=set)

    async def meet(self, friend: Ledger) -> int:
        self.known.add(friend)
        return len(self.known)

    async def greet_all(self) -> list[str]:
        for friend in self.known:
            await friend.write(f"greetings from {self.key}")
        return [repr(friend) for friend in self.known]

    async def introduce(self, key: str) -> list[Ledger]:
        await self.grain(Friends, key).meet(next(iter(self.known)))
        return list(self.known)


async def test_references_travel_compare_and_keep_working_in_soft_state_after_a_move(cluster: Cluster) -> None:
    await cluster.start("a", "b", kinds=(Friends, Ledger))
    client = await cluster.client()
    friends, ledger = client.grain(Friends, "f"), client.grain(Ledger, "ada")
    await with_hint(friends, "a").meet(ledger)
    assert await friends.meet(client.grain(Ledger, "ada")) == 1  # the same grain, hence an equal reference
    assert (await client.migrate(friends, to="b")).moved
    assert await friends.greet_all() == ["<reference ledger/ada>"]
    (received,) = await friends.introduce("g")
    assert received == ledger
    assert hash(received) == hash(ledger)
    await client.grain(Friends, "g").greet_all()
    assert await received.read() == ["greetings from f", "greetings from g"]


@grain(kind="plain")
class PlainClass:
    """Without the base."""

    count: int = soft_state(default=0)

    async def add(self) -> str:
        self.count += 1
        here = current_grain()
        return f"{here.key} {self.count}"

    async def where(self) -> str:
        return current_grain().silo

    async def leave(self, to: str) -> None:
        current_grain().migrate(to=to)


async def test_a_decorated_class_without_the_base_calls_moves_and_keeps_its_soft_state(cluster: Cluster) -> None:
    await cluster.start("a", "b", kinds=(PlainClass,))
    client = await cluster.client()
    plain = client.grain(PlainClass, "k")
    assert await with_hint(plain, "a").add() == "k 1"
    assert (await client.migrate(plain, to="b")).moved
    assert (await plain.add(), await plain.where()) == ("k 2", "b")
    await plain.leave("a")
    await cluster.arrived(plain, "a")
    assert (await plain.add(), await plain.where()) == ("k 3", "a")


async def test_R325_a_call_to_a_kind_that_no_silo_hosts_says_so_and_why_for_each_silo(cluster: Cluster) -> None:
    await cluster.start("a", "b", kinds=(Ledger,))
    client = await cluster.client()
    with pytest.raises(GrainUnplaceable) as raised:
        await with_timeout(client.grain(Patient, "k"), 0.5).idle()
    assert isinstance(raised.value, NotExecuted)
    for silo in ("a", "b"):
        assert f"{silo} ({cluster.silos[silo].address}): it does not host kind 'patient'" in str(raised.value)


@pytest.mark.parametrize("size", [2**16, 3 * 2**20])
async def test_large_arguments_and_results_arrive_whole_and_in_order(cluster: Cluster, size: int) -> None:
    await cluster.start("a", "b", kinds=(Ledger,))
    client = await cluster.client()
    ledger = client.grain(Ledger, "k")
    await with_hint(ledger, "b").write("first")
    large = "x" * size
    answers = await asyncio.gather(ledger.write(large), ledger.write("small"), ledger.read())
    assert list(answers) == [2, 3, ["first", large, "small"]]


async def test_a_call_without_the_right_arguments_fails_in_the_caller_and_is_not_sent(
    cluster: Cluster, stage: Stage
) -> None:
    await cluster.start("a", kinds=(Ledger,))
    client = await cluster.client()
    with pytest.raises(TypeError, match="write"):
        await client.grain(Ledger, "k").write()  # type: ignore[call-arg] # pyright: ignore[reportCallIssue] - the mistake
    assert stage.lines == []
