"""Pagination by signed cursors: the answer `{next, previous, results}`, its `Link` header, and its JSON Schema.

A cursor is a position in the order of a list, not a row. It stays valid when the row is deleted, and rows inserted
between two pages cause neither repeated nor skipped rows.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from hmac import compare_digest
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.db.models import Q, QuerySet
from django.http import HttpResponse
from django.utils.crypto import salted_hmac
from rest_framework.pagination import BasePagination
from rest_framework.request import Request
from rest_framework.response import Response

from agentops.base.refusals import Refusal
from runs.api.problems import JSON
from runs.api.requests.queries import PageQuery
from runs.queries.json_lists import Key, Listing, Rows, RowSpan

#: The version of the content of cursors. Cursors of another version are refused.
VERSION = 1
#: Length of the signature in a cursor.
MAC_BYTES = 16
LINK = {"type": ["string", "null"], "format": "uri-reference"}
#: Reads the rows of a list by SQL.
Fetch = Callable[[RowSpan], Rows]


def object_of(properties: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of an object that has all of these properties."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def map_of(value: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of an object with any properties, whose values have the schema `value`."""
    return {"type": "object", "additionalProperties": value}


class InvalidCursor(Refusal):
    code = "invalid_cursor"
    text = "the cursor is not valid for this list, project and filters: start with the first page"


class Pages(BasePagination):  # type: ignore[misc]
    """DRF's pagination by signed cursors, for an ApiView whose query has PageQuery's parameters."""

    def paginate_queryset(self, queryset: QuerySet[Any] | Fetch, request: Request, view: Any = None) -> list[Any]:
        """Return the rows of the requested page. The order of `queryset` must be total."""
        self.request, self.limit = request, int(view.query["limit"])
        filters = sorted((name, str(value)) for name, value in view.query.items() if name not in _PARAMETERS)
        # A cursor is valid only for this view, this project, this run or agent, and these filters.
        owner = view.kwargs.get("run_id") or view.kwargs.get("agent")
        scope = [request.resolver_match.url_name, str(view.project_id), str(owner), filters]
        self.bound_to = json.dumps(scope).encode()
        self.cursor = _decode_cursor(view.query["cursor"], self.bound_to) if "cursor" in view.query else None
        span = self.cursor or RowSpan(backward="at" in view.query)
        fetch = partial(rows_of, queryset) if isinstance(queryset, QuerySet) else queryset
        # One row more than a page has: it shows whether there is another page.
        batch = fetch(replace(span, limit=self.limit + 1))
        onward, back = self._neighbours(batch, backward=span.backward)
        self.next, self.previous = (back, onward) if span.backward else (onward, back)
        rows = batch.first(self.limit)
        return (rows.backwards() if span.backward else rows).items

    def _neighbours(self, batch: Rows, *, backward: bool) -> tuple[str | None, str | None]:
        """Return the links to the pages after and before this one, in the direction in which `batch` was read."""
        cursor = self.cursor
        end = batch.position_of(self.limit - 1) if len(batch) > self.limit else batch.search_end
        onward = None if end is None else self.link(RowSpan(end, backward=backward))
        if cursor is None:
            return onward, None
        if len(batch):
            return onward, self.link(RowSpan(batch.position_of(0), backward=not backward))
        # There are no rows in this direction: in the other one, the rows begin at the cursor itself.
        return onward, self.link(replace(cursor, backward=not backward, inclusive=not cursor.inclusive))

    def link(self, cursor: RowSpan) -> str:
        """Return the URL of the page at a cursor, with the other parameters of this request."""
        pairs = [
            (name, text) for name, texts in self.request.query_params.lists() for text in texts if name != "cursor"
        ]
        return f"{self.request.path}?{urlencode([*pairs, ('cursor', _encode_cursor(cursor, self.bound_to))])}"

    def get_paginated_response(self, data: Any) -> Response:
        return Response({"next": self.next, "previous": self.previous, "results": data}, headers=self._headers())

    def text_response(self, rows: list[str]) -> HttpResponse:
        """Return the answer for rows that the database wrote as JSON."""
        links = f'"next":{json.dumps(self.next)},"previous":{json.dumps(self.previous)}'
        return HttpResponse(f'{{{links},"results":[{",".join(rows)}]}}', content_type=JSON, headers=self._headers())

    def _headers(self) -> dict[str, str]:
        links = [f'<{url}>; rel="{rel}"' for url, rel in ((self.next, "next"), (self.previous, "prev")) if url]
        return {"Link": ", ".join(links)} if links else {}

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        return object_of({"next": LINK, "previous": LINK, "results": schema})


def page_of(listing: Listing) -> dict[int, dict[str, Any]]:
    """Return the schema of a page for the OpenAPI document."""
    return {200: Pages().get_paginated_response_schema({"type": "array", "items": listing.schema()})}


_PARAMETERS = frozenset(PageQuery().fields)


def rows_of(queryset: QuerySet[Any], span: RowSpan) -> Rows:
    """Return the rows of a queryset after a position in its order. One query.

    The columns of the order must all be ascending, or all be descending.
    """
    order = [str(name) for name in queryset.query.order_by]
    names = [name.removeprefix("-") for name in order]
    sign = "gt" if order[0].startswith("-") == span.backward else "lt"
    # (a > x) or (a = x and b > y) …
    beyond, equal = Q(), Q()
    for name, value in zip(names, span.position, strict=False):
        inclusive = "e" if span.inclusive and name == names[-1] else ""
        beyond |= equal & Q(**{f"{name}__{sign}{inclusive}": value})
        equal &= Q(**{name: value})
    matching = queryset.filter(beyond)
    rows = list((matching.reverse() if span.backward else matching)[: span.limit])
    positions = [tuple(getattr(row, name) for name in names) for row in rows]
    return Rows(rows, positions, [Key(name, to_cursor=_as_json) for name in names])


def _as_json(value: Any) -> int | str:
    return value.hex if isinstance(value, UUID) else value


def _encode_cursor(cursor: RowSpan, bound_to: bytes) -> str:
    """Return a cursor as text: the values of its position, and a number with its two flags."""
    content = json.dumps([*cursor.position, cursor.backward * 2 + cursor.inclusive], separators=(",", ":")).encode()
    return seal(content, bound_to)


def seal(content: bytes, bound_to: bytes) -> str:
    """Return the content as a signed text for a URL. `bound_to`: what `unseal` must be called with."""
    mac = salted_hmac(f"agentops.cursor.{VERSION}", bound_to + b"\0" + content, algorithm="sha256")
    return urlsafe_b64encode(mac.digest()[:MAC_BYTES] + content).decode().rstrip("=")


def unseal(text: str, bound_to: bytes) -> bytes:
    """Return the content of a signed text. Raises `InvalidCursor` if this site did not sign it for `bound_to`."""
    if not text.isascii():
        raise InvalidCursor
    try:
        content = urlsafe_b64decode(text + "=" * (-len(text) % 4))[MAC_BYTES:]
    except (Error, ValueError):
        raise InvalidCursor from None
    # Texts are compared and not bytes, because base64 decodes several texts to the same bytes.
    if not compare_digest(seal(content, bound_to), text):
        raise InvalidCursor
    return content


def _decode_cursor(text: str, bound_to: bytes) -> RowSpan:
    """Return the cursor in a text. Raises `InvalidCursor` if this site did not sign it for `bound_to`."""
    *position, flags = json.loads(unseal(text, bound_to))
    return RowSpan(tuple(position), backward=bool(flags & 2), inclusive=bool(flags & 1))
