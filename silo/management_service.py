"""The silo's side of management, beside its stream: what an operator asks of it, grpc.health.v1 and reflection."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from silo.directory.addresses import GrainId, SiloAddress
from silo.directory.errors import InvalidIdentity, PermissionRefused, SiloError
from silo.grain_records import DeactivationReport, GrainReport
from silo.logs import get_logger
from silo.management_access import NONCE_BYTES, Challenges, Unproved, check
from silo.management_values import SiloReport
from silo.management_wire import (
    CHALLENGE,
    CORDON,
    DEACTIVATE,
    DRAIN,
    GRAIN,
    SERVICE,
    STATUS,
    challenge_to_wire,
    cordon_from_wire,
    deactivate_from_wire,
    deactivation_to_wire,
    drain_from_wire,
    grain_asked_from_wire,
    grain_report_to_wire,
    report_to_wire,
)
from silo.messaging.greeting import Credentials
from silo.messaging.grpc_transport import SERVICE as LINK_SERVICE

log = get_logger(__name__)

Handler = Callable[[bytes], Awaitable[bytes]]

HEALTH_OF: Final = (SERVICE, LINK_SERVICE)
"""The services of which grpc.health.v1 tells, beside the silo as a whole."""
REFUSALS: Final = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


class ManagedSilo(Protocol):
    """What the service asks of its silo."""

    me: SiloAddress

    async def report(self) -> SiloReport: ...

    def answers_to(self, silo: str) -> bool:
        """Whether this is the silo that is meant."""
        ...

    def begin_drain(self) -> None:
        """Move everything elsewhere and stop; does not wait for it. Asked again, it changes nothing."""
        ...

    async def cordon(self, cordoned: bool) -> None:
        """Take no new placements, or take them again, from when this returns. Asked again, it changes nothing."""
        ...

    async def grain_report(self, grain: GrainId, *, look_up: bool) -> GrainReport:
        """What it knows of a grain, and the directory where that is to be asked."""
        ...

    async def deactivate(self, grain: GrainId, within_s: float) -> DeactivationReport:
        """End the activation of a grain; the order stands though it cannot be done within the time."""
        ...


class NotTheOne(Exception):
    """Another silo was meant; the message says who is here."""


class ManagementService:
    """Serves management on a silo's gRPC server.

    Args:
        credentials: of the cluster token; without one anybody may ask for anything.
        rng: makes challenges; nobody must be able to guess what it gives.
    """

    def __init__(self, managed: ManagedSilo, credentials: Credentials | None, rng: random.Random) -> None:
        self._managed = managed
        self._credentials = credentials
        self._rng = rng
        self._challenges = Challenges()
        self._is_open = False
        servicer: Any = vars(health)["aio"].HealthServicer  # the stubs know nothing of `aio`
        self._health = servicer()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register all services, before the server starts."""
        untyped: Any = grpc  # its stubs know no types of messages
        handlers = {
            CHALLENGE: self._challenge,
            STATUS: self._guarded(STATUS, self._status),
            DRAIN: self._guarded(DRAIN, self._drain),
            CORDON: self._guarded(CORDON, self._cordon),
            GRAIN: self._guarded(GRAIN, self._grain),
            DEACTIVATE: self._guarded(DEACTIVATE, self._deactivate),
        }
        methods = {name: untyped.unary_unary_rpc_method_handler(handler) for name, handler in handlers.items()}
        adding: Any = server
        adding.add_generic_rpc_handlers((untyped.method_handlers_generic_handler(SERVICE, methods),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection((*HEALTH_OF, health.SERVICE_NAME, reflection.SERVICE_NAME), server)

    async def announce(self, *, serving: bool) -> None:
        """Tell whoever asks grpc.health.v1. Once it has served, a silo can be managed until it stops."""
        self._is_open = self._is_open or serving
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for service in ("", *HEALTH_OF):
            await self._health.set(service, status)

    def _guarded(self, method: str, handler: Handler) -> Callable[[bytes, Any], Awaitable[bytes]]:
        """The handler, for those who may call it; what it raises becomes a status of gRPC."""

        async def handle(request: bytes, context: Any) -> bytes:
            try:
                if self._credentials is not None:
                    metadata: dict[str, str | bytes] = dict(context.invocation_metadata() or ())
                    now = asyncio.get_running_loop().time()
                    check(self._credentials, self._challenges, metadata, method, request, now)
                if self._is_open:
                    return await handler(request)
                code, why = grpc.StatusCode.UNAVAILABLE, "this silo is still joining its cluster"
            except Unproved as error:
                code, why = grpc.StatusCode.UNAUTHENTICATED, str(error)
            except PermissionRefused as error:
                code, why = grpc.StatusCode.PERMISSION_DENIED, str(error)
            except NotTheOne as error:
                code, why = grpc.StatusCode.FAILED_PRECONDITION, str(error)
            except (DecodeError, InvalidIdentity) as error:
                code, why = grpc.StatusCode.INVALID_ARGUMENT, f"not a request of {method}: {error}"
            except SiloError as error:
                code, why = grpc.StatusCode.UNAVAILABLE, str(error)
            if code in REFUSALS:
                log.warning("management.refused", method=method, peer=context.peer(), why=why)
            await context.abort(code, why)
            raise AssertionError("abort raises")

        return handle

    async def _challenge(self, _request: bytes, _context: object) -> bytes:
        now = asyncio.get_running_loop().time()
        return challenge_to_wire(self._challenges.give(self._rng.randbytes(NONCE_BYTES), now))

    async def _status(self, _request: bytes) -> bytes:
        return report_to_wire(await self._managed.report())

    async def _drain(self, request: bytes) -> bytes:
        silo = drain_from_wire(request)
        self._require(silo)
        log.info("management.drain", silo=silo)
        self._managed.begin_drain()
        return b""

    async def _cordon(self, request: bytes) -> bytes:
        silo, cordoned = cordon_from_wire(request)
        self._require(silo)
        log.info("management.cordon" if cordoned else "management.uncordon", silo=silo)
        await self._managed.cordon(cordoned)
        return b""

    async def _grain(self, request: bytes) -> bytes:
        grain, look_up = grain_asked_from_wire(request)
        return grain_report_to_wire(await self._managed.grain_report(grain, look_up=look_up))

    async def _deactivate(self, request: bytes) -> bytes:
        return deactivation_to_wire(await self._managed.deactivate(*deactivate_from_wire(request)))

    def _require(self, silo: str) -> None:
        if not self._managed.answers_to(silo):
            raise NotTheOne(f"here is {self._managed.me}, not {silo}")
