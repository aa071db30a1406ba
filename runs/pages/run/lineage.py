"""Where a run stands among those that it continues, that continue it and that were forked from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from runs.models import AgentRun

#: Forks that a run's page links to, the newest first.
MAX_FORKS = 20


@dataclass(frozen=True)
class Lineage:
    """One conversation over several runs, oldest first."""

    chain: list[UUID]
    #: From 1.
    place: int
    parent: UUID | None
    forked_from: UUID | None
    forked_at_step: int | None
    #: Those that were forked from it: their ids, and the steps.
    forks: Sequence[tuple[UUID, int | None]]

    @property
    def attempts(self) -> int:
        return len(self.chain)

    @property
    def resumed_from(self) -> UUID | None:
        return self.chain[self.place - 2] if self.place > 1 else None

    @property
    def resumed_as(self) -> UUID | None:
        return self.chain[self.place] if self.place < len(self.chain) else None

    @property
    def root(self) -> UUID | None:
        """The first run, where that is neither this one nor the one before it."""
        return self.chain[0] if self.place > 2 else None

    @property
    def origin(self) -> UUID | None:
        """What it can be compared with: the run that it continues or was forked from."""
        return self.resumed_from or self.forked_from


def lineage_of(run: AgentRun) -> Lineage:
    """Two queries. A run is resumed at most once, so the runs of a root are a line; a fork has a root of its own."""
    earlier = dict(AgentRun.objects.filter(root_run=run.root_run_id).values_list("pk", "resumed_from"))
    later = {before: after for after, before in earlier.items() if before is not None}
    chain: list[UUID] = [run.pk]
    while (before := earlier.get(chain[0])) is not None:
        chain.insert(0, before)
    place = len(chain)
    while (after := later.get(chain[-1])) is not None:
        chain.append(after)
    forks = AgentRun.objects.filter(forked_from=run.pk).order_by("-pk").values_list("pk", "forked_at_step")
    found = list(forks[:MAX_FORKS])
    return Lineage(chain, place, run.parent_run_id, run.forked_from_id, run.forked_at_step, found)
