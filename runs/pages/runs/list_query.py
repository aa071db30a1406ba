"""The query of the run list: filters, order, columns and position, read from the URL and written into links."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from urllib.parse import urlencode
from uuid import UUID

from django.http import QueryDict

from agentops.accounts.models import Project
from agentops.base.refusals import InvalidQuery
from runs.pages.runs.list_columns import DEFAULT, column_pairs, parse_columns
from runs.pages.runs.run_row import ListedRun, listed_runs, read
from runs.queries.run_lists import run_windows
from runs.queries.run_lists.run_filters import Filters
from runs.queries.run_lists.run_order import NEWEST_FIRST, ListPosition, RunOrder
from runs.queries.run_lists.run_windows import FoundRuns, RunSearch

PAGE_SIZE = 50
#: Maximum count of new runs; more are displayed as "99+".
MAX_NEW = 99
UUID_HEX = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


@dataclass(frozen=True)
class Page:
    """A page of the list."""

    runs: list[ListedRun]
    #: Query strings of the next and the previous page; None if the page does not exist.
    older: str | None
    newer: str | None
    #: On the first page, runs created after this position are new to the user; None on other pages.
    since: ListPosition | None
    #: Where a search without an index stopped before the last run; otherwise None. Only in the order of creation.
    stopped_at: ListPosition | None = None
    #: Whether only the newest runs are sorted.
    is_partial: bool = False


@dataclass(frozen=True)
class ListQuery:
    """The query of a request."""

    filters: Filters
    #: The position that the page ends before, or starts after. On the first page, both are None.
    before: ListPosition | None = None
    after: ListPosition | None = None
    order: RunOrder = NEWEST_FIRST
    columns: tuple[str, ...] = DEFAULT

    @classmethod
    def parse(cls, query: QueryDict) -> ListQuery:
        """Return the query of a query string. Raises InvalidQuery."""
        before, after = query.get("before"), query.get("after")
        if before and after:
            raise InvalidQuery("use either before or after, not both")
        return cls(
            Filters.parse(query),
            before=ListPosition.parse(before, "before") if before else None,
            after=ListPosition.parse(after, "after") if after else None,
            order=RunOrder.parse(query),
            columns=parse_columns(query),
        )

    @property
    def is_first_page(self) -> bool:
        return not self.before and not self.after

    def pairs(self) -> list[tuple[str, str]]:
        """Return filters, order and columns as query parameters."""
        return [*self.filters.pairs(), *self.order.pairs(), *column_pairs(self.columns)]

    def pairs_without_order(self) -> list[tuple[str, str]]:
        """Return filters and columns as query parameters."""
        return [*self.filters.pairs(), *column_pairs(self.columns)]

    def pairs_with_position(self) -> list[tuple[str, str]]:
        """Return the whole query as query parameters."""
        positions = (("before", self.before), ("after", self.after))
        return [*self.pairs(), *((name, str(position)) for name, position in positions if position)]

    def query_string(self, **position: ListPosition | None) -> str:
        """Return the query string of a link with the same filters, order and columns, and another position."""
        pairs = self.pairs() + [(name, str(value)) for name, value in position.items() if value]
        return f"?{urlencode(pairs)}" if pairs else ""

    def first_page(self) -> ListQuery:
        """Return the query without its position."""
        return replace(self, before=None, after=None)

    def page(self, project: Project) -> Page:
        """Return a page of the project's runs. Reads one more run than a page has, to know whether there is another."""
        found, runs = self._find(project)
        positions = found.positions[:PAGE_SIZE]
        has_more = len(found.positions) > PAGE_SIZE
        if self.after:
            positions = positions[::-1]
            more_newer, more_older = has_more, True
        else:
            more_newer, more_older = self.before is not None, has_more
        page = [runs[position.run_id] for position in positions if position.run_id in runs]
        first, last = (positions[0], positions[-1]) if positions else (None, None)
        # If the search stopped early, the next page continues there, even after a page without runs.
        if found.stopped_at and not has_more:
            more_newer, more_older = bool(self.after) or more_newer, not self.after or more_older
            first, last = (found.stopped_at, last) if self.after else (first, found.stopped_at)
        since = None
        if self.is_first_page:
            since = ListPosition.of(page[0]) if page and self.order == NEWEST_FIRST else ListPosition.now()
        return Page(
            page,
            older=self.query_string(before=last) if more_older and last else None,
            newer=self.query_string(after=first) if more_newer and first else None,
            since=since,
            stopped_at=found.stopped_at,
            is_partial=found.is_partial,
        )

    def _find(self, project: Project) -> tuple[FoundRuns, dict[UUID, ListedRun]]:
        """Return the positions of one run more than a page has, and the runs of the page by ID."""
        backward, position = self.after is not None, self.after or self.before
        listed, rest = self.filters.narrowed(project, listed_runs())
        if self.order.is_by_creation and not rest:
            # Uses an index: one query for the runs and their columns.
            rows = read(self.order.beyond(listed, position, backward=backward)[: PAGE_SIZE + 1])
            return FoundRuns([ListPosition.of(row) for row in rows]), {row.pk: row for row in rows}
        search = RunSearch(project, self.filters, self.order, backward=backward)
        found = search.find(position, PAGE_SIZE + 1)
        ids = found.ids[:PAGE_SIZE]
        return found, {row.pk: row for row in read(listed_runs().filter(pk__in=ids))} if ids else {}

    def new_since(self, project: Project, since: ListPosition) -> int:
        """Return the number of matching runs created after `since`, at most MAX_NEW + 1."""
        return run_windows.count_newer(project, self.filters, since, MAX_NEW + 1)


def ids_of(text: str) -> list[UUID]:
    """Return the run IDs of a comma-separated list. Raises InvalidQuery, also for more than PAGE_SIZE IDs."""
    parts = text.split(",") if text else []
    if len(parts) > PAGE_SIZE or not all(UUID_HEX.fullmatch(part) for part in parts):
        raise InvalidQuery(f"ids must be at most {PAGE_SIZE} run IDs, separated by commas")
    return [UUID(part) for part in parts]
