"""A search as a list: ranked or newest first, filtered, and in pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from agentops.base.refusals import InvalidQuery
from runs.models import SearchEntry
from runs.queries.json_lists import Key, Rows, RowSpan, Where, id_param, time_param
from runs.queries.run_columns import where_of
from runs.queries.run_lists.filter_conditions import of_agent
from runs.queries.searching import text_index
from runs.queries.searching.entry_conditions import of_project, project_tag, with_status
from runs.queries.searching.search_terms import Excerpt, excerpt, matches, rank
from runs.queries.searching.text_index import SearchScope, find
from runs.queries.searching.text_parts import text_key
from runs.queries.veiled_ids import unveil, veil
from timeline.display import clean, make_legible
from timeline.outgoing import indexes_with_secrets

#: Number of matches, from the newest on, that are ranked.
RANKED = 200
#: Maximum reads of the index for a page. A second read is needed only if a masked text no longer matches.
MAX_ROUNDS = 5


class SearchOrder(StrEnum):
    """The orders of search results."""

    RELEVANCE = "relevance"
    NEWEST = "newest"


@dataclass(frozen=True)
class SearchFilters:
    """The filters of a search. Empty and None: not filtered."""

    run_id: UUID | None = None
    kinds: tuple[str, ...] = ()
    agent: str = ""
    #: The name of a tool: finds only its calls.
    tool: str = ""
    statuses: tuple[str, ...] = ()
    errors_only: bool = False
    since: datetime | None = None
    until: datetime | None = None

    def scope(self, project_id: UUID) -> SearchScope:
        """Return the filters as conditions and tags of the index."""
        where, tags = of_project(project_id), [project_tag(project_id)]
        if self.run_id is not None:
            where = where.also("e.run_id = %s", id_param(self.run_id))
        if self.kinds:
            where = where.also(f"e.kind IN ({', '.join(['%s'] * len(self.kinds))})", *self.kinds)
            tags += [f"k{self.kinds[0]}"] if len(self.kinds) == 1 else []
        if self.tool:
            where = where.also("e.kind = 'tool_call'").also("e.name = %s", self.tool)
            tags += ["ktool_call", f"n{self.tool}"]
        if self.errors_only:
            where = where.also("e.is_error")
            tags.append("etrue")
        if self.agent:
            where &= where_of(of_agent(self.agent, project_id))
        if self.statuses:
            where = with_status(where, project_id, self.statuses)
        in_time = self._in_time(Where(("e.project_id = %s",), (id_param(project_id),))) if self.is_in_time else None
        return SearchScope(self._in_time(where), tuple(tags), in_time, self.run_id)

    @property
    def is_in_time(self) -> bool:
        return self.since is not None or self.until is not None

    def _in_time(self, where: Where) -> Where:
        if self.since is not None:
            where = where.also("e.at >= %s", time_param(self.since))
        if self.until is not None:
            where = where.also("e.at < %s", time_param(self.until))
        return where


@dataclass(frozen=True)
class Search:
    """A search in a project."""

    project_id: UUID
    #: As `search_terms.parse` returns them; at least one.
    terms: tuple[str, ...]
    filters: SearchFilters = field(default_factory=SearchFilters)
    order: SearchOrder = SearchOrder.RELEVANCE


@dataclass(frozen=True)
class Result:
    """An entry that contains all terms."""

    id: int
    #: The run, or the flow run if `is_flow`.
    run_id: UUID
    kind: str
    #: The ID of the message or the tool call. None for an event.
    ref_id: UUID | None
    seq: int
    step: int | None
    #: The role of a message, the tool of a call, or the type of an event.
    name: str
    #: The status of a tool call, according to its last event.
    status: str
    is_error: bool
    at: datetime
    #: The title of the run or of the flow.
    run_title: str
    run_status: str
    #: Empty for a flow run.
    agent_id: str
    excerpt: Excerpt
    is_flow: bool = False


def search(query: Search, span: RowSpan) -> Rows:
    """Return the results of a page.

    `search_end` is the position where a search stopped that took too long. `tail`, for ranked results, is whether more
    matches exist than were ranked. A position is an ID or, for ranked results, the newest ID of all, a rank and an ID.
    Its IDs are veiled.
    """
    scope = query.filters.scope(query.project_id)
    read = _ranked if query.order is SearchOrder.RELEVANCE else _newest
    return read(query, scope, span)


# --- Orders -------------------------------------------------------------------------------------------------------

_ID = Key("e.id", to_cursor=veil, from_cursor=unveil)
_BY_RANK = (_ID, Key("rank"), _ID)


def _newest(query: Search, scope: SearchScope, span: RowSpan) -> Rows:
    (begin,) = _place(span, (_ID,)) or (text_index.newest_id(),)
    step = 1 if span.backward else -1
    if span.position and not span.inclusive:
        begin += step
    rows = Rows([], [], (_ID,))
    for _ in range(MAX_ROUNDS):
        missing = span.limit - len(rows)
        found = find(query.terms, scope, begin, missing, upward=span.backward)
        rows = _joined(rows, _rows(query, [((row[0],), row) for row in found.rows], (_ID,)))
        # A position is before the next entry to read.
        if found.stopped_at is not None:
            return replace(rows, search_end=(veil(found.stopped_at - step),))
        if len(found.rows) < missing or len(rows) >= span.limit:
            return rows
        begin = found.rows[-1][0] + step
    return replace(rows, search_end=(veil(begin - step),))


def _ranked(query: Search, scope: SearchScope, span: RowSpan) -> Rows:
    place = _place(span, _BY_RANK)
    found = find(query.terms, scope, place[0] if place else text_index.newest_id(), RANKED)
    newest = found.rows[0][0] if found.rows else 0
    keyed = [((newest, rank(row[10], query.terms), row[0]), row) for row in found.rows]
    keyed.sort(key=lambda pair: pair[0], reverse=not span.backward)
    if place:
        keyed = [pair for pair in keyed if _is_beyond(pair[0][1:], place[1:], span)]
    is_cut = len(found.rows) == RANKED or found.stopped_at is not None
    rows = Rows([], [], _BY_RANK, tail=(is_cut,))
    while keyed and len(rows) < span.limit:
        missing = span.limit - len(rows)
        rows, keyed = _joined(rows, _rows(query, keyed[:missing], _BY_RANK)), keyed[missing:]
    return rows


def _joined(rows: Rows, more: Rows) -> Rows:
    return replace(rows, items=[*rows.items, *more.items], keys=[*rows.keys, *more.keys])


def _is_beyond(key: tuple[int, ...], place: tuple[int, ...], span: RowSpan) -> bool:
    if key == place:
        return span.inclusive
    return (key > place) == span.backward


def _place(span: RowSpan, order: Sequence[Key]) -> tuple[int, ...]:
    """Return the position of a span; empty for the first page. Raises `InvalidQuery` if it is for another order."""
    if len(span.position) not in (0, len(order)):
        raise InvalidQuery("the position is not one of this search")
    return tuple(key.from_cursor(value) for key, value in zip(order, span.position, strict=False))


# --- Rows ---------------------------------------------------------------------------------------------------------


def _rows(query: Search, keyed: Sequence[tuple[tuple[int, ...], tuple[Any, ...]]], order: Sequence[Key]) -> Rows:
    """Return the results of rows from the index.

    Texts were masked when they were indexed, possibly by a version with fewer detectors. Texts that no longer match
    after masking are left out, so that no secret can be guessed by searching for it.
    """
    stored = [text for _, row in keyed for text in (row[10], row[11], row[13] or "")]
    shown = list(map(make_legible, stored))
    # One pass over all texts; few have secrets.
    for index in indexes_with_secrets(shown):
        shown[index] = clean(stored[index])
    found = []
    for number, (key, row) in enumerate(keyed):
        text, title, agent = shown[3 * number : 3 * number + 3]
        if text == row[10] or matches(text, query.terms):
            found.append((key, _result(row, excerpt(text, query.terms), title, agent)))
    return Rows([result for _, result in found], [key for key, _ in found], order)


def _result(row: tuple[Any, ...], text: Excerpt, title: str, agent: str) -> Result:
    ident, run_id, kind, key, seq, step, name, status, is_error, at, _, _, run_status, _, flow_run = row
    ref_id = None if kind == SearchEntry.Kind.EVENT else UUID(text_key(key))
    return Result(
        id=ident, run_id=UUID(str(run_id)), kind=kind, ref_id=ref_id, seq=seq, step=step, name=name, status=status,
        is_error=bool(is_error), at=_moment(at), run_title=title, run_status=run_status, agent_id=agent, excerpt=text,
        is_flow=flow_run is not None,
    )  # fmt: skip


def _moment(value: datetime | str) -> datetime:
    """Return a time; SQLite's text has no zone."""
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
