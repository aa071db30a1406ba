"""The results of a search in the index: filtered, ranked or newest first, in pages.

The IDs of entries are counted over all projects, so a reader of one project could see from them how much other projects
store. Readers therefore receive veiled IDs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from uuid import UUID

from django.utils.crypto import salted_hmac

from agentops.base.refusals import InvalidQuery
from runs.models import SearchEntry
from runs.queries.json_lists import Key, Rows, RowSpan, Where, id_param, time_param
from runs.queries.run_columns import where_of
from runs.queries.run_lists.filter_conditions import of_agent
from runs.queries.searching import text_index
from runs.queries.searching.index_entries import of_project, project_tag, text_key, with_status
from runs.queries.searching.search_terms import Excerpt, excerpt, matches, rank
from runs.queries.searching.text_index import IndexRow, SearchScope, find
from timeline.display import clean, make_legible
from timeline.reading import indexes_with_secrets

#: The lower half of a 64-bit number.
_HALF = 2**32 - 1
#: The rounds of the Feistel network that veils IDs.
_ROUNDS = range(4)


def veil(value: int) -> int:
    """Return a 64-bit number that reveals nothing about `value`, which has at most 64 bits. See `unveil`."""
    left, right = value >> 32, value & _HALF
    for number in _ROUNDS:
        left, right = right, left ^ _mix(number, right)
    return left << 32 | right


def unveil(value: int) -> int:
    """Return the number of which `veil` returned `value`."""
    left, right = value >> 32 & _HALF, value & _HALF
    for number in reversed(_ROUNDS):
        left, right = right ^ _mix(number, left), left
    return left << 32 | right


def _mix(number: int, half: int) -> int:
    """Return 32 pseudo-random bits for a half, keyed by SECRET_KEY: the round function of the Feistel network."""
    mac = salted_hmac("agentops.veiled_ids", f"{number}.{half}", algorithm="sha256")
    return int.from_bytes(mac.digest()[:4], "big")


#: Maximum number of matches that are ranked: the newest ones.
MAX_RANKED = 200
#: Maximum reads of the index for a page. More than one is needed only if texts no longer match after masking.
MAX_ROUNDS = 5


class SearchOrder(StrEnum):
    """The orders of search results."""

    RELEVANCE = "relevance"
    NEWEST = "newest"


@dataclass(frozen=True)
class SearchFilters:
    """The filters of a search. Empty and None do not filter."""

    run_id: UUID | None = None
    kinds: tuple[str, ...] = ()
    agent: str = ""
    #: The name of a tool: only its calls are found.
    tool: str = ""
    statuses: tuple[str, ...] = ()
    errors_only: bool = False
    since: datetime | None = None
    until: datetime | None = None

    def scope(self, project_id: UUID) -> SearchScope:
        """Return the filters in the form of the index."""
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
        in_time = None
        if self.since is not None or self.until is not None:
            in_time = self._in_time(Where(("e.project_id = %s",), (id_param(project_id),)))
        return SearchScope(self._in_time(where), tuple(tags), in_time, self.run_id)

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

    If the search took too long, `search_end` is the position where it stopped. `tail`, for ranked results, tells
    whether there may be more matches than were ranked. A position is an ID or, for ranked results, the newest ID of
    all matches, a rank and an ID. All IDs are veiled.
    """
    scope = query.filters.scope(query.project_id)
    read = _ranked if query.order is SearchOrder.RELEVANCE else _newest
    return read(query, scope, span)


# --- Orders -------------------------------------------------------------------------------------------------------

_ID = Key("e.id", to_cursor=veil, from_cursor=unveil)
_BY_RANK = (_ID, Key("rank"), _ID)


def _newest(query: Search, scope: SearchScope, span: RowSpan) -> Rows:
    (begin,) = _decode_position(span, (_ID,)) or (text_index.newest_id(),)
    step = 1 if span.backward else -1
    if span.position and not span.inclusive:
        begin += step
    rows = Rows([], [], (_ID,))
    for _ in range(MAX_ROUNDS):
        missing = span.limit - len(rows)
        matches = find(query.terms, scope, begin, missing, upward=span.backward)
        rows = _joined(rows, _rows(query, [((row.id,), row) for row in matches.rows], (_ID,)))
        # The search continues after a position, so the position precedes the next entry to read.
        if matches.stopped_at is not None:
            return replace(rows, search_end=(veil(matches.stopped_at - step),))
        if len(matches.rows) < missing or len(rows) >= span.limit:
            return rows
        begin = matches.rows[-1].id + step
    return replace(rows, search_end=(veil(begin - step),))


def _ranked(query: Search, scope: SearchScope, span: RowSpan) -> Rows:
    position = _decode_position(span, _BY_RANK)
    matches = find(query.terms, scope, position[0] if position else text_index.newest_id(), MAX_RANKED)
    newest = matches.rows[0].id if matches.rows else 0
    keyed = [((newest, rank(row.text, query.terms), row.id), row) for row in matches.rows]
    keyed.sort(key=lambda pair: pair[0], reverse=not span.backward)
    if position:
        keyed = [pair for pair in keyed if _is_beyond(pair[0][1:], position[1:], span)]
    has_more = len(matches.rows) == MAX_RANKED or matches.stopped_at is not None
    rows = Rows([], [], _BY_RANK, tail=(has_more,))
    while keyed and len(rows) < span.limit:
        missing = span.limit - len(rows)
        rows, keyed = _joined(rows, _rows(query, keyed[:missing], _BY_RANK)), keyed[missing:]
    return rows


def _joined(rows: Rows, more: Rows) -> Rows:
    return replace(rows, items=[*rows.items, *more.items], keys=[*rows.keys, *more.keys])


def _is_beyond(key: tuple[int, ...], position: tuple[int, ...], span: RowSpan) -> bool:
    if key == position:
        return span.inclusive
    return (key > position) == span.backward


def _decode_position(span: RowSpan, order: Sequence[Key]) -> tuple[int, ...]:
    """Return the position of a span with its original IDs; empty for the first page.

    Raises `InvalidQuery` if it belongs to another order.
    """
    if len(span.position) not in (0, len(order)):
        raise InvalidQuery("the position is not one of this search")
    return tuple(key.from_cursor(value) for key, value in zip(order, span.position, strict=False))


# --- Rows ---------------------------------------------------------------------------------------------------------


def _rows(query: Search, keyed: Sequence[tuple[tuple[int, ...], IndexRow]], order: Sequence[Key]) -> Rows:
    """Return the search results for rows of the index. `keyed`: each row with its values of the columns of `order`.

    Texts were masked when they were indexed, possibly by a version with fewer detectors. Texts that no longer match
    after masking are left out, so that no secret can be guessed by searching for it.
    """
    stored = [text for _, row in keyed for text in (row.text, row.title, row.agent or "")]
    masked = list(map(make_legible, stored))
    # One search over all texts: few contain secrets.
    for index in indexes_with_secrets(masked):
        masked[index] = clean(stored[index])
    results = Rows([], [], order)
    for number, (key, row) in enumerate(keyed):
        text, title, agent = masked[3 * number : 3 * number + 3]
        if text == row.text or matches(text, query.terms):
            results.items.append(_result(row, excerpt(text, query.terms), title, agent))
            results.keys.append(key)
    return results


def _result(row: IndexRow, text: Excerpt, title: str, agent: str) -> Result:
    return Result(
        id=row.id,
        run_id=UUID(str(row.run_id)),
        kind=row.kind,
        ref_id=None if row.kind == SearchEntry.Kind.EVENT else UUID(text_key(row.key)),
        seq=row.seq,
        step=row.step,
        name=row.name,
        status=row.status,
        is_error=bool(row.is_error),
        at=_moment(row.at),
        run_title=title,
        run_status=row.run_status,
        agent_id=agent,
        excerpt=text,
        is_flow=row.flow_run_id is not None,
    )


def _moment(value: datetime | str) -> datetime:
    """Return a time from its database value: SQLite stores a text without a zone."""
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
