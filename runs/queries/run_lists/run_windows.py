"""The search for a page of the run list, in bounded time.

The order of creation, and one filter at a time, have indexes. Other filters and orders have none, because each step of
a run changes their columns. They read the next WINDOW runs only, and report where they stopped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from agentops.accounts.models import Project
from runs.models import AgentRun
from runs.models.querysets import RunQuerySet
from runs.queries.run_lists.run_filters import Filters, prompt_to_mask
from runs.queries.run_lists.run_order import ListPosition, RunOrder

#: The number of runs that one request reads.
WINDOW = 10_000
#: The number of queries for runs in which a text is visible. More would be needed only if most matches are in secrets.
MAX_ROUNDS = 5
#: The number of new runs that are tested against the filters.
MAX_TESTED = 2_000


@dataclass(frozen=True)
class FoundRuns:
    """The runs of a page, in the direction of the search."""

    positions: list[ListPosition]
    #: The position at which the search stopped before the end of the list. None: it has read all runs.
    stopped_at: ListPosition | None = None
    #: Whether runs are missing from the order, because it covers only the newest WINDOW runs.
    is_partial: bool = False

    @property
    def ids(self) -> list[UUID]:
        """Return the IDs of the runs."""
        return [position.run_id for position in self.positions]


@dataclass(frozen=True)
class _Row:
    position: ListPosition
    title: str = ""
    prompt: str = ""


@dataclass(frozen=True)
class RunSearch:
    """A search for runs of a project: filters, order and direction."""

    project: Project
    filters: Filters
    order: RunOrder
    backward: bool = False

    def find(self, position: ListPosition | None, limit: int) -> FoundRuns:
        """Return at most `limit` matching runs beyond a position."""
        runs, rest = self.filters.indexed(self.project)
        if self.order.is_by_creation and not rest:
            return self._collect(runs, position, limit, edge=None, is_partial=False)
        if self.order.is_by_creation:
            runs = self.order.beyond(runs, position, backward=self.backward)
            runs, edge = _within_window(runs, ascending=self._ascending)
            return self._collect(rest.apply(runs), position, limit, edge=edge, is_partial=False)
        runs, edge = _within_window(runs.newest_first(), ascending=False)
        numbered = self.order.with_numbers(rest.apply(runs))
        return self._collect(numbered, position, limit, edge=None, is_partial=edge is not None)

    @property
    def _ascending(self) -> bool:
        return self.order.ascending != self.backward

    def _collect(
        self, runs: RunQuerySet, position: ListPosition | None, limit: int, *, edge: ListPosition | None, **end: Any
    ) -> FoundRuns:
        positions: list[ListPosition] = []
        for _ in range(MAX_ROUNDS):
            rows = self._rows(self.order.beyond(runs, position, backward=self.backward)[:limit])
            positions += [row.position for row in rows if self.filters.matches(row.title, row.prompt)]
            if len(positions) >= limit or len(rows) < limit:
                is_done = len(positions) >= limit
                return FoundRuns(positions[:limit], None if is_done else edge, **end)
            position = rows[-1].position
        return FoundRuns(positions, position, **end)

    def _rows(self, runs: RunQuerySet) -> list[_Row]:
        number = "created_at" if self.order.is_by_creation else "sort_number"
        if not self.filters.text:
            return [_Row(self._position(*row)) for row in runs.values_list(number, "pk")]
        texts = runs.annotate(prompt_text=prompt_to_mask()).values_list(number, "pk", "title", "prompt_text")
        return [_Row(self._position(*row[:2]), row[2], row[3] or "") for row in texts]

    def _position(self, number: Any, run_id: UUID) -> ListPosition:
        return ListPosition.at(number, run_id) if self.order.is_by_creation else ListPosition(number, run_id)


def count_newer(project: Project, filters: Filters, since: ListPosition, limit: int) -> int:
    """Return how many matching runs were created after a position, at most `limit`."""
    runs, rest = filters.indexed(project)
    newer = runs.newer_than(since.created_at, since.run_id)
    if not rest:
        return newer[:limit].count()
    newest = newer.newest_first().values_list("pk", flat=True)[:MAX_TESTED]
    matching = rest.apply(AgentRun.objects.filter(pk__in=list(newest)))
    if not filters.text:
        return matching[:limit].count()
    texts = matching.annotate(prompt_text=prompt_to_mask()).values_list("title", "prompt_text")[:limit]
    return sum(filters.matches(title, prompt or "") for title, prompt in texts)


def _within_window(runs: RunQuerySet, *, ascending: bool) -> tuple[RunQuerySet, ListPosition | None]:
    """Return the first WINDOW runs in the order of creation, and the position of the last one.

    The position is None if no more runs follow.
    """
    last = list(runs.values_list("created_at", "pk")[WINDOW - 1 : WINDOW])
    if not last:
        return runs, None
    created_at, run_id = last[0]
    edge = ListPosition.at(created_at, run_id)
    if ascending:
        return runs.filter(created_at__lte=created_at).exclude(created_at=created_at, pk__gt=run_id), edge
    return runs.filter(created_at__gte=created_at).exclude(created_at=created_at, pk__lt=run_id), edge
