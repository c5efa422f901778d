"""What management says on the wire: values to protobuf and back, which nothing else needs to know."""

from __future__ import annotations

from typing import Final

from silo.directory.addresses import SiloAddress
from silo.management_values import MemberReport, SiloReport
from silo.wire.v1 import management_pb2 as wire

SERVICE: Final = "silo.wire.v1.Management"
CHALLENGE: Final = "Challenge"
STATUS: Final = "Status"
DRAIN: Final = "Drain"
CORDON: Final = "Cordon"


def report_to_wire(report: SiloReport) -> bytes:
    return wire.StatusReply(
        cluster=report.cluster,
        view_version=report.view_version,
        address=str(report.address),
        activations_by_kind=report.activations_by_kind,
        open_calls=report.open_calls,
        moves_out=report.moves_out,
        moves_in=report.moves_in,
        members=[_member_to_wire(member) for member in report.members],
    ).SerializeToString()


def _member_to_wire(member: MemberReport) -> wire.Member:
    return wire.Member(
        name=member.name,
        address=str(member.address),
        state=member.state,
        app_version=member.app_version,
        kinds=member.kinds,
        meta=member.meta,
        gateway=member.gateway,
        activations=member.activations,
        loop_lag_s=member.loop_lag_s,
        cordoned=member.cordoned,
    )


def report_from_wire(body: bytes) -> SiloReport:
    """Raises InvalidIdentity, or protobuf's DecodeError, for what no silo sends."""
    reply = wire.StatusReply.FromString(body)
    return SiloReport(
        reply.cluster,
        reply.view_version,
        SiloAddress.parse(reply.address),
        dict(reply.activations_by_kind),
        reply.open_calls,
        reply.moves_out,
        reply.moves_in,
        tuple(_member_from_wire(member) for member in reply.members),
    )


def _member_from_wire(member: wire.Member) -> MemberReport:
    return MemberReport(
        member.name,
        SiloAddress.parse(member.address),
        member.state,
        member.activations if member.HasField("activations") else None,
        member.loop_lag_s if member.HasField("loop_lag_s") else None,
        member.app_version,
        tuple(member.kinds),
        dict(member.meta),
        member.gateway,
        member.cordoned,
    )


def challenge_to_wire(nonce: bytes) -> bytes:
    return wire.ChallengeReply(nonce=nonce).SerializeToString()


def challenge_from_wire(body: bytes) -> bytes:
    return wire.ChallengeReply.FromString(body).nonce


def drain_to_wire(silo: str) -> bytes:
    return wire.DrainRequest(silo=silo).SerializeToString()


def drain_from_wire(body: bytes) -> str:
    return wire.DrainRequest.FromString(body).silo


def cordon_to_wire(silo: str, cordoned: bool) -> bytes:
    return wire.CordonRequest(silo=silo, cordoned=cordoned).SerializeToString()


def cordon_from_wire(body: bytes) -> tuple[str, bool]:
    request = wire.CordonRequest.FromString(body)
    return request.silo, request.cordoned
