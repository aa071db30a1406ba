"""Change lists with constant cost for tables of any size: no counts, no offsets, bounded searches.

A list reads an index from a position. Filters and text searches without an index apply to the next `LOOK` rows only;
the list displays a note, and "Older" continues from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.core.exceptions import ValidationError
from django.db.models import F, Q, QuerySet
from django.db.models.fields.tuple_lookups import Tuple, TupleGreaterThanOrEqual, TupleLessThan
from django.http import HttpRequest

PAGE_SIZE = 50
#: Maximum rows of a page that filters and searches without an index scan.
LOOK = 5_000
OLDER = "older"
BETWEEN = "~"


@dataclass(frozen=True)
class Anchored:
    """Rows read from an index in descending order of `key`, with a note about rows that are left out."""

    rows: QuerySet[Any]
    key: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True)
class SearchResult:
    """The result of a search: rows found by ID, or a condition on text columns that needs a scan."""

    rows: QuerySet[Any]
    texts: Q | None = None
    by_id: bool = False


class BoundedList(ChangeList):
    """Django's change list with keyset pagination and bounded scans."""

    model_admin: Any
    older_url = ""
    newest_url = ""
    note = ""
    without_search = ""

    def get_filters(self, request: HttpRequest) -> Any:
        self.position: str | None = self.params.pop(OLDER, None)
        self.filter_params.pop(OLDER, None)
        return super().get_filters(request)

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        filters: Any = self.get_filters(request)
        self.filter_specs, self.has_filters, _, _, self.has_active_filters = filters
        self.clear_all_filters_qs = self.get_query_string(remove=self.get_filters_params())
        result = self.model_admin.search(self.root_queryset, self.query.strip())
        unanchored = []
        selected: dict[str, str] = {}
        specs: Any = self.filter_specs
        for spec in specs:
            value = spec.selected_value()
            if value is not None and self.model_admin.is_anchor(spec, result, selected):
                selected[spec.parameter_name] = value
            elif value is not None:
                unanchored.append(spec)
        anchored = self.model_admin.anchored(request, result, selected)
        self.key, self.note = anchored.key, anchored.note
        self.order = [f"-{name}" for name in anchored.key]
        rows = self._after_position(anchored.rows).order_by(*self.order)
        #: The position of the last scanned row, if there are more rows.
        self.window_end: tuple[Any, ...] | None = None
        if unanchored or result.texts is not None:
            rows = self._within_window(rows)
            for spec in unanchored:
                rows = spec.queryset(request, rows)
            rows = rows.filter(result.texts) if result.texts is not None else rows
        listed: QuerySet[Any] = self.model_admin.for_list(rows)
        return listed

    def get_results(self, request: HttpRequest) -> None:
        rows = list(self.queryset[: self.list_per_page + 1])
        self.result_list = rows[: self.list_per_page]
        self.result_count = len(self.result_list)
        self.full_result_count = None
        self.show_full_result_count = False
        self.show_admin_actions = bool(rows)
        self.can_show_all = self.multi_page = False
        self.paginator = self.model_admin.get_paginator(request, self.result_list, self.list_per_page)
        after: Sequence[Any] | None = None
        if len(rows) > self.list_per_page:
            after = [getattr(self.result_list[-1], name) for name in self.key]
        elif self.window_end is not None:
            after = self.window_end
            self.note = f"Searched the newest {LOOK:,} rows of this page. Select Older to search older rows."
        if after is not None:
            self.older_url = self.get_query_string({OLDER: BETWEEN.join(map(_to_text, after))})
        self.without_search = self.get_query_string(remove=[SEARCH_VAR])
        if self.position is not None:
            self.newest_url = self.get_query_string()

    def _within_window(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Limit the rows to LOOK by a bound in the index, so that databases do not read more."""
        self.window_end = next(iter(rows.values_list(*self.key)[LOOK - 1 : LOOK]), None)
        if self.window_end is None:
            return rows
        return rows.filter(TupleGreaterThanOrEqual(Tuple(*map(F, self.key)), self.window_end))

    def _after_position(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        if self.position is None:
            return rows
        parts = self.position.split(BETWEEN)
        if len(parts) != len(self.key) or "\0" in self.position:
            raise IncorrectLookupParameters
        fields: list[Any] = [self.opts.get_field(name) for name in self.key]
        try:
            values = [field.to_python(part) for field, part in zip(fields, parts, strict=True)]
        except (ValidationError, OverflowError) as error:
            raise IncorrectLookupParameters from error
        if any(value is None or (isinstance(value, int) and abs(value) >= 2**63) for value in values):
            raise IncorrectLookupParameters
        # A row comparison, so that the index scan starts at the position.
        return rows.filter(TupleLessThan(Tuple(*map(F, self.key)), tuple(values)))


def _to_text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
