"""The transports that there are, each imported where it is opened: gRPC takes long, and not everybody uses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from silo.messaging.certificates import Certificates
from silo.messaging.transport import Transport

if TYPE_CHECKING:
    import grpc.aio

    from silo.messaging.local_transport import LocalTransport


def open_grpc(
    services: Sequence[Callable[[grpc.aio.Server], None]] = (), certificates: Certificates | None = None
) -> Transport:
    """The gRPC transport; under TLS where there are certificates."""
    from silo.messaging.grpc_transport import GrpcTransport

    return GrpcTransport(services, certificates)


def open_local() -> LocalTransport:
    """The transport of the direct lane between silos on one host. It leaves no host, so it needs no certificates."""
    from silo.messaging.local_transport import LocalTransport

    return LocalTransport()


def open_direct(certificates: Certificates | None = None) -> Transport:
    """The transport of the direct lane; under TLS where there are certificates, which must be those of gRPC."""
    from silo.messaging.direct_transport import DirectTransport

    return DirectTransport(certificates)
