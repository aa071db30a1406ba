"""The query of the run list: filters, order, columns and page position, parsed from the URL and written into links."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from urllib.parse import urlencode
from uuid import UUID

from django.http import QueryDict

from agentops.accounts.models import Project
from agentops.base.refusals import InvalidQuery
from runs.pages.runs.list_columns import DEFAULT, column_pairs, parse_columns
from runs.pages.runs.listed_run import ListedRun, listed_runs, read
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
    #: On the first page: runs created after this position are new to the user.
    since: ListPosition | None
    #: Where a search without an index stopped, if runs remain. Only in the order of creation.
    stopped_at: ListPosition | None = None
    #: Whether only the newest runs are sorted.
    is_partial: bool = False


@dataclass(frozen=True)
class ListQuery:
    """The query of a request: filters, order, columns, and the position before or after a run, or the first page."""

    filters: Filters
    before: ListPosition | None = None
    after: ListPosition | None = None
    order: RunOrder = NEWEST_FIRST
    columns: tuple[str, ...] = DEFAULT

    @classmethod
    def parse(cls, query: QueryDict) -> ListQuery:
        """Return the list query of a query string. Raise InvalidQuery for invalid values."""
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
        """Whether the page has no position."""
        return not self.before and not self.after

    def pairs(self) -> list[tuple[str, str]]:
        """Return filters, order and columns as query parameters."""
        return [*self.filters.pairs(), *self.order.pairs(), *column_pairs(self.columns)]

    def pairs_without_order(self) -> list[tuple[str, str]]:
        """Return filters and columns as query parameters."""
        return [*self.filters.pairs(), *column_pairs(self.columns)]

    def pairs_with_position(self) -> list[tuple[str, str]]:
        """Return the whole query as query parameters."""
        places = (("before", self.before), ("after", self.after))
        return [*self.pairs(), *((name, str(place)) for name, place in places if place)]

    def query_string(self, **position: ListPosition | None) -> str:
        """Return the query string of a link to the list with the same filters, order and columns."""
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
        # The next page continues where the search stopped, even if the search had no results.
        if found.stopped_at and not has_more:
            more_newer, more_older = bool(self.after) or more_newer, not self.after or more_older
            first, last = (found.stopped_at, last) if self.after else (first, found.stopped_at)
        return Page(
            page,
            older=self.query_string(before=last) if more_older and last else None,
            newer=self.query_string(after=first) if more_newer and first else None,
            since=self._newest(page) if self.is_first_page else None,
            stopped_at=found.stopped_at,
            is_partial=found.is_partial,
        )

    def _find(self, project: Project) -> tuple[FoundRuns, dict[UUID, ListedRun]]:
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

    def _newest(self, page: list[ListedRun]) -> ListPosition:
        by_creation = self.order == NEWEST_FIRST and page
        return ListPosition.of(page[0]) if by_creation else ListPosition.now()

    def new_since(self, project: Project, since: ListPosition) -> int:
        """Return the number of matching runs created after `since`, at most MAX_NEW + 1."""
        return run_windows.count_newer(project, self.filters, since, MAX_NEW + 1)


def ids_of(text: str) -> list[UUID]:
    """Return the run IDs in a comma-separated list. Raise InvalidQuery unless it has at most PAGE_SIZE IDs."""
    parts = text.split(",") if text else []
    if len(parts) > PAGE_SIZE or not all(UUID_HEX.fullmatch(part) for part in parts):
        raise InvalidQuery(f"ids must be at most {PAGE_SIZE} run IDs, separated by commas")
    return [UUID(part) for part in parts]
