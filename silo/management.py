"""Management: what an operator asks of a cluster, from a client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from silo.directory.errors import (
    CallTimeout,
    GrainKindUnknown,
    NotExecuted,
    PermissionRefused,
    SiloError,
    SiloUnavailable,
)
from silo.grain_records import (
    DeactivationOutcome,
    DeactivationReport,
    DeactivationStatus,
    GrainRecord,
    GrainReport,
    GrainState,
    deactivation_outcome,
    recorded,
)
from silo.kinds import hosted_nowhere
from silo.logs import get_logger
from silo.management_access import prove
from silo.management_values import ClusterStatus, MemberStatus, SiloReport, merged
from silo.management_wire import (
    CHALLENGE,
    CORDON,
    DEACTIVATE,
    DRAIN,
    GRAIN,
    SERVICE,
    STATUS,
    challenge_from_wire,
    cordon_to_wire,
    deactivate_to_wire,
    deactivation_from_wire,
    drain_to_wire,
    grain_asked_to_wire,
    grain_report_from_wire,
    report_from_wire,
)
from silo.reference import grain_id

if TYPE_CHECKING:
    import grpc.aio

    from silo.directory.addresses import GrainId, SiloAddress
    from silo.messaging.certificates import Certificates
    from silo.messaging.greeting import Credentials

__all__ = ["ClusterStatus", "DeactivationOutcome", "GrainRecord", "Management", "MemberStatus"]

log = get_logger(__name__)

Answer = TypeVar("Answer")

ASK_TIMEOUT_S: Final = 2.0
"""How long one silo may take to answer."""
DEACTIVATE_TIMEOUT_S: Final = 30.0
"""How long an order to deactivate waits for the grain's running calls, where it does not say."""
DEACTIVATE_ROUNDS_MAX: Final = 4
"""How often all silos are told to deactivate a grain that moves on meanwhile."""
ASKED_AT_ONCE_MAX: Final = 16
"""How many silos are asked at the same time."""


class Management:
    """What `client.management` offers. Where the cluster has a token, it takes that token or one of the role `admin`.

    Args:
        gateways: finds endpoints of the cluster, or raises NoGateway.
        certificates: for a cluster that talks under TLS.

    Raises:
        InvalidSettings: the certificates cannot be used.
    """

    def __init__(
        self,
        gateways: Callable[[float], Awaitable[Sequence[str]]],
        credentials: Credentials | None,
        certificates: Certificates | None = None,
    ) -> None:
        self._gateways = gateways
        self._credentials = credentials
        self._tls = certificates.grpc_channel() if certificates is not None else None

    async def status(self) -> ClusterStatus:
        """The members of the cluster and what they host: by the word of each that answers, else by its last report.

        Raises:
            NoGateway, SiloUnavailable, CallTimeout: no silo answered.
            PermissionRefused: the token does not allow the role `admin`, or is none of this cluster.
        """
        first = await self._first_report()
        others = [member.address for member in first.members if member.address != first.address]
        reports = await _of_each(others, lambda silo: self._report(silo.endpoint))
        return merged(first, reports.values())

    async def grain(self, grain: Any) -> GrainRecord:
        """What the cluster knows of one grain: where it is active, or what keeps it from that. Activates nothing.

        Args:
            grain: a reference or a GrainId.

        Raises:
            GrainKindUnknown: nothing is known of it, and no silo hosts its kind.
            NoGateway, SiloUnavailable, CallTimeout: no silo answered.
            PermissionRefused: the token does not allow the role `admin`, or is none of this cluster.
        """
        identity = grain_id(grain)
        first = await self._first_report()

        async def ask(silo: SiloAddress) -> GrainReport:
            request = grain_asked_to_wire(identity, look_up=silo == first.address)
            return grain_report_from_wire(identity, await self._ask(silo.endpoint, GRAIN, request))

        names = {member.address: member.name for member in first.members}
        reports = await _of_each(names, ask)
        record = recorded(identity, list(reports.values()), names, names.keys() - reports.keys())
        if record.state is GrainState.NOT_ACTIVE and not record.transitions and (why := _unhosted(identity, first)):
            raise GrainKindUnknown(f"{identity}: {why}")
        return record

    async def deactivate(self, grain: Any, *, timeout_s: float = DEACTIVATE_TIMEOUT_S) -> DeactivationOutcome:
        """End the activation of a grain, whatever it does, and forget its troubles; the next call activates it afresh.

        Running calls end first, `on_deactivate` runs, and what is stored stays as it is. Calls that wait for the grain
        go to the new activation. Of a grain that waits for a place, the next try is made at once.

        Args:
            grain: a reference or a GrainId.
            timeout_s: how long to wait for the end; the order stands beyond that, and may be given again.

        Returns:
            What became of it: deactivated, not active (and why there can be no such grain, where that is so), or under
            way and why.

        Raises:
            NoGateway, SiloUnavailable, CallTimeout: no silo answered.
            PermissionRefused: the token does not allow the role `admin`, or is none of this cluster.
        """
        identity = grain_id(grain)
        first = await self._first_report()
        names = {member.address: member.name for member in first.members}
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + timeout_s

        async def order(silo: SiloAddress) -> DeactivationReport:
            within_s = max(0.0, give_up_at - loop.time())
            request = deactivate_to_wire(identity, within_s)
            answer = await self._ask(silo.endpoint, DEACTIVATE, request, within_s + ASK_TIMEOUT_S)
            return deactivation_from_wire(answer)

        reports: list[DeactivationReport] = []
        unanswered: frozenset[SiloAddress] = frozenset()
        for _ in range(DEACTIVATE_ROUNDS_MAX):
            answers = await _of_each(names, order)
            reports = [*(each for each in reports if each.status is DeactivationStatus.DEACTIVATED), *answers.values()]
            unanswered = frozenset(names.keys() - answers.keys())
            if not any(each.status is DeactivationStatus.MOVED for each in answers.values()):
                break  # else the grain went on to a silo that may have been asked before it came
        outcome = deactivation_outcome(identity, reports, sorted(names[silo] for silo in unanswered))
        if outcome.status is DeactivationStatus.NOT_ACTIVE:
            return msgspec.structs.replace(outcome, why=_unhosted(identity, first))
        return outcome

    async def drain(self, silo: str) -> None:
        """Have a silo move its grains elsewhere, answer what it has, and stop. Returns once it has begun.

        Args:
            silo: its name, endpoint or address; it need not be a gateway.

        Raises:
            NotExecuted: no living silo is called so.
            PermissionRefused: the token does not allow the role `admin`, or is none of this cluster.
            NoGateway, SiloUnavailable, CallTimeout: it could not be told, or was not heard to agree.
        """
        address = await self._called(silo)
        await self._ask(address.endpoint, DRAIN, drain_to_wire(str(address)))

    async def cordon(self, silo: str) -> SiloAddress:
        """Have a silo take no new placements: it serves what it has, and moves to it are refused. Returns once that is
        written in the membership table; the other silos see it a moment later.

        It belongs to this incarnation: after a restart the silo takes placements again.

        Args:
            silo: its name, endpoint or address; it need not be a gateway.

        Returns:
            Which silo it was.

        Raises:
            NotExecuted: no living silo is called so.
            PermissionRefused: the token does not allow the role `admin`, or is none of this cluster.
            NoGateway, SiloUnavailable, CallTimeout: it could not be told, or was not heard to have done it.
        """
        return await self._cordon(silo, cordoned=True)

    async def uncordon(self, silo: str) -> SiloAddress:
        """Have a silo take new placements again; grains that wait for a place are tried at once. See `cordon`."""
        return await self._cordon(silo, cordoned=False)

    async def _cordon(self, silo: str, *, cordoned: bool) -> SiloAddress:
        address = await self._called(silo)
        await self._ask(address.endpoint, CORDON, cordon_to_wire(str(address), cordoned))
        return address

    async def _called(self, silo: str) -> SiloAddress:
        """The living silo of this name, endpoint or address; of two, the one that joined last."""
        first = await self._first_report()
        for member in reversed(first.members):
            if silo in (member.name, member.address.endpoint, str(member.address)):
                return member.address
        known = ", ".join(sorted(member.name for member in first.members))
        raise NotExecuted(f"no living silo is called {silo} (known: {known})")

    async def _first_report(self) -> SiloReport:
        """The report of the first gateway that answers."""
        failure: SiloError | None = None
        for endpoint in await self._gateways(ASK_TIMEOUT_S):
            try:
                return await self._report(endpoint)
            except PermissionRefused:
                raise
            except SiloError as error:
                failure = error
        raise failure or SiloUnavailable("the gateways went away before they could be asked")

    async def _report(self, endpoint: str) -> SiloReport:
        return report_from_wire(await self._ask(endpoint, STATUS, b""))

    async def _ask(self, endpoint: str, method: str, request: bytes, timeout_s: float | None = None) -> bytes:
        timeout_s = ASK_TIMEOUT_S if timeout_s is None else timeout_s
        import grpc.aio

        from silo.messaging.grpc_transport import open_channel

        async with open_channel(endpoint, self._tls) as channel:
            try:
                metadata: tuple[tuple[str, str | bytes], ...] = ()
                if self._credentials is not None:
                    nonce = challenge_from_wire(await _call(channel, CHALLENGE, b"", (), ASK_TIMEOUT_S))
                    metadata = prove(self._credentials, nonce, method, request)
                return await _call(channel, method, request, metadata, timeout_s)
            except grpc.aio.AioRpcError as error:
                raise _error(endpoint, method, error, timeout_s) from None


async def _call(
    channel: grpc.aio.Channel,
    method: str,
    request: bytes,
    metadata: tuple[tuple[str, str | bytes], ...],
    timeout_s: float,
) -> bytes:
    untyped: Any = channel  # its stubs know no types of messages
    ask = untyped.unary_unary(f"/{SERVICE}/{method}")
    body: bytes = await ask(request, timeout=timeout_s, metadata=metadata)
    return body


async def _of_each(
    silos: Iterable[SiloAddress], ask: Callable[[SiloAddress], Awaitable[Answer]]
) -> dict[SiloAddress, Answer]:
    """The answers of those silos that answer, a bounded number asked at a time."""
    slots = asyncio.Semaphore(ASKED_AT_ONCE_MAX)
    answers: dict[SiloAddress, Answer] = {}

    async def one(silo: SiloAddress) -> None:
        async with slots:
            try:
                answers[silo] = await ask(silo)
            except SiloError as error:  # told by its absence: this silo did not answer
                log.debug("management.no_answer", silo=str(silo), why=str(error))

    await asyncio.gather(*(one(silo) for silo in silos))
    return answers


def _unhosted(grain: GrainId, first: SiloReport) -> str:
    """Why there can be no such grain: somebody has mistyped its kind. Empty where there can."""
    return hosted_nowhere(grain.kind, [member.kinds for member in first.members])


def _error(endpoint: str, method: str, error: grpc.aio.AioRpcError, timeout_s: float) -> SiloError:
    """What went wrong, as an error of the runtime."""
    import grpc

    details = error.details() or str(error.code())
    match error.code():
        case grpc.StatusCode.UNAUTHENTICATED | grpc.StatusCode.PERMISSION_DENIED:
            return PermissionRefused(f"{endpoint}: {details}")
        case grpc.StatusCode.FAILED_PRECONDITION | grpc.StatusCode.UNIMPLEMENTED:
            return NotExecuted(f"{endpoint}: {details}")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return CallTimeout(f"{endpoint} did not answer {method} within {timeout_s:g} s")
        case _:
            return SiloUnavailable(f"{endpoint}: {details}")
