"""Which of the due times that are not decided yet start a run. Pure: no table, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

#: A due time that is found later than this was missed: the site was down. Longer than a restart takes.
ON_TIME = timedelta(minutes=5)
#: Due times that are looked at in one transaction.
MAX_DUE = 2000


@dataclass(frozen=True)
class Plan:
    """What happens next: due times that were missed, and then one that is started."""

    missed: tuple[datetime, ...] = ()
    start: datetime | None = None
    #: Whether there are more due times, for the next transaction.
    has_more: bool = False

    @property
    def handled_until(self) -> datetime | None:
        """The last due time that it decides about."""
        return self.start or (self.missed[-1] if self.missed else None)


def decide(due: Sequence[datetime], now: datetime, *, catches_up: bool) -> Plan:
    """Return the plan for due times, in order and none later than `now`.

    With `catches_up`, the last one is started however late it is. There may be more of them if they are more than
    `MAX_DUE`; the surplus is ignored here.
    """
    has_more, due = len(due) > MAX_DUE, due[:MAX_DUE]
    late = [each for each in due if each < now - ON_TIME]
    if len(late) < len(due):
        return Plan(tuple(late), due[len(late)], has_more or len(due) > len(late) + 1)
    if late and catches_up and not has_more:
        return Plan(tuple(late[:-1]), late[-1])
    return Plan(tuple(late), has_more=has_more)
