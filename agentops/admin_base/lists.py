"""Lists that cost the same however large their table is: no counts, no offsets, no search without an end.

A list goes down an index from a place in it. What no index can answer (most filters, a search in texts) is asked of
the next `LOOK` rows only, and the list says so; "Older" goes on from there.
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
#: Rows that one page looks through for what no index leads to.
LOOK = 5_000
OLDER = "older"
BETWEEN = "~"


@dataclass(frozen=True)
class Anchored:
    """Rows that an index leads to, in the order of `key`, largest first; with a word on what is left out."""

    rows: QuerySet[Any]
    key: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True)
class Found:
    """What a search came to: rows found by an id, or a condition on texts that has to be looked for."""

    rows: QuerySet[Any]
    texts: Q | None = None
    by_id: bool = False


class BoundedList(ChangeList):
    """Django's change list with another way to its rows."""

    model_admin: Any
    older_url = ""
    newest_url = ""
    note = ""
    without_search = ""

    def get_filters(self, request: HttpRequest) -> Any:
        self.place: str | None = self.params.pop(OLDER, None)
        self.filter_params.pop(OLDER, None)
        return super().get_filters(request)

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        found_filters: Any = self.get_filters(request)
        self.filter_specs, self.has_filters, _, _, self.has_active_filters = found_filters
        self.clear_all_filters_qs = self.get_query_string(remove=self.get_filters_params())
        found = self.model_admin.found(self.root_queryset, self.query.strip())
        loose = []
        chosen: dict[str, str] = {}
        specs: Any = self.filter_specs
        for spec in specs:
            value = spec.checked()
            if value is not None and self.model_admin.is_anchor(spec, found, chosen):
                chosen[spec.parameter_name] = value
            elif value is not None:
                loose.append(spec)
        anchored = self.model_admin.anchored(request, found, chosen)
        self.key, self.note = anchored.key, anchored.note
        self.order = [f"-{name}" for name in anchored.key]
        rows = self._from_the_place(anchored.rows).order_by(*self.order)
        #: The place of the last row that is looked through, where there are more.
        self.window_end: tuple[Any, ...] | None = None
        if loose or found.texts is not None:
            rows = self._to_the_end_of_the_window(rows)
            for spec in loose:
                rows = spec.queryset(request, rows)
            rows = rows.filter(found.texts) if found.texts is not None else rows
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
            self.note = f"These are all among {LOOK:,} rows; older ones have not been looked through."
        if after is not None:
            self.older_url = self.get_query_string({OLDER: BETWEEN.join(map(_written, after))})
        self.without_search = self.get_query_string(remove=[SEARCH_VAR])
        if self.place is not None:
            self.newest_url = self.get_query_string()

    def _to_the_end_of_the_window(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Two bounds in the index, not the rows themselves: so no database has a reason to read more than these."""
        self.window_end = next(iter(rows.values_list(*self.key)[LOOK - 1 : LOOK]), None)
        if self.window_end is None:
            return rows
        return rows.filter(TupleGreaterThanOrEqual(Tuple(*map(F, self.key)), self.window_end))

    def _from_the_place(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        if self.place is None:
            return rows
        parts = self.place.split(BETWEEN)
        if len(parts) != len(self.key) or "\0" in self.place:
            raise IncorrectLookupParameters
        fields: list[Any] = [self.opts.get_field(name) for name in self.key]
        try:
            values = [field.to_python(part) for field, part in zip(fields, parts, strict=True)]
        except (ValidationError, OverflowError) as error:
            raise IncorrectLookupParameters from error
        if any(value is None or (isinstance(value, int) and abs(value) >= 2**63) for value in values):
            raise IncorrectLookupParameters
        # One comparison of all columns: an index starts at the place and never goes over what lies before it.
        return rows.filter(TupleLessThan(Tuple(*map(F, self.key)), tuple(values)))


def _written(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
