"""The host: builds a silo from its parts, keeps it in the cluster, and ends it in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from silo.directory.addresses import GrainId, SiloAddress
from silo.directory.errors import InvalidSettings, SiloError
from silo.directory.membership import View
from silo.endpoints import split_endpoint
from silo.kinds import GrainKind, KindRegistry, OnBusy, collect_kinds, kind_of
from silo.logs import get_logger
from silo.migration.outcome import MigrationOutcome, MoveReason
from silo.placement.rules import parse_rule
from silo.reference import grain_id
from silo.runtime import Runtime
from silo.serialization.registry import DEFAULT_REGISTRY, TypeRegistry
from silo.settings import SiloSettings
from silo.surroundings import Surroundings, real_surroundings
from silo.tasks import cancelled

if TYPE_CHECKING:
    from silo.telemetry import Telemetry
    from silo.telemetry.exporting import Exporting

log = get_logger(__name__)

G = TypeVar("G")
REJOIN_TRIES_MAX = 60
"""How often a silo that was declared dead tries to come back before it gives up."""
REJOIN_PAUSE_S = 1.0
"""Between two such tries."""


class Silo:
    """A silo: hosts the activations of some grain kinds and serves clients.

    ```python
    async with Silo(Room, settings=SiloSettings(cluster="prod", redis="redis://localhost:6379")) as silo:
        await silo.wait_stopped()
    ```
    A silo that the cluster has declared dead gives up everything and joins again as another incarnation.

    Args:
        kinds: grain classes, and modules that define some.
        settings: all else; defaults where none are given.
        surroundings: what it stands on; Redis and gRPC as the settings say where none are given.
        registry: the classes that payloads may name, beside those that the grains' signatures mention.
        telemetry: what produces traces and metrics; where none is given, the setting `telemetry.otel` decides.

    Raises:
        InvalidSettings: the settings contradict each other, or name no Redis.
        InvalidGrain: no grain class is among `kinds`, or two have one name.
    """

    def __init__(
        self,
        *kinds: type | ModuleType,
        settings: SiloSettings | None = None,
        surroundings: Surroundings | None = None,
        registry: TypeRegistry = DEFAULT_REGISTRY,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.settings = settings or SiloSettings()
        self._surroundings = surroundings or real_surroundings(self.settings)
        self._kinds = KindRegistry(_kinds_of(kinds))
        self._registry = registry
        for kind in self._kinds:
            registry.register_annotations(kind.cls)
            for state in kind.persistent:
                if self._surroundings.open_storage is None:
                    raise InvalidSettings(f"{kind!r} has persistent state, and there is no storage for it")
                state.resolve(forward_references=False)
        check_placement(self.settings)
        self._runtime: Runtime | None = None
        self._listen = self.settings.listen
        self._stopped: asyncio.Event = asyncio.Event()
        self._life: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._telemetry = telemetry
        self._exporting: Exporting | None = None
        self._ending: asyncio.Task[None] | None = None
        self.drained_by_admin = False
        """Whether an administrator has told it to leave."""

    async def __aenter__(self) -> Silo:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.drain_and_stop()

    async def start(self) -> None:
        """Bind, join the cluster, and serve.

        Raises:
            EndpointInUse: another process listens there; the cluster has not been touched.
            EndpointUnusable: it cannot listen there for another reason; the cluster has not been touched.
            MembershipUnavailable, DirectoryUnavailable: Redis cannot be asked.
        """
        if self._runtime is not None:
            raise SiloError("this silo was started before; make another one")
        try:
            self._runtime = await self._begin(bootstrap=self.settings.bootstrap)
        except BaseException:
            await self._stop_exporting()
            raise
        self._life = asyncio.get_running_loop().create_task(self._live(), name="life of the silo")

    async def _begin(self, *, bootstrap: bool = False) -> Runtime:
        """Another incarnation; the first alone may be the first of a cluster, since later ones have been in one."""
        runtime = Runtime(
            self.settings,
            self._surroundings,
            self._kinds,
            self._registry,
            telemetry=self._telemetry_at,
            begin_drain=self._begin_drain,
        )
        await runtime.start(self._listen, bootstrap=bootstrap)
        host, port = split_endpoint(self.settings.listen)
        if port == 0:  # another incarnation of this silo is to be found where this one was
            self._listen = f"{host}:{split_endpoint(runtime.bound)[1]}"
        return runtime

    def _telemetry_at(self, silo: SiloAddress, name: str) -> Telemetry | None:
        """What one incarnation reports to; exporters know the process by the address of its first one."""
        settings = self.settings
        if self._telemetry is None and settings.telemetry.otel:
            from silo.telemetry.exporting import Exporting  # loaded only where it is used

            self._exporting = Exporting(
                silo=silo, name=name, cluster=settings.cluster, app_version=settings.app_version
            )
            self._telemetry = self._exporting.telemetry
        return self._telemetry.at(silo, name) if self._telemetry is not None else None

    async def _stop_exporting(self) -> None:
        if self._telemetry is not None:
            self._telemetry.settle()
        if self._exporting is not None:
            await self._exporting.stop()

    async def _live(self) -> None:
        """Serve until told to stop; after a verdict of death, come back as another incarnation."""
        try:
            while True:
                runtime = self._running
                try:
                    await runtime.declared_dead()
                    log.error("silo.declared_dead", silo=str(runtime.me))
                except asyncio.CancelledError:
                    raise
                except BaseException:  # the lease itself has failed: as final, and there is no coming back
                    await runtime.abandon()
                    raise
                await runtime.abandon()
                await self._rejoin()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._failure = error
            log.exception("silo.failed")
            try:
                await self._stop_exporting()
            finally:
                self._stopped.set()

    async def _rejoin(self) -> None:
        for attempt in range(1, REJOIN_TRIES_MAX + 1):
            try:
                self._runtime = await self._begin()
            except SiloError as error:
                log.warning("silo.rejoin_failed", attempt=attempt, why=str(error))
                if attempt == REJOIN_TRIES_MAX:
                    raise
                await asyncio.sleep(REJOIN_PAUSE_S)
            else:
                log.info("silo.rejoined", silo=str(self._running.me))
                return

    @property
    def _running(self) -> Runtime:
        if self._runtime is None:
            raise SiloError("this silo was not started: use `async with Silo(...)` or `await silo.start()`")
        return self._runtime

    @property
    def address(self) -> SiloAddress:
        """Its identity: where it is advertised, and which start of it this is."""
        return self._running.me

    @property
    def endpoint(self) -> str:
        """Where others reach it, as host:port."""
        return self._running.me.endpoint

    @property
    def name(self) -> str:
        """What people call it; the same after a restart."""
        return self._running.name

    @property
    def runtime(self) -> Runtime:
        """The parts of the present incarnation, for tests and tools."""
        return self._running

    @property
    def view(self) -> View:
        """The cluster as this silo sees it."""
        return self._running.membership.view

    def grain(self, kind: type[G], key: str) -> G:
        """A reference to a grain, typed as its class; activates nothing. Raises InvalidIdentity."""
        return self._running.caller.reference(kind, key)

    async def migrate(
        self,
        grain: Any,
        *,
        to: str | SiloAddress | None = None,
        reason: str = MoveReason.ADMIN,
        force: bool = False,
        on_busy: OnBusy | None = None,
    ) -> MigrationOutcome:
        """Move a grain that is active somewhere; see `Client.migrate`."""
        return await self._running.migrate(grain_id(grain), to, reason, force, on_busy)

    def activations(self) -> Sequence[GrainId]:
        """The grains that are active here."""
        return [activation.id for activation in self._running.catalog]

    async def wait_stopped(self) -> None:
        """Wait until the silo has ended; raises what ended it, where nobody asked it to."""
        await self._stopped.wait()
        if self._failure is not None:
            raise self._failure

    async def drain_and_stop(self) -> None:
        """Move every grain to another silo, answer what is here, and leave the cluster.

        Ends within `shutdown_timeout_s`, about.
        """
        if self._life is None or (self._stopped.is_set() and self._ending is None):
            return
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end(self._life), name="end of the silo")
        ending = self._ending
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            ending.cancel()  # whoever waits for the end no longer lets it take its time
            await asyncio.wait([ending])
            raise

    def _begin_drain(self) -> None:
        """An administrator wants this silo to leave; `wait_stopped` tells when it has."""
        if self._ending is None and self._life is not None:
            self.drained_by_admin = True
            self._ending = asyncio.get_running_loop().create_task(self._end(self._life), name="end of the silo")

    async def _end(self, life: asyncio.Task[None]) -> None:
        await cancelled([life])
        try:
            await self._running.drain_and_stop(self.settings.migration.shutdown_timeout_s)
            await self._stop_exporting()
        except Exception as error:
            self._failure = error
            raise
        finally:
            self._stopped.set()

    async def kill(self) -> None:
        """End at once, as a crash would: no goodbye, no hooks. For tests of what depends on this silo."""
        if self._stopped.is_set():
            return
        if self._life is not None:
            await cancelled([self._life])
        await self._running.abandon()
        await self._stop_exporting()
        self._stopped.set()


def _kinds_of(kinds: Sequence[type | ModuleType]) -> list[GrainKind]:
    found: list[GrainKind] = []
    for each in kinds:
        found.extend(collect_kinds(each) if isinstance(each, ModuleType) else [kind_of(each)])
    if not found:
        where = ", ".join(getattr(each, "__name__", repr(each)) for each in kinds) or "nothing was given"
        raise InvalidSettings(f"there is no @grain class to host: {where}")
    return found


def check_placement(settings: SiloSettings) -> None:
    """Raise InvalidSettings for a placement rule that is none, before the cluster is touched."""
    placement = settings.placement
    parse_rule(placement.policy, "placement.policy")
    for group, rules in (("type_policies", placement.type_policies), ("force_policies", placement.force_policies)):
        for kind, rule in rules.items():
            parse_rule(rule, f"placement.{group}[{kind!r}]")
