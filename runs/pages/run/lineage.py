"""The lineage of a run: the runs it continues, the runs that continue it, its parents and its forks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from runs.models import AgentRun
from runs.pages.timeline.cards import LINE
from runs.queries.run_trees import ancestors_of
from timeline.display import clip

#: Number of newest forks that a run page links to.
MAX_FORKS = 20


@dataclass(frozen=True)
class Lineage:
    """The runs of one conversation, oldest first, and related runs."""

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
        """Return the number of runs in the chain."""
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
        """Return the first run of the chain, unless it is this run or the one before it."""
        return self.chain[0] if self.position > 2 else None

    @property
    def origin(self) -> UUID | None:
        """Return the run to compare with: the run that this run continues or was forked from."""
        return self.resumed_from or self.forked_from


def parents_of(run: AgentRun) -> list[tuple[UUID, str]]:
    """Return the IDs and titles of the parents of a run, from the top. One query for each."""
    return [(each.pk, clip(each.title, LINE).text or "(untitled)") for each in ancestors_of(run)]


def lineage_of(run: AgentRun) -> Lineage:
    """Return the lineage of `run`. Two queries, and one for each parent.

    A run is resumed at most once, so the runs with the same root form a chain. A fork starts a new root.
    """
    earlier = dict(AgentRun.objects.filter(root_run=run.root_run_id).values_list("pk", "resumed_from"))
    later = {before: after for after, before in earlier.items() if before is not None}
    chain: list[UUID] = [run.pk]
    while (before := earlier.get(chain[0])) is not None:
        chain.insert(0, before)
    position = len(chain)
    while (after := later.get(chain[-1])) is not None:
        chain.append(after)
    forks = AgentRun.objects.filter(forked_from=run.pk).order_by("-pk").values_list("pk", "forked_at_step")
    newest = list(forks[:MAX_FORKS])
    return Lineage(chain, position, parents_of(run), run.forked_from_id, run.forked_at_step, newest)
