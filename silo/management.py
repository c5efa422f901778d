"""Management: what an operator asks of a cluster, from a client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from silo.directory.errors import CallTimeout, NotExecuted, PermissionRefused, SiloError, SiloUnavailable
from silo.logs import get_logger
from silo.management_access import prove
from silo.management_values import ClusterStatus, MemberStatus, SiloReport, merged
from silo.management_wire import (
    CHALLENGE,
    CORDON,
    DRAIN,
    SERVICE,
    STATUS,
    challenge_from_wire,
    cordon_to_wire,
    drain_to_wire,
    report_from_wire,
)

if TYPE_CHECKING:
    import grpc.aio

    from silo.directory.addresses import SiloAddress
    from silo.messaging.greeting import Credentials

__all__ = ["ClusterStatus", "Management", "MemberStatus"]

log = get_logger(__name__)

ASK_TIMEOUT_S: Final = 2.0
"""How long one silo may take to answer."""
ASKED_AT_ONCE_MAX: Final = 16
"""How many silos are asked at the same time."""


class Management:
    """What `client.management` offers. Where the cluster has a token, it takes that token or one of the role `admin`.

    Args:
        gateways: finds endpoints of the cluster, or raises NoGateway.
    """

    def __init__(self, gateways: Callable[[float], Awaitable[Sequence[str]]], credentials: Credentials | None) -> None:
        self._gateways = gateways
        self._credentials = credentials

    async def status(self) -> ClusterStatus:
        """The members of the cluster and what they host: by the word of each that answers, else by its last report.

        Raises:
            NoGateway, SiloUnavailable, CallTimeout: no silo answered.
            PermissionRefused: the token does not allow the role `admin`, or is none of this cluster.
        """
        first = await self._first_report()
        slots = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

        async def ask(endpoint: str) -> SiloReport | None:
            async with slots:
                try:
                    return await self._report(endpoint)
                except SiloError as error:  # told in the status itself: this silo did not answer
                    log.debug("management.no_answer", silo=endpoint, why=str(error))
                    return None

        others = [member.address.endpoint for member in first.members if member.address != first.address]
        reports = await asyncio.gather(*(ask(endpoint) for endpoint in others))
        return merged(first, (report for report in reports if report is not None))

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

    async def _ask(self, endpoint: str, method: str, request: bytes) -> bytes:
        import grpc.aio

        from silo.messaging.grpc_transport import CHANNEL_OPTIONS

        async with grpc.aio.insecure_channel(endpoint, options=CHANNEL_OPTIONS) as channel:
            try:
                metadata: tuple[tuple[str, str | bytes], ...] = ()
                if self._credentials is not None:
                    nonce = challenge_from_wire(await _call(channel, CHALLENGE, b"", ()))
                    metadata = prove(self._credentials, nonce, method, request)
                return await _call(channel, method, request, metadata)
            except grpc.aio.AioRpcError as error:
                raise _error(endpoint, method, error) from None


async def _call(
    channel: grpc.aio.Channel, method: str, request: bytes, metadata: tuple[tuple[str, str | bytes], ...]
) -> bytes:
    untyped: Any = channel  # its stubs know no types of messages
    ask = untyped.unary_unary(f"/{SERVICE}/{method}")
    body: bytes = await ask(request, timeout=ASK_TIMEOUT_S, metadata=metadata)
    return body


def _error(endpoint: str, method: str, error: grpc.aio.AioRpcError) -> SiloError:
    """What went wrong, as an error of the runtime."""
    import grpc

    details = error.details() or str(error.code())
    match error.code():
        case grpc.StatusCode.UNAUTHENTICATED | grpc.StatusCode.PERMISSION_DENIED:
            return PermissionRefused(f"{endpoint}: {details}")
        case grpc.StatusCode.FAILED_PRECONDITION | grpc.StatusCode.UNIMPLEMENTED:
            return NotExecuted(f"{endpoint}: {details}")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return CallTimeout(f"{endpoint} did not answer {method} within {ASK_TIMEOUT_S:g} s")
        case _:
            return SiloUnavailable(f"{endpoint}: {details}")
