"""The runs related to a run: its lineage, its parents and forks, and the child runs that stop or pause with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from runs.lifecycle.children import recorded_below, taken_along
from runs.models import AgentRun
from runs.pages.timeline.cards import LINE
from runs.queries.run_trees import ancestors_of
from runs.statuses import RunStatus
from timeline.display import clip

#: Number of newest forks that a run page links to.
MAX_FORKS = 20


@dataclass(frozen=True)
class Lineage:
    """The runs that continue each other, and the parents and forks of one of them."""

    #: IDs, oldest first.
    chain: list[UUID]
    #: Position of the run in `chain`, from 1.
    position: int
    #: IDs and titles of the ancestors of this run, from the top down to its parent.
    parents: Sequence[tuple[UUID, str]]
    forked_from: UUID | None
    forked_at_step: int | None
    #: IDs of the forks of this run and the steps they were forked after, newest first.
    forks: Sequence[tuple[UUID, int | None]]

    @property
    def attempts(self) -> int:
        return len(self.chain)

    @property
    def resumed_from(self) -> UUID | None:
        """Return the run that this run continues."""
        return self.chain[self.position - 2] if self.position > 1 else None

    @property
    def resumed_as(self) -> UUID | None:
        """Return the run that continues this run."""
        return self.chain[self.position] if self.position < len(self.chain) else None

    @property
    def root(self) -> UUID | None:
        """Return the first run of the chain, unless this run is the first or the second one."""
        return self.chain[0] if self.position > 2 else None

    @property
    def origin(self) -> UUID | None:
        """Return the run to compare with: the run that this run continues or was forked from."""
        return self.resumed_from or self.forked_from


def parents_of(run: AgentRun) -> list[tuple[UUID, str]]:
    """Return the IDs and titles of the ancestors of a run, from the top down to its parent. One query for each."""
    return [(each.pk, clip(each.title, LINE).text or "(untitled)") for each in ancestors_of(run)]


def lineage_of(run: AgentRun) -> Lineage:
    """Return the lineage of `run`. Two queries, and one for each parent.

    A run is resumed at most once, so the runs with the same root form a chain. A fork starts a new root.
    """
    previous = dict(AgentRun.objects.filter(root_run=run.root_run_id).values_list("pk", "resumed_from"))
    following = {before: after for after, before in previous.items() if before is not None}
    chain: list[UUID] = [run.pk]
    while (before := previous.get(chain[0])) is not None:
        chain.insert(0, before)
    position = len(chain)
    while (after := following.get(chain[-1])) is not None:
        chain.append(after)
    forks = AgentRun.objects.filter(forked_from=run.pk).order_by("-pk").values_list("pk", "forked_at_step")
    newest = list(forks[:MAX_FORKS])
    return Lineage(chain, position, parents_of(run), run.forked_from_id, run.forked_at_step, newest)


#: Maximum child runs that the forms for stopping and pausing name; others are counted.
MAX_NAMED = 10


@dataclass(frozen=True)
class NamedRun:
    """A child run that a form names."""

    id: UUID
    title: str
    agent: str
    status: str


@dataclass(frozen=True)
class TakenAlong:
    """The child runs that stop or pause with a run."""

    count: int = 0
    named: Sequence[NamedRun] = ()

    @property
    def unnamed(self) -> int:
        return self.count - len(self.named)


@dataclass(frozen=True)
class Cascade:
    """The child runs that stop with a run, and the child runs that pause with it."""

    stop: TakenAlong = field(default_factory=TakenAlong)
    pause: TakenAlong = field(default_factory=TakenAlong)


def cascade_of(run: AgentRun) -> Cascade:
    """Return the child runs that stop or pause with a run. One query for each level, and two more."""
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
