"""The errors of the runtime, sorted by what the caller may do about them.

Every error that ends a call says one of: it was not executed (`NotExecuted`), it may have been executed
(`OutcomeUnknown`), or it is the application's own exception.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class SiloError(Exception):
    """The base of every error that the runtime raises."""


class InvalidIdentity(SiloError, ValueError):
    """A kind, key, cluster name or address that is not of the allowed form."""


class InvalidGrain(SiloError, TypeError):
    """A grain class that is declared wrongly; raised where the class is written."""


class InvalidSettings(SiloError, ValueError):
    """A setting that is unknown, contradictory or out of range."""


class NotExecuted(SiloError):
    """The call did not run and will not: it is safe to send it again."""


class OutcomeUnknown(SiloError):
    """The call may have run; only the application can know whether to send it again."""


class CallTimeout(OutcomeUnknown, TimeoutError):
    """The deadline passed while the call was out; it may have run, or may still be running."""


class CallExpired(NotExecuted, TimeoutError):
    """The deadline passed before the call was started; it will not run."""


class NestedCallFailed(OutcomeUnknown):
    """The turn ran, and ended with the failure of a call that it had made; the message says which.

    The inner failure may be one that is safe to retry; the outer call, which did run, is not.
    """


class SiloUnavailable(OutcomeUnknown, ConnectionError):
    """The silo that had the call died or was lost before it answered."""


class NoGateway(NotExecuted, ConnectionError):
    """No silo of the cluster could be reached within the call's deadline."""


class Overloaded(NotExecuted):
    """A bounded queue on the way is full; `limit` names it."""

    def __init__(self, message: str, limit: str = "") -> None:
        super().__init__(message)
        self.limit = limit


class PayloadTooLarge(NotExecuted, ValueError):
    """The arguments have more bytes than one frame may carry; sending them again cannot help."""

    def __init__(self, message: str, size: int = 0, limit: int = 0) -> None:
        super().__init__(message)
        self.size = size
        self.limit = limit


class AnswerTooLarge(OutcomeUnknown, ValueError):
    """The call ran, and its answer has more bytes than one frame may carry."""

    def __init__(self, message: str, size: int = 0, limit: int = 0) -> None:
        super().__init__(message)
        self.size = size
        self.limit = limit


class CallCycle(NotExecuted):
    """The call waits for its own chain: its grain is waiting, further up, for the answer. `chain` names the grains."""

    def __init__(self, message: str, chain: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.chain = chain


class GrainUnplaceable(NotExecuted):
    """No silo may host the grain; the message says why each one was excluded.

    `retry_after_s` says, where it is known, how soon another try may fare better.
    """

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class GrainKindUnknown(NotExecuted, LookupError):
    """No silo that was asked hosts this kind of grain, or the method is not one of it."""


class ActivationFailed(NotExecuted):
    """The grain's constructor, `on_rehydrate` or `on_activate` raised; the cause is attached."""


class ActivationDamped(ActivationFailed):
    """The grain has failed to start again and again, and is not tried again for some seconds: `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TooManyHops(NotExecuted):
    """The call was forwarded more often than a call may be; the directory and the silos disagree."""


class PermissionRefused(NotExecuted, PermissionError):
    """The peer's role does not allow what it asked for."""


class Closed(NotExecuted):
    """The client or silo was closed; the call was not sent."""


class ClientMisused(NotExecuted, RuntimeError):
    """The client lives on another event loop, or in the process that this one was forked from; nothing was sent."""


class SiloFenced(NotExecuted):
    """This silo may not start turns now: its lease ran out, or it was declared dead."""


class GrainMoved(SiloError):
    """The activation is no longer the grain's: a task that it left behind may use the runtime no more."""


class DirectoryUnavailable(NotExecuted, ConnectionError):
    """The directory could not be asked; nothing is known to have changed, and asking again is safe."""


class DirectoryUnsettled(DirectoryUnavailable):
    """This part of the directory has lost rows, or may have: nothing is registered there until every living silo has
    said again what it serves."""


class DirectoryLifeOver(DirectoryUnavailable):
    """Some of these registrations name a life of their bucket that is over: they were not carried out, all others were.

    Args:
        buckets: the buckets whose lives are over.
    """

    def __init__(self, buckets: Iterable[int]) -> None:
        self.buckets = frozenset(buckets)
        super().__init__(f"{len(self.buckets)} buckets of the directory have begun another life")

    def __reduce__(self) -> tuple[type[DirectoryLifeOver], tuple[frozenset[int]]]:
        return (type(self), (self.buckets,))


class DirectoryRowUnreadable(NotExecuted, ValueError):
    """Directory rows of a format that this release cannot read; they are left alone. `rows` says why, by grain."""

    def __init__(self, rows: Mapping[str, str]) -> None:
        first = next(iter(rows.items()), ("", ""))
        more = f" (and {len(rows) - 1} more rows)" if len(rows) > 1 else ""
        super().__init__(f"the directory's row of {first[0]} cannot be read: {first[1]}{more}")
        self.rows: dict[str, str] = dict(rows)

    def __reduce__(self) -> tuple[type[DirectoryRowUnreadable], tuple[dict[str, str]]]:
        return (type(self), (self.rows,))


class StorageUnavailable(SiloError, ConnectionError):
    """The grain storage could not be asked; nothing was read or written, and asking again is safe."""


class StorageOutcomeUnknown(OutcomeUnknown, ConnectionError):
    """A write of persistent state may have been carried out; the activation ends, and its successor reads which.

    `state` names the state.
    """

    def __init__(self, message: str, state: str = "") -> None:
        super().__init__(message)
        self.state = state


class StorageConflict(SiloError):
    """A write of persistent state was refused, since what is stored is not what this activation has read.

    Another activation has written it, or somebody else has. Nothing was written; this activation ends, and its
    successor reads what is stored. `state` names the state.
    """

    def __init__(self, message: str, state: str = "") -> None:
        super().__init__(message)
        self.state = state


class StoredStateUnreadable(SiloError, ValueError):
    """Persistent state that is stored in a form which this release cannot read; it is left alone."""


class StateTooLarge(SiloError, ValueError):
    """A value of persistent state has more bytes than may be stored; nothing was written."""

    def __init__(self, message: str, size: int = 0, limit: int = 0) -> None:
        super().__init__(message)
        self.size = size
        self.limit = limit


class MembershipUnavailable(SiloError, ConnectionError):
    """The membership table could not be asked; asking again is safe."""


class EndpointUnusable(SiloError, OSError):
    """This silo cannot listen where it should: the address is not one of this machine, say, or the port is reserved."""

    def __str__(self) -> str:
        return self.strerror or super().__str__()


class EndpointInUse(EndpointUnusable):
    """Another process already listens where this silo should."""


class HandshakeRefused(NotExecuted, ConnectionError):
    """The peer refused the link: wrong cluster, wrong token, no common protocol, or not who was dialled."""


class SerializationError(SiloError, TypeError):
    """A value that may not or cannot be sent or received; the message names the class and the fix."""


class MigrationRefused(SiloError):
    """A move that the grain or a silo refused, where the caller asked for an exception instead of an outcome."""
