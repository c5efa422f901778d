"""Calls that tell the witness when they were sent and how they ended."""

from __future__ import annotations

import itertools
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Awaitable, Callable

from silo.directory.errors import NotExecuted, OutcomeUnknown
from silo.testing.witness import Ended, ListWitness, What


class WitnessedCaller:
    """One caller: numbers its calls to each grain in the order in which they are sent.

    Args:
        name: the caller's name, unlike any other's.
        calls: how the ids of its calls begin; its name where nothing else is said.
        silo: the incarnation in which it runs, where it is a grain.
        activation: likewise, which activation it is.
    """

    def __init__(
        self, witness: ListWitness, name: str, *, calls: str = "", silo: str = "", activation: str = ""
    ) -> None:
        self.name = name
        self.ended: Tally[str] = Tally()
        self._witness = witness
        self._calls = calls or name
        self._silo = silo
        self._activation = activation
        self._ids = itertools.count(1)
        self._numbers: defaultdict[str, int] = defaultdict(int)

    async def call(self, send: Callable[[str], Awaitable[int]], *, target: str, deadline_s: float) -> int | None:
        """Make one call and wait for its end; returns its answer, or None where there was none.

        Args:
            send: makes the call, given its id; with that deadline.
        """
        call = f"{self._calls}-{next(self._ids)}"
        self._numbers[target] += 1
        self._witness(
            What.CALL_SENT,
            call=call,
            caller=self.name,
            grain=target,
            silo=self._silo,
            activation=self._activation,
            number=self._numbers[target],
            deadline_s=deadline_s,
        )
        outcome, value, because = Ended.CANCELLED, None, ""
        try:
            value = await send(call)
            outcome = Ended.VALUE
        except NotExecuted as error:
            outcome, because = Ended.NOT_EXECUTED, repr(error)
        except OutcomeUnknown as error:
            outcome, because = Ended.OUTCOME_UNKNOWN, repr(error)
        except Exception as error:  # whatever it is, it is how the call ended
            outcome, because = Ended.APPLICATION_ERROR, repr(error)
        finally:
            self.ended[outcome] += 1
            self._witness(What.CALL_ENDED, call=call, caller=self.name, outcome=outcome, value=value, because=because)
        return value
