"""What a silo stands on: transport, directory, membership, chance. Real ones in the product, others in simulation."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from silo.activation.blocking import grain_code_of
from silo.directory.contract import GrainDirectory
from silo.directory.errors import EndpointUnusable, InvalidSettings
from silo.directory.lease_thread import ThreadedMembership
from silo.directory.lease_wire import LeaseWire
from silo.directory.membership import Membership, ProcessIdentity
from silo.directory.process_identity import process_identity
from silo.directory.redis_connection import open_sync
from silo.directory.redis_directory import RedisDirectory
from silo.directory.redis_hints import RedisHints
from silo.directory.redis_membership import RedisMembershipTable
from silo.endpoints import split_endpoint
from silo.messaging.certificates import Certificates
from silo.messaging.direct_lane import LocalWays
from silo.messaging.greeting import Credentials
from silo.messaging.permissions import Role
from silo.messaging.transport import Transport
from silo.messaging.transports import open_direct, open_grpc, open_local
from silo.persistence.contract import GrainStorage
from silo.persistence.redis_storage import RedisStorage

LEASE_WORD: Final = b"silo lease 1"
"""From which the key of the lease's frames is derived, so that it proves nothing anywhere else."""

if TYPE_CHECKING:
    import grpc.aio

    from silo.settings import SiloSettings


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the host builds a silo from.

    Args:
        open_transport: makes the transport; what is passed adds its services to the same server.
        open_direct: makes the transport of the direct lane, where the settings want it; None where there is none.
        open_local: makes the one by which silos on this host talk instead, likewise.
        open_directory, open_membership: make these, connected when first used.
        new_incarnation: tells one start of a silo from the next.
        rng: chance, and secrets: a `random.SystemRandom` outside of simulation.
        process: which operating system process this is, where neighbours may prove its death by it.
        stopwatch: measures how long things took, for people; decides nothing.
    """

    open_transport: Callable[[Sequence[Callable[[grpc.aio.Server], None]]], Transport]
    open_directory: Callable[[], GrainDirectory]
    open_membership: Callable[[], Membership]
    new_incarnation: Callable[[], int]
    rng: random.Random
    process: ProcessIdentity | None = None
    open_direct: Callable[[], Transport] | None = None
    open_local: Callable[[], LocalWays] | None = None
    open_storage: Callable[[], GrainStorage] | None = None
    """Makes where persistent state is kept; None where no grain may have any."""
    stopwatch: Callable[[], float] = time.perf_counter


def real_surroundings(settings: SiloSettings) -> Surroundings:
    """gRPC and Redis, as the settings say; raises InvalidSettings where no Redis is named."""
    url = settings.redis
    if url is None:
        raise InvalidSettings(
            "no Redis is named: give redis=…, --redis URL or SILO_REDIS (for one machine, use `silo dev`)"
        )
    cluster = settings.cluster
    certificates = Certificates.of(settings.tls)

    def open_membership() -> Membership:
        return ThreadedMembership(
            RedisMembershipTable(partial(open_sync, url), cluster),
            settings=settings.lease,
            wire=_open_wire(settings),
            hints=RedisHints(partial(open_sync, url), cluster, settings.lease.ask_timeout_s),
            loop_stuck_after_s=settings.loop_stuck_after_s,
            name_work=grain_code_of,
        )

    return Surroundings(
        open_transport=partial(open_grpc, certificates=certificates),
        open_directory=lambda: RedisDirectory.at(url, cluster),
        open_membership=open_membership,
        new_incarnation=lambda: time.time_ns() // 1000,
        rng=random.SystemRandom(),
        process=process_identity(),
        open_direct=partial(open_direct, certificates),
        open_local=open_local if certificates is None else None,
        open_storage=lambda: RedisStorage.at(settings.storage or url, cluster),
    )


def _open_wire(settings: SiloSettings) -> LeaseWire:
    """The listener by which leases talk; raises EndpointUnusable, or HandshakeRefused where the token is no silo's."""
    host, _ = split_endpoint(settings.listen)
    advertised, _ = split_endpoint(settings.advertise) if settings.advertise is not None else (host, 0)
    token = settings.cluster_token
    key = Credentials(token.get_secret_value()).proof(Role.SILO, LEASE_WORD) if token is not None else None
    try:
        return LeaseWire(
            listen=host,
            port=settings.lease_port,
            advertise=advertised,
            cluster=settings.cluster,
            key=key,
            patience_s=settings.lease.lease_s,
        )
    except OSError as error:
        raise EndpointUnusable(f"the lease cannot listen on {host}:{settings.lease_port}: {error}") from error
