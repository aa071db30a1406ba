"""Pages of a list: signed cursors, and the answer `{next, previous, results}` with its `Link` header.

A cursor holds a place in the order of a list, not a row: it goes on working when the row is deleted, and what is
inserted between two pages neither repeats nor skips one.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from collections.abc import Callable
from dataclasses import dataclass, replace
from hmac import compare_digest
from typing import Any, ClassVar
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.utils.crypto import salted_hmac

from runs.api.problems import Problem
from runs.api.requests.parameters import LIMIT, Parameter, Query
from runs.queries.json_lists import Place, Rows, RowSpan

#: A cursor that was made under another version is refused: change it with what a cursor holds.
VERSION = 1
MAX_CURSOR = 512
MAC_BYTES = 16
JSON = "application/json"


class InvalidCursor(Problem):
    code = "invalid_cursor"
    text = "the cursor is not one that this list gave for this project and these filters: begin with the first page"


@dataclass(frozen=True, kw_only=True)
class CursorParameter(Parameter):
    """Its text is read when it is known which list is asked, by `Pages`."""

    name: str = "cursor"
    code: str = "invalid_cursor"
    description: str = "Position of a page, from `next` or `previous` of another page of this list."

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "maxLength": MAX_CURSOR}


CURSOR = CursorParameter()
#: What every list knows.
PAGING = (LIMIT, CURSOR)


@dataclass(frozen=True)
class PageCursor:
    """A place in a list, and on which side of it the page lies."""

    place: Place
    backward: bool = False
    #: The row at the place itself is part of the page.
    inclusive: bool = False


@dataclass(frozen=True)
class Pages:
    """One list as one caller asks for it: which page it wants, and how the links to its neighbours are made."""

    path: str
    query: Query
    #: What a cursor is good for: this view, this project, these filters.
    bound_to: bytes
    cursor: PageCursor | None

    ours: ClassVar[frozenset[str]] = frozenset({LIMIT.name, CURSOR.name})

    @classmethod
    def of(cls, request: HttpRequest, query: Query, view: str, *scope: object) -> Pages:
        """`scope`: the ids of what the list belongs to."""
        filters = sorted((name, str(value)) for name, value in query.values.items() if name not in cls.ours)
        bound_to = json.dumps([view, [str(part) for part in scope], filters]).encode()
        given = query["cursor"]
        return cls(request.path, query, bound_to, None if given is None else _opened(given, bound_to))

    @property
    def limit(self) -> int:
        return int(self.query["limit"])

    def answer(self, fetch: Callable[[RowSpan], Rows], *, head: str = "") -> HttpResponse:
        """The page that was asked for. `head`: members that stand before the page's own, as JSON with a comma."""
        cursor = self.cursor
        place, backward, inclusive = (cursor.place, cursor.backward, cursor.inclusive) if cursor else ((), False, False)
        # One more than a page: that tells whether there is a next one.
        found = fetch(RowSpan(place, backward=backward, inclusive=inclusive, limit=self.limit + 1))
        onward, back = self._neighbours(found)
        rows = found.first(self.limit)
        if backward:
            return self._answered(rows.backwards(), before=onward, after=back, head=head)
        return self._answered(rows, before=back, after=onward, head=head)

    def _neighbours(self, found: Rows) -> tuple[str | None, str | None]:
        """The link onward in the direction of reading, and the one back to where the reader came from."""
        cursor = self.cursor
        backward = cursor is not None and cursor.backward
        count = min(len(found), self.limit)
        end = found.place(self.limit - 1) if len(found) > self.limit else found.reached
        onward = None if end is None else self.link(PageCursor(end, backward=backward))
        if cursor is None:
            return onward, None
        if count:
            return onward, self.link(PageCursor(found.place(0), backward=not backward))
        # Nothing is left on this side: what lies on the other begins at the place itself.
        return onward, self.link(replace(cursor, backward=not backward, inclusive=not cursor.inclusive))

    def link(self, cursor: PageCursor) -> str:
        pairs = [(name, text) for name, text in self.query.sent if name != CURSOR.name]
        return f"{self.path}?{urlencode([*pairs, (CURSOR.name, _sealed(cursor, self.bound_to))])}"

    @staticmethod
    def _answered(rows: Rows, *, before: str | None, after: str | None, head: str) -> HttpResponse:
        links = f'"next":{json.dumps(after)},"previous":{json.dumps(before)}'
        response = HttpResponse(f'{{{head}{links},"results":[{",".join(rows.texts)}]}}', content_type=JSON)
        known = [f'<{url}>; rel="{rel}"' for url, rel in ((after, "next"), (before, "prev")) if url]
        if known:
            response.headers["Link"] = ", ".join(known)
        return response


def _sealed(cursor: PageCursor, bound_to: bytes) -> str:
    content = json.dumps([*cursor.place, cursor.backward * 2 + cursor.inclusive], separators=(",", ":")).encode()
    return _signed(content, bound_to)


def _signed(content: bytes, bound_to: bytes) -> str:
    mac = salted_hmac(f"agentops.cursor.{VERSION}", bound_to + b"\0" + content, algorithm="sha256")
    return urlsafe_b64encode(mac.digest()[:MAC_BYTES] + content).decode().rstrip("=")


def _opened(text: str, bound_to: bytes) -> PageCursor:
    """Raises InvalidCursor for anything but a cursor of ours: no position is ever read that we have not written."""
    if len(text) > MAX_CURSOR or not text.isascii():
        raise InvalidCursor
    try:
        content = urlsafe_b64decode(text + "=" * (-len(text) % 4))[MAC_BYTES:]
    except (Error, ValueError):
        raise InvalidCursor from None
    # Compared as text: base64 is read leniently, so several texts would stand for the same bytes.
    if not compare_digest(_signed(content, bound_to), text):
        raise InvalidCursor
    *place, kind = json.loads(content)
    return PageCursor(tuple(place), backward=bool(kind & 2), inclusive=bool(kind & 1))
