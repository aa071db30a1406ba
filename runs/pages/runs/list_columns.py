"""The columns of the run list: available, selected and sortable columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from django.http import QueryDict

from agentops.base.refusals import InvalidQuery
from runs.queries.run_lists.run_order import RunOrder, SortKey


@dataclass(frozen=True)
class ListColumn:
    """An optional column. Status and title always appear."""

    name: str
    heading: str
    sort: SortKey | None = None
    is_number: bool = False


#: In the order of the cells in templates/runs/runs/_list_row.html. Labels have no cell: they follow the title.
COLUMNS = (
    ListColumn("agent", "Agent"),
    ListColumn("labels", "Labels"),
    ListColumn("created", "Created", SortKey.CREATED),
    ListColumn("started", "Started"),
    ListColumn("duration", "Duration", SortKey.DURATION, is_number=True),
    ListColumn("steps", "Steps", is_number=True),
    ListColumn("tokens", "Tokens in / out", SortKey.TOKENS, is_number=True),
    ListColumn("cost", "Cost", SortKey.COST, is_number=True),
    ListColumn("source", "Source"),
    ListColumn("last_event", "Last event", SortKey.LAST_EVENT),
)
STATUS, TITLE = ListColumn("status", "Status"), ListColumn("title", "Title")
NAMES = tuple(column.name for column in COLUMNS)
DEFAULT = ("agent", "labels", "started", "duration", "steps", "tokens", "cost", "source", "last_event")


@dataclass(frozen=True)
class Heading:
    """The heading of a column."""

    name: str
    text: str
    is_number: bool
    #: The query string that sorts by the column, or reverses the order; empty if the heading is no link.
    sort_url: str = ""
    #: "ascending" or "descending" if the list is sorted by the column; otherwise empty.
    sorted_by: str = ""


def parse_columns(query: QueryDict) -> tuple[str, ...]:
    """Return the names of the selected columns, in the order of COLUMNS. Raises InvalidQuery for unknown names.

    The parameter may be repeated, as a form sends it, or contain names separated by commas.
    """
    chosen = {name for text in query.getlist("columns") for name in text.split(",") if name}
    unknown = sorted(chosen - {*NAMES, TITLE.name})
    if unknown:
        raise InvalidQuery(f"columns must be of {', '.join(NAMES)}, not {unknown[0][:64]!r}")
    return tuple(name for name in NAMES if name in chosen) if chosen else DEFAULT


def column_pairs(columns: Sequence[str]) -> list[tuple[str, str]]:
    """Return the selected columns as query parameters; none for the default columns."""
    # The title, which always appears, stands for an empty selection.
    return [("columns", ",".join(columns) or TITLE.name)] if tuple(columns) != DEFAULT else []


def headings(columns: Sequence[str], order: RunOrder | None, pairs: Sequence[tuple[str, str]]) -> list[Heading]:
    """Return the headings of a table. The title follows the agent.

    `pairs` are the query parameters without the order. Without an `order`, the headings are no links.
    """
    selected = [column for column in COLUMNS if column.name in columns and column.name != "labels"]
    at = 1 if selected and selected[0].name == "agent" else 0
    return [_heading(column, order, pairs) for column in (STATUS, *selected[:at], TITLE, *selected[at:])]


def _heading(column: ListColumn, order: RunOrder | None, pairs: Sequence[tuple[str, str]]) -> Heading:
    if column.sort is None or order is None:
        return Heading(column.name, column.heading, column.is_number)
    is_sorted = order.key is column.sort
    link = RunOrder(column.sort, ascending=is_sorted and not order.ascending)
    url = f"?{urlencode([*pairs, *link.pairs()])}"
    direction = ("ascending" if order.ascending else "descending") if is_sorted else ""
    return Heading(column.name, column.heading, column.is_number, url, direction)
