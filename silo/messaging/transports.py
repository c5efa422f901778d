"""The transports that there are, each imported where it is opened: gRPC takes long, and not everybody uses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from silo.messaging.transport import Transport

if TYPE_CHECKING:
    import grpc.aio


def open_grpc(services: Sequence[Callable[[grpc.aio.Server], None]] = ()) -> Transport:
    """The gRPC transport."""
    from silo.messaging.grpc_transport import GrpcTransport

    return GrpcTransport(services=services)


def open_tcp() -> Transport:
    """The transport of the direct lane."""
    from silo.messaging.direct_transport import DirectTransport

    return DirectTransport()
