"""The query of the tree page: which runs are open, parsed from the URL and written into links."""

from __future__ import annotations

from dataclasses import dataclass, replace
from urllib.parse import urlencode
from uuid import UUID

from django.http import QueryDict

from runs.errors import RunRefusal
from runs.pages.runs.list_query import UUID_HEX

#: Runs up to which a tree is open at first. In a larger one each level is read when it is opened.
MAX_OPEN = 500
#: Children of a run that are shown at first, as many more with each click, and at most.
FIRST_CHILDREN, MAX_CHILDREN = 200, 2000
#: Runs that a URL can name.
MAX_NAMED = 100


class InvalidTreeQuery(RunRefusal):
    """A URL of the tree page with an invalid query parameter."""

    code = "invalid_query"
    status = 400


@dataclass(frozen=True)
class TreeQuery:
    """The state of the page: the runs that differ from what is shown at first, and how many children of a run."""

    opened: tuple[UUID, ...] = ()
    closed: tuple[UUID, ...] = ()
    children: int = FIRST_CHILDREN

    @classmethod
    def parse(cls, query: QueryDict) -> TreeQuery:
        """Return the state in a query string. Raise InvalidTreeQuery for invalid values."""
        text = query.get("children", "")
        if text and not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= MAX_CHILDREN):
            raise InvalidTreeQuery(f"children must be a number from 1 to {MAX_CHILDREN}, not {text[:64]!r}")
        return cls(_ids(query, "open"), _ids(query, "closed"), int(text or FIRST_CHILDREN))

    def is_open(self, run_id: UUID, *, is_large: bool) -> bool:
        """Return whether the children of a run are shown."""
        return run_id in self.opened if is_large else run_id not in self.closed

    def toggled(self, run_id: UUID, *, is_large: bool) -> TreeQuery:
        """Return the state after a click on a run."""
        if is_large:
            return replace(self, opened=_without_or_with(self.opened, run_id))
        return replace(self, closed=_without_or_with(self.closed, run_id))

    def with_more(self) -> TreeQuery:
        """Return the state with more children of each run."""
        return replace(self, children=min(self.children + FIRST_CHILDREN, MAX_CHILDREN))

    def pairs(self) -> list[tuple[str, str]]:
        """Return the state as query parameters."""
        named = (("open", self.opened), ("closed", self.closed))
        pairs = [(name, ",".join(map(str, ids))) for name, ids in named if ids]
        return pairs if self.children == FIRST_CHILDREN else [*pairs, ("children", str(self.children))]

    def __str__(self) -> str:
        return f"?{urlencode(self.pairs(), safe=',')}" if self.pairs() else ""


def _without_or_with(ids: tuple[UUID, ...], run_id: UUID) -> tuple[UUID, ...]:
    """Return the IDs with this one removed or added; of too many, the newest."""
    others = tuple(each for each in ids if each != run_id)
    return others if len(others) < len(ids) else (*others, run_id)[-MAX_NAMED:]


def _ids(query: QueryDict, name: str) -> tuple[UUID, ...]:
    parts = query.get(name, "").split(",") if query.get(name) else []
    if len(parts) > MAX_NAMED or not all(UUID_HEX.fullmatch(part) for part in parts):
        raise InvalidTreeQuery(f"{name} must be at most {MAX_NAMED} run IDs, separated by commas")
    return tuple(dict.fromkeys(map(UUID, parts)))
