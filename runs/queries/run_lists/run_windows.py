"""The search for a page of the run list, in bounded time.

The order of creation, and one filter at a time, have indexes. Other filters and orders have none, because each step of
a run changes their columns: such a search reads the next WINDOW runs only, and reports where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from agentops.accounts.models import Project
from runs.models import AgentRun
from runs.models.querysets import RunQuerySet
from runs.queries.json_lists import Rows, RowSpan, Where
from runs.queries.run_columns import RUNS
from runs.queries.run_lists.filter_conditions import prompt_to_mask, shows_text
from runs.queries.run_lists.run_filters import Filters
from runs.queries.run_lists.run_order import ListPosition, RunOrder

#: Reads the rows of a range that meet conditions, as JSON.
Read = Callable[[Where, RowSpan], Rows]
#: Maximum runs that one request reads.
WINDOW = 10_000
#: Maximum queries for runs in which a text is visible. More are needed only if most matches are in secrets.
MAX_ROUNDS = 5
#: Maximum new runs that are tested against the filters.
MAX_TESTED = 2_000


@dataclass(frozen=True)
class FoundRuns:
    """The runs of a page, in the direction of the search."""

    positions: list[ListPosition]
    #: The position at which the search stopped. None if it reached the end of the list or found enough runs.
    stopped_at: ListPosition | None = None
    #: Whether runs are missing from the order, because it covers only the newest WINDOW runs.
    is_partial: bool = False

    @property
    def ids(self) -> list[UUID]:
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
        """Return at most `limit` matching runs beyond a position, or from the beginning."""
        runs, rest = self.filters.narrowed(self.project)
        condition = rest.condition(self.project.pk)
        if self.order.is_by_creation and not rest:
            return self._collect(runs, position, limit)
        if self.order.is_by_creation:
            runs = self.order.beyond(runs, position, backward=self.backward)
            runs, edge = _within_window(runs, ascending=self._ascending)
            return self._collect(runs.filter(condition), position, limit, edge=edge)
        runs, edge = _within_window(runs.newest_first(), ascending=False)
        numbered = self.order.with_numbers(runs.filter(condition))
        return self._collect(numbered, position, limit, is_partial=edge is not None)

    @property
    def _ascending(self) -> bool:
        return self.order.ascending != self.backward

    def _collect(
        self,
        runs: RunQuerySet,
        position: ListPosition | None,
        limit: int,
        *,
        edge: ListPosition | None = None,
        is_partial: bool = False,
    ) -> FoundRuns:
        """Return the next runs in which the text filter is visible. `edge`: the end of the window; None without one."""
        positions: list[ListPosition] = []
        text = self.filters.text
        for _ in range(MAX_ROUNDS):
            rows = self._rows(self.order.beyond(runs, position, backward=self.backward)[:limit])
            positions += [row.position for row in rows if not text or shows_text(text, row.title, row.prompt)]
            if len(positions) >= limit or len(rows) < limit:
                is_done = len(positions) >= limit
                return FoundRuns(positions[:limit], None if is_done else edge, is_partial)
            position = rows[-1].position
        return FoundRuns(positions, position, is_partial)

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
    runs, rest = filters.narrowed(project)
    newer = runs.newer_than(since.created_at, since.run_id)
    if not rest:
        return newer[:limit].count()
    newest = newer.newest_first().values_list("pk", flat=True)[:MAX_TESTED]
    matching = AgentRun.objects.filter(rest.condition(project.pk), pk__in=list(newest))
    if not filters.text:
        return matching[:limit].count()
    texts = matching.annotate(prompt_text=prompt_to_mask()).values_list("title", "prompt_text")[:limit]
    return sum(shows_text(filters.text, title, prompt or "") for title, prompt in texts)


def read_window(read: Read, where: Where, conditions: Where, span: RowSpan) -> Rows:
    """Return the rows that meet `conditions` among the next WINDOW runs that meet `where`. One more statement.

    If more runs follow, the result has the position where the search stopped.
    """
    end = RUNS.position_at(where, span, WINDOW)
    if end is not None:
        where = RUNS.beyond(where, RowSpan(end, backward=not span.backward, inclusive=True))
    rows = read(where & conditions, span)
    is_done = len(rows) >= span.limit or rows.search_end is not None
    return rows if is_done else replace(rows, search_end=end)


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
