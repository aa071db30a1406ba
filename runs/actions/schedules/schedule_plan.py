"""Decide which undecided due times start a run. Pure functions: no table, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

#: A due time that is processed later than this was missed, because the site was down. Longer than a restart takes.
ON_TIME = timedelta(minutes=5)
#: Maximum due times processed in one transaction.
MAX_DUE = 2000


@dataclass(frozen=True)
class Plan:
    """The next actions: record missed due times, and then start one."""

    missed: tuple[datetime, ...] = ()
    start: datetime | None = None
    #: Whether there are more due times, for the next transaction.
    has_more: bool = False

    @property
    def handled_until(self) -> datetime | None:
        """The last due time that the plan decides."""
        return self.start or (self.missed[-1] if self.missed else None)


def decide(due: Sequence[datetime], now: datetime, *, catches_up: bool) -> Plan:
    """Return the plan for due times, in order and none later than `now`.

    With `catches_up`, the last one is started even if it is late. Due times beyond `MAX_DUE` are ignored here.
    """
    has_more, due = len(due) > MAX_DUE, due[:MAX_DUE]
    late = [each for each in due if each < now - ON_TIME]
    if len(late) < len(due):
        return Plan(tuple(late), due[len(late)], has_more or len(due) > len(late) + 1)
    if late and catches_up and not has_more:
        return Plan(tuple(late[:-1]), late[-1])
    return Plan(tuple(late), has_more=has_more)
