"""The count of what went wrong inside policies and filters that people bring along."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from silo.directory.logs import get_logger

log = get_logger(__name__)


class PolicyFailures:
    """How often each policy or filter raised or answered wrongly. All is counted, not all of it is logged."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def count(self, name: str, method: str, error: BaseException) -> None:
        """Count one failure of a policy's or filter's method."""
        self._counts[name] += 1
        count = self._counts[name]
        if count & (count - 1) == 0:  # the 1st, 2nd, 4th, 8th …: a broken policy is called for every activation
            log.error("placement.policy_failed", policy=name, method=method, times=count, exc_info=error)

    def counts(self) -> Mapping[str, int]:
        """The failures so far, by name."""
        return dict(self._counts)
