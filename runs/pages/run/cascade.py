"""The child runs that stop or pause with a run, for display before the click."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from runs.lifecycle.children import recorded_below, taken_along
from runs.models import AgentRun
from runs.pages.timeline.cards import LINE
from runs.statuses import RunStatus
from timeline.display import clip

#: Maximum child runs that a form names; others are counted.
MAX_NAMED = 10


@dataclass(frozen=True)
class NamedRun:
    """A run named in a form."""

    id: UUID
    title: str
    agent: str
    status: str


@dataclass(frozen=True)
class TakenAlong:
    """The runs that one action also affects."""

    count: int = 0
    named: Sequence[NamedRun] = ()

    @property
    def unnamed(self) -> int:
        """Return the number of runs that are not named."""
        return self.count - len(self.named)


@dataclass(frozen=True)
class Cascade:
    """The runs that stopping and pausing a run also affect."""

    stop: TakenAlong = field(default_factory=TakenAlong)
    pause: TakenAlong = field(default_factory=TakenAlong)


def cascade_of(run: AgentRun) -> Cascade:
    """Return the runs that a stop and a pause also affect. One query for each level, and two more."""
    if run.state.terminal:
        return Cascade()
    if run.is_recorded:
        return Cascade(stop=_named(recorded_below([run.pk])))
    stopped = taken_along([run.pk], RunStatus.STOPPED)
    if not stopped:
        return Cascade()
    return Cascade(_named(stopped), _named(taken_along([run.pk], RunStatus.PAUSED)))


def _named(runs: Sequence[Any]) -> TakenAlong:
    named = [
        NamedRun(run.pk, clip(run.title, LINE).text or "(untitled)", clip(run.agent_name or "", LINE).text, run.status)
        for run in runs[:MAX_NAMED]
    ]
    return TakenAlong(len(runs), named)
