"""The query of the search page: parsed from the URL, and written into its form and links."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlencode
from uuid import UUID

from django.http import QueryDict

from runs.models import SearchEntry
from runs.queries.json_lists import Position
from runs.queries.searching.search_results import SearchFilters, SearchOrder
from runs.queries.searching.search_terms import InvalidSearch
from runs.statuses import RunStatus
from timeline.redaction.redact import BARE

#: A position: up to three numbers of 64 bits.
POSITION = re.compile(r"[0-9]{1,20}(?:-[0-9]{1,20}){0,2}", re.ASCII)
#: What an input of type datetime-local sends.
MINUTE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(?::[0-9]{2})?", re.ASCII)
MAX_NAME = 256


@dataclass(frozen=True)
class SearchForm:
    """The form of the search page. Empty fields do not filter."""

    text: str = ""
    run: str = ""
    kind: str = ""
    agent: str = ""
    tool: str = ""
    status: str = ""
    errors: str = ""
    since: str = ""
    until: str = ""
    order: str = SearchOrder.RELEVANCE.value
    #: The results after this position. Not part of the form.
    after: Position = ()

    @classmethod
    def parse(cls, query: QueryDict) -> SearchForm:
        """Return the form of a query string. Raises `InvalidSearch` for values that the form does not send."""
        return cls(
            text=BARE.clean_text(query.get("q", "").strip())[0],
            run=_id(query, "run"),
            kind=_choice(query, "kind", SearchEntry.Kind.values),
            agent=_name(query, "agent"),
            tool=_name(query, "tool"),
            status=_choice(query, "status", [status.value for status in RunStatus]),
            errors="1" if query.get("errors") else "",
            since=_minute(query, "since"),
            until=_minute(query, "until"),
            order=_choice(query, "order", [order.value for order in SearchOrder]) or SearchOrder.RELEVANCE.value,
            after=_position(query.get("after", "")),
        )

    @property
    def filters(self) -> SearchFilters:
        """Return the filters, as a search takes them."""
        return SearchFilters(
            run_id=UUID(self.run) if self.run else None,
            kinds=(self.kind,) if self.kind else (),
            agent=self.agent,
            tool=self.tool,
            statuses=(self.status,) if self.status else (),
            errors_only=bool(self.errors),
            since=_time(self.since),
            until=_time(self.until),
        )

    @property
    def is_filtered(self) -> bool:
        """Whether anything but the text and the run limits what is found."""
        return self.filters != SearchFilters(run_id=self.filters.run_id)

    def query_string(self, *, after: Position | None = None, **changes: str) -> str:
        """Return the query string of a link to this search, with changes, from its first page or from a position."""
        fields = {
            "q": self.text,
            "run": self.run,
            "kind": self.kind,
            "agent": self.agent,
            "tool": self.tool,
            "status": self.status,
            "errors": self.errors,
            "since": self.since,
            "until": self.until,
            "order": self.order if self.order != SearchOrder.RELEVANCE else "",
            "after": "-".join(map(str, after or ())),
            **changes,
        }
        return f"?{urlencode({name: value for name, value in fields.items() if value})}"


def _id(query: QueryDict, name: str) -> str:
    text = query.get(name, "")
    try:
        return str(UUID(text)) if text else ""
    except ValueError:
        raise InvalidSearch(f"{name} must be a run ID, not {text[:64]!r}") from None


def _choice(query: QueryDict, name: str, choices: list[str]) -> str:
    text = query.get(name, "")
    if text and text not in choices:
        raise InvalidSearch(f"{name} must be one of {', '.join(choices)}, not {text[:64]!r}")
    return text


def _name(query: QueryDict, name: str) -> str:
    text = BARE.clean_text(query.get(name, "").strip())[0]
    if len(text) > MAX_NAME:
        raise InvalidSearch(f"{name} can have at most {MAX_NAME} characters, not {len(text)}")
    return text


def _minute(query: QueryDict, name: str) -> str:
    text = query.get(name, "")
    try:
        if text and (not MINUTE.fullmatch(text) or _time(text) is None):
            raise ValueError
    except ValueError:
        raise InvalidSearch(f"{name} must be a time such as 2026-11-20T16:45, not {text[:64]!r}") from None
    return text


def _time(text: str) -> datetime | None:
    return datetime.fromisoformat(text).replace(tzinfo=UTC) if text else None


def _position(text: str) -> Position:
    numbers = [int(part) for part in text.split("-")] if POSITION.fullmatch(text) else []
    if (text and not numbers) or any(number >= 2**64 for number in numbers):
        raise InvalidSearch(f"after is not a position in the results: {text[:64]!r}")
    return tuple(numbers)
