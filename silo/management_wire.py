"""What management says on the wire: values to protobuf and back, which nothing else needs to know."""

from __future__ import annotations

from typing import Final

from silo.directory.addresses import Entry, GrainId, SiloAddress
from silo.grain_records import (
    ActivationReport,
    DeactivationReport,
    DeactivationStatus,
    GrainReport,
    GrainState,
    SearchReport,
    Transition,
)
from silo.management_values import MemberReport, SiloReport
from silo.wire.v1 import management_pb2 as wire

SERVICE: Final = "silo.wire.v1.Management"
CHALLENGE: Final = "Challenge"
STATUS: Final = "Status"
DRAIN: Final = "Drain"
CORDON: Final = "Cordon"
GRAIN: Final = "Grain"
DEACTIVATE: Final = "Deactivate"


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
        awaits_earlier=report.awaits_earlier,
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
        in_flight=member.in_flight,
        in_flight_max=member.in_flight_max,
        activations_max=member.activations_max,
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
        reply.awaits_earlier,
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
        member.in_flight if member.HasField("in_flight") else None,
        member.in_flight_max if member.HasField("in_flight_max") else None,
        member.activations_max if member.HasField("activations_max") else None,
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


def grain_asked_to_wire(grain: GrainId, *, look_up: bool) -> bytes:
    return wire.GrainRequest(kind=grain.kind, key=grain.key, look_up=look_up).SerializeToString()


def grain_asked_from_wire(body: bytes) -> tuple[GrainId, bool]:
    """Raises InvalidIdentity for what is no grain."""
    request = wire.GrainRequest.FromString(body)
    return GrainId.of(request.kind, request.key), request.look_up


def grain_report_to_wire(report: GrainReport) -> bytes:
    entry, activation, search = report.entry, report.activation, report.search
    return wire.GrainReply(
        silo=str(report.silo),
        entry=None
        if entry is None
        else wire.Entry(silo=str(entry.silo), activation=entry.activation, epoch=entry.epoch),
        entry_unknown=report.entry_unknown,
        activation=None
        if activation is None
        else wire.ActivationRecord(
            activation=activation.activation,
            epoch=activation.epoch,
            state=activation.state,
            queued_calls=activation.queued_calls,
            running_calls=activation.running_calls,
            idle_s=activation.idle_s,
            reachable_s=activation.reachable_s,
            moving_to=activation.moving_to,
        ),
        search=None
        if search is None
        else wire.SearchRecord(
            waiting_calls=search.waiting_calls, failed_tries=search.failed_tries, retry_in_s=search.retry_in_s
        ),
        transitions=[
            wire.Transition(state=each.state, why=each.why, times=each.times, ago_s=each.ago_s)
            for each in report.transitions
        ],
    ).SerializeToString()


def grain_report_from_wire(grain: GrainId, body: bytes) -> GrainReport:
    """Raises InvalidIdentity, or protobuf's DecodeError, for what no silo sends."""
    reply = wire.GrainReply.FromString(body)
    entry, activation, search = reply.entry, reply.activation, reply.search
    return GrainReport(
        SiloAddress.parse(reply.silo),
        Entry(grain, SiloAddress.parse(entry.silo), entry.activation, entry.epoch) if reply.HasField("entry") else None,
        reply.entry_unknown,
        ActivationReport(
            activation.activation,
            activation.epoch,
            _state_from_wire(activation.state),
            activation.queued_calls,
            activation.running_calls,
            activation.idle_s if activation.HasField("idle_s") else None,
            activation.reachable_s if activation.HasField("reachable_s") else None,
            activation.moving_to,
        )
        if reply.HasField("activation")
        else None,
        SearchReport(
            search.waiting_calls, search.failed_tries, search.retry_in_s if search.HasField("retry_in_s") else None
        )
        if reply.HasField("search")
        else None,
        tuple(
            Transition(each.state, each.why, each.times, each.ago_s if each.HasField("ago_s") else None)
            for each in reply.transitions
        ),
    )


def _state_from_wire(state: str) -> GrainState:
    """A state that only a newer release knows is unknown here."""
    return next((each for each in GrainState if each == state), GrainState.UNKNOWN)


def deactivate_to_wire(grain: GrainId, within_s: float) -> bytes:
    return wire.DeactivateRequest(kind=grain.kind, key=grain.key, within_s=within_s).SerializeToString()


def deactivate_from_wire(body: bytes) -> tuple[GrainId, float]:
    """Raises InvalidIdentity for what is no grain."""
    request = wire.DeactivateRequest.FromString(body)
    return GrainId.of(request.kind, request.key), request.within_s


def deactivation_to_wire(report: DeactivationReport) -> bytes:
    return wire.DeactivateReply(silo=str(report.silo), status=report.status, why=report.why).SerializeToString()


def deactivation_from_wire(body: bytes) -> DeactivationReport:
    """Raises InvalidIdentity, ValueError, or protobuf's DecodeError, for what no silo sends."""
    reply = wire.DeactivateReply.FromString(body)
    return DeactivationReport(SiloAddress.parse(reply.silo), DeactivationStatus(reply.status), reply.why)
