"""What a silo and a client tell by OpenTelemetry: one trace over every process that a call or a move touches."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, use_span

from silo import ActivationReason, Client, Grain, MigrationNotice, Silo, SiloSettings, grain, soft_state
from silo.directory.addresses import GrainId
from silo.telemetry.instruments import OTHER, BoundedLabel
from silo.telemetry.traces import parent_of
from silo.wire.frames import Outcome, Reply
from tests.support.telemetry import Observed, is_child
from tests.support.waiting import until

KIND = "observed"


@grain(kind="observed-log")
class Log(Grain):
    async def note(self) -> None:
        return None


@grain(kind=KIND)
class Room(Grain):
    taken: set[str] = soft_state(default_factory=set)
    entered = asyncio.Event()
    noticed = asyncio.Event()
    leave = asyncio.Event()

    async def on_activate(self, reason: ActivationReason) -> None:
        await self.grain(Log, f"of {reason}").note()

    async def on_migrating(self, notice: MigrationNotice) -> None:
        Room.noticed.set()

    async def enter(self, player: str) -> int:
        self.taken.add(player)
        return len(self.taken)

    async def ask(self, key: str) -> int:
        return await self.grain(Room, key).enter("a friend")

    async def stay(self) -> None:
        Room.entered.set()
        await Room.leave.wait()

    async def fail(self) -> None:
        raise ValueError("no such player")

    async def move(self, to: str) -> None:
        self.migrate(to=to)


@dataclass
class Cluster:
    """Two silos and a client, each with telemetry of its own."""

    silos: dict[str, Silo]
    client: Client
    observed: dict[str, Observed]

    def host_of(self, key: str) -> str:
        (host,) = (name for name, silo in self.silos.items() if GrainId(KIND, key) in silo.activations())
        return host

    def other(self, name: str) -> str:
        (other,) = self.silos.keys() - {name}
        return other


@pytest.fixture
async def cluster(redis_url: str, cluster_name: str) -> AsyncIterator[Cluster]:
    Room.entered, Room.noticed, Room.leave = asyncio.Event(), asyncio.Event(), asyncio.Event()
    observed = {name: Observed() for name in ("one", "two", "client")}
    async with AsyncExitStack() as stack:
        silos: dict[str, Silo] = {}
        for name in ("one", "two"):
            settings = SiloSettings(cluster=cluster_name, redis=redis_url, name=name, bootstrap=True)
            silo = Silo(Room, Log, settings=settings, telemetry=observed[name].telemetry)
            silos[name] = await stack.enter_async_context(silo)
        client = Client.connect(redis_url, cluster=cluster_name, telemetry=observed["client"].telemetry)
        yield Cluster(silos, await stack.enter_async_context(client), observed)


async def test_one_trace_covers_a_call_and_the_calls_made_within_it(cluster: Cluster) -> None:
    tracer = cluster.observed["client"].tracers.get_tracer("an application")
    with tracer.start_as_current_span("a web request"):
        await cluster.client.grain(Room, "lobby").ask("cellar")
    everywhere = [span for each in cluster.observed.values() for span in each.spans]

    def one(name: str, kind: SpanKind) -> ReadableSpan:
        (found,) = (span for span in everywhere if span.name == name and span.kind is kind)
        return found

    chain = [
        one("a web request", SpanKind.INTERNAL),
        one(f"{KIND}/ask", SpanKind.CLIENT),
        one(f"{KIND}/ask", SpanKind.SERVER),
        one(f"{KIND}/enter", SpanKind.CLIENT),
        one(f"{KIND}/enter", SpanKind.SERVER),
    ]
    for parent, child in itertools.pairwise(chain):
        assert is_child(child, parent)


async def test_an_activation_belongs_to_the_call_that_wanted_it_and_its_hook_to_the_activation(
    cluster: Cluster,
) -> None:
    await cluster.client.grain(Room, "lobby").enter("ada")
    host = cluster.observed[cluster.host_of("lobby")]
    activation = host.span(f"activate {KIND}")
    assert is_child(activation, cluster.observed["client"].span(f"{KIND}/enter"))
    (noted,) = (span for span in host.spans_named("observed-log/note") if span.kind is SpanKind.CLIENT)
    assert is_child(noted, activation)


async def test_one_trace_covers_both_silos_of_a_move(cluster: Cluster) -> None:
    room = cluster.client.grain(Room, "lobby")
    await room.enter("ada")
    source = cluster.host_of("lobby")
    target = cluster.other(source)
    before = {name: len(observed.spans) for name, observed in cluster.observed.items()}
    outcome = await cluster.client.migrate(room, to=target)
    assert outcome.moved
    await until(lambda: bool(cluster.observed[source].spans_named(f"migrate {KIND}")))

    there, here = cluster.observed[target], cluster.observed[source]
    leaving, arriving = here.span(f"migrate {KIND}"), there.span(f"take in {KIND}")
    assert is_child(leaving, cluster.observed["client"].span(f"control {KIND}/migrate"))
    assert is_child(arriving, leaving)
    stages = [span for span in here.spans[before[source] :] if is_child(span, leaving)]
    assert [span.name for span in stages] == ["ask", "drain", "deactivate", "dehydrate", "offer", "moved"]
    stages = [span for span in there.spans[before[target] :] if is_child(span, arriving)]
    assert [span.name for span in stages] == ["rehydrate", "register", "activate", "open"]
    noted = [span for span in there.spans[before[target] :] if span.name == "observed-log/note"]
    (noted_by_hook,) = (span for span in noted if span.kind is SpanKind.CLIENT)
    assert is_child(noted_by_hook, next(span for span in stages if span.name == "activate"))

    attributes = leaving.attributes
    assert attributes is not None
    assert attributes["silo.migration.reason"] == "admin"
    assert attributes["silo.migration.from"] == source
    assert attributes["silo.migration.to"] == target
    assert attributes["silo.migration.epoch"] == outcome.epoch
    assert attributes["silo.migration.bytes"] == outcome.payload_bytes > 0
    assert attributes["silo.migration.held"] == 0


async def test_what_is_not_sampled_is_told_by_nobody_and_stays_one_trace(cluster: Cluster) -> None:
    unsampled = NonRecordingSpan(SpanContext(7, 8, is_remote=True))
    with use_span(unsampled):
        await cluster.client.grain(Room, "lobby").ask("cellar")
    await cluster.client.grain(Room, "lobby").enter("ada")
    names = {span.name for observed in cluster.observed.values() for span in observed.spans}
    assert names == {f"{KIND}/enter"}
    enters = [span for observed in cluster.observed.values() for span in observed.spans_named(f"{KIND}/enter")]
    assert len(enters) == 2


async def test_what_waits_to_be_told_is_told_when_a_client_or_a_silo_ends(cluster: Cluster) -> None:
    await cluster.client.grain(Room, "lobby").enter("ada")
    host = cluster.host_of("lobby")
    await cluster.client.close()
    await cluster.silos[host].drain_and_stop()
    for name in ("client", host):
        ended = cluster.observed[name].exporter.get_finished_spans()
        assert f"{KIND}/enter" in [span.name for span in ended]


async def test_whoever_is_cancelled_abandons_the_call_that_is_observed(cluster: Cluster) -> None:
    staying = asyncio.create_task(cluster.client.grain(Room, "lobby").stay())
    await Room.entered.wait()
    host = cluster.host_of("lobby")
    activation = cluster.silos[host].runtime.catalog.get(GrainId(KIND, "lobby"))
    assert activation is not None
    staying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await staying
    await until(lambda: activation.turns.running_count == 0)
    assert cluster.observed["client"].span(f"{KIND}/stay").status.status_code is StatusCode.ERROR
    assert cluster.observed[host].span(f"{KIND}/stay").kind is SpanKind.SERVER


async def test_a_move_that_a_grain_asks_for_belongs_to_its_turn(cluster: Cluster) -> None:
    room = cluster.client.grain(Room, "lobby")
    await room.enter("ada")
    source = cluster.host_of("lobby")
    await room.move(cluster.other(source))
    here = cluster.observed[source]
    await until(lambda: bool(here.spans_named(f"migrate {KIND}")))
    (turn,) = (span for span in here.spans_named(f"{KIND}/move") if span.kind is SpanKind.SERVER)
    assert is_child(here.span(f"migrate {KIND}"), turn)


async def test_a_move_is_linked_to_the_calls_that_it_holds_up(cluster: Cluster) -> None:
    room = cluster.client.grain(Room, "lobby")
    staying = asyncio.create_task(room.stay())
    await Room.entered.wait()
    source = cluster.host_of("lobby")
    moving = asyncio.create_task(cluster.client.migrate(room, to=cluster.other(source)))
    await Room.noticed.wait()
    entering = asyncio.create_task(room.enter("ada"))
    activation = cluster.silos[source].runtime.catalog.get(GrainId(KIND, "lobby"))
    assert activation is not None
    await until(lambda: activation.turns.waiting_count == 1)
    Room.leave.set()
    outcome = await moving
    await asyncio.gather(staying, entering)
    assert outcome.held_calls == 1
    (link,) = cluster.observed[source].span(f"migrate {KIND}").links
    held = cluster.observed["client"].span(f"{KIND}/enter").context
    assert held is not None
    assert link.context.span_id == held.span_id


async def test_a_failed_call_is_an_error_on_both_sides_and_counted_by_its_type(cluster: Cluster) -> None:
    with pytest.raises(ValueError, match="no such player"):
        await cluster.client.grain(Room, "lobby").fail()
    called = cluster.observed["client"].span(f"{KIND}/fail")
    (turn,) = (span for span in cluster.observed[cluster.host_of("lobby")].spans_named(f"{KIND}/fail"))
    assert {called.status.status_code, turn.status.status_code} == {StatusCode.ERROR}
    assert cluster.observed["client"].total("silo.calls.duration", **{"error.type": "ValueError"}) == 1


async def test_the_metrics_tell_of_calls_activations_directory_and_moves(cluster: Cluster) -> None:
    room = cluster.client.grain(Room, "lobby")
    await room.enter("ada")
    source = cluster.host_of("lobby")
    target = cluster.other(source)
    here, there = cluster.observed[source], cluster.observed[target]
    assert here.total("silo.grain.activations", type=KIND) == 1
    outcome = await cluster.client.migrate(room, to=target)
    assert outcome.moved
    assert not (await cluster.client.migrate(room, to=target)).moved
    await until(lambda: {"silo.runtime.loop.lag", "silo.membership.members"} <= there.metrics().keys())

    assert cluster.observed["client"].total("silo.calls.duration", **{"rpc.method": "enter", "scope": "remote"}) == 1
    assert here.total("silo.calls.queue.duration", **{"rpc.service": KIND, "rpc.method": "enter"}) == 1
    assert here.total("silo.calls.turn.duration", **{"rpc.method": "enter", "outcome": "value"}) == 1
    assert here.total("silo.grain.activation.duration", type=KIND, via="call", result="ok") == 1
    assert there.total("silo.grain.activation.duration", type=KIND, via="migration", result="ok") == 1
    assert here.total("silo.grain.activations", type=KIND) == 0
    assert there.total("silo.grain.activations", type=KIND) == 1
    assert here.total("silo.directory.operations", op="register", result="ok") >= 1
    assert here.total("silo.directory.duration", op="register", result="ok") >= 1
    assert here.total("silo.migration.started", reason="admin", type=KIND) == 1
    assert here.total("silo.migration.completed", reason="admin", type=KIND) == 1
    assert there.total("silo.migration.failed", reason="admin", stage="before") == 1
    for name in ("duration", "pause", "held_calls"):
        assert here.total(f"silo.migration.{name}", reason="admin") == 1
    assert here.total("silo.migration.context.size", type=KIND) == 1
    for stage in ("ask", "drain", "deactivate", "dehydrate", "offer", "moved"):
        assert here.total("silo.migration.stage.duration", stage=stage) == 1
    for stage in ("rehydrate", "register", "activate", "open"):
        assert there.total("silo.migration.stage.duration", stage=stage) == 1
    # Told once in a while: what is told first may be from before the other silo came.
    await until(lambda: there.total("silo.membership.members", state="active") == 2)


async def test_no_label_of_a_metric_names_a_grain(cluster: Cluster) -> None:
    keys = [f"somebody-{number}" for number in range(5)]
    await asyncio.gather(*(cluster.client.grain(Room, key).enter("ada") for key in keys))
    for observed in cluster.observed.values():
        for points in observed.metrics().values():
            for labels, _ in points:
                assert not any(key in str(value) for key in keys for value in labels.values())


def test_a_label_has_so_many_values_and_no_more() -> None:
    label = BoundedLabel(2)
    assert [label("a"), label("b"), label("c"), label("a")] == ["a", "b", OTHER, "a"]


@pytest.mark.parametrize("text", ["", "nonsense", "00-0-0-00", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "é" * 55])
def test_what_is_no_traceparent_begins_a_new_trace(text: str) -> None:
    assert not parent_of(text)


@pytest.mark.process
def test_nothing_of_opentelemetry_is_needed_or_loaded_while_telemetry_is_off(redis_url: str, cluster_name: str) -> None:
    """As where it is not installed at all: Redis's client would load it, and here it cannot be loaded."""
    script = textwrap.dedent(
        """
        import asyncio, sys

        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] == "opentelemetry":
                    raise ModuleNotFoundError(name)

        sys.meta_path.insert(0, Absent())
        from silo import Client, Grain, Silo, SiloSettings, grain

        @grain
        class Room(Grain):
            async def enter(self): return "entered"

        async def main(url, name):
            async with Silo(Room, settings=SiloSettings(cluster=name, redis=url, bootstrap=True)):
                async with Client.connect(url, cluster=name) as client:
                    print(await client.grain(Room, "lobby").enter())

        asyncio.run(main(*sys.argv[1:]))
        print([name for name in sys.modules if name.startswith(("opentelemetry", "silo.telemetry"))])
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script, redis_url, cluster_name], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["entered", "[]"]


async def test_S083_answers_for_which_nobody_waits_any_more_are_counted_at_silos_and_at_clients(
    cluster: Cluster,
) -> None:
    await cluster.client.grain(Room, "lobby").enter("ada")
    late = Reply(7, Outcome.VALUE, b"\x01", 1)
    cluster.silos["one"].runtime.router.on_reply(late)
    links = vars(cluster.client)["_links"].all()
    for link in links:
        cluster.client.on_frame(link, late)
    assert cluster.observed["one"].total("silo.calls.late") == 1
    assert cluster.observed["client"].total("silo.calls.late") == len(links) > 0
    assert cluster.observed["two"].total("silo.calls.late") == 0
