"""Tables on a terminal: short IDs, relative times, colours by status, and columns that fit its width."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest
from typing import TYPE_CHECKING
from uuid import UUID

from agentops.base import database_clock

if TYPE_CHECKING:
    from rich.table import Table

#: Minimum digits of a short ID.
MIN_DIGITS = 8
#: Minimum width of a column that is made narrower.
MIN_WIDTH = 12
#: Columns whose words have colours.
STATUS_COLUMNS = frozenset({"status", "state", "outcome", ""})
#: Status or state → its style. Red is for failures alone.
STYLES = {
    "queued": "cyan",
    "running": "blue",
    "waiting": "yellow",
    "paused": "yellow",
    "resumed": "dim",
    "completed": "green",
    "failed": "red",
    "stopped": "magenta",
    "error": "red",
    "dead": "red",
    "done": "green",
    "sent": "green",
    "created": "green",
    "skipped": "yellow",
}
#: Seconds of a unit, its name, and the number of seconds up to which it is used.
_UNITS = ((1, "s", 60), (60, "min", 3600), (3600, "h", 86_400), (86_400, "d", float("inf")))


@dataclass(frozen=True)
class When:
    """A moment in a cell: relative on a terminal, in a format of `strftime` in a pipe."""

    moment: datetime
    piped: str

    def __str__(self) -> str:
        return format(self.moment, self.piped)


def short_ids(ids: Iterable[UUID]) -> dict[UUID, str]:
    """Return the shortest end of each ID, of `MIN_DIGITS` or more, that is unique among them.

    An ID begins with the time of its creation, so runs that were started together share a long prefix. Its end is
    random.
    """
    unique = set(ids)
    digits = MIN_DIGITS
    while len({each.hex[-digits:] for each in unique}) < len(unique):
        digits += 1
    return {each: each.hex[-digits:] for each in unique}


def ago(moment: datetime, now: datetime) -> str:
    """Return how long ago a moment was, or in how long it will be: "3 min ago", "in 2 h"."""
    seconds = (now - moment).total_seconds()
    size, unit = next((size, unit) for size, unit, end in _UNITS if abs(seconds) < end)
    count = int(abs(seconds) // size)
    return f"in {count} {unit}" if seconds <= -1 else f"{count} {unit} ago"


def absolute(moment: datetime) -> str:
    """Return a moment with its zone, for people."""
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def wants_colours(*, is_terminal: bool) -> bool:
    """Return whether a stream gets colours by default: see https://no-color.org."""
    return is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def size() -> tuple[int, int]:
    """Return the columns and lines of the terminal."""
    columns, lines = shutil.get_terminal_size()
    return columns, lines


def painted(text: str, style: str) -> str:
    """Return the text in a style of rich, with the escape sequences of a terminal."""
    from rich.color import ColorSystem
    from rich.style import Style

    return Style.parse(style).render(text, color_system=ColorSystem.STANDARD)


def style_of(word: str) -> str:
    """Return the style of a status, which may be followed by its reason."""
    return STYLES.get(word.partition(" ")[0].rstrip(":"), "")


# --- Tables ---


def shown_cells(rows: Iterable[Sequence[object]]) -> list[list[object]]:
    """Return the rows with moments relative to now, and with short IDs that are unique in their column."""
    columns = []
    for column in zip_longest(*rows):
        shortened = short_ids(cell for cell in column if isinstance(cell, UUID))
        columns.append([shortened[cell] if isinstance(cell, UUID) else cell for cell in column])
    if any(isinstance(cell, (When, datetime)) for column in columns for cell in column):
        # This may send a query, so only for tables with moments.
        now = database_clock.now()
        columns = [[_relative(cell, now) for cell in column] for column in columns]
    return [list(row) for row in zip(*columns, strict=True)]


def _relative(cell: object, now: datetime) -> object:
    moment = cell.moment if isinstance(cell, When) else cell
    return ago(moment, now) if isinstance(moment, datetime) else cell


def rendered(
    headers: Sequence[str], rows: Sequence[Sequence[str]], *, optional: Sequence[str] = (), has_colours: bool = False
) -> str:
    """Return rows as a table that is as wide as the terminal or narrower.

    Columns in `optional` that are empty, or for which there is no space, are left out, the first one first. Then the
    widest columns are cut. Without headers, the last column is wrapped instead.
    """
    # rich is imported here, because only terminals need it.
    from rich.console import Console

    width, _ = size()
    columns = [list(column) for column in zip(*rows, strict=True)]
    if headers:
        names = _fitting(list(headers), columns, optional, width)
        kept = [(name, column) for name, column in zip(headers, columns, strict=True) if name in names]
        table = _table([name for name, _ in kept], [column for _, column in kept], width)
    else:
        table = _facts(columns)
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=has_colours,
        no_color=not has_colours,
        color_system="standard" if has_colours else None,
        legacy_windows=False,
    )
    console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def _width(name: str, column: Sequence[str]) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, [name, *column]))


def _fitting(names: list[str], columns: list[list[str]], optional: Sequence[str], width: int) -> list[str]:
    """Return the names of the columns to show."""
    by_name = dict(zip(names, columns, strict=True))
    names = [name for name in names if name not in optional or any(cell not in ("", "-") for cell in by_name[name])]
    for name in optional:
        # Longer texts may be cut.
        needed = sum(min(_width(each, by_name[each]), 2 * MIN_WIDTH) + 2 for each in names[:-1])
        if name in names and needed + 2 * MIN_WIDTH > width:
            names.remove(name)
    return names


def _table(names: Sequence[str], columns: Sequence[Sequence[str]], width: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    widths = [_width(name, column) for name, column in zip(names, columns, strict=True)]
    while (excess := sum(widths) + 2 * (len(widths) - 1) - width) > 0 and max(widths) > MIN_WIDTH:
        widest = max(range(len(widths)), key=lambda index: (widths[index], index))
        others = sorted(widths)[-2] if len(widths) > 1 else MIN_WIDTH
        widths[widest] = max(min(others, widths[widest] - 1), widths[widest] - excess, MIN_WIDTH)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name, column_width in zip(names, widths, strict=True):
        table.add_column(name.upper(), width=column_width, no_wrap=True, overflow="ellipsis")
    for row in zip(*columns, strict=True):
        cells = zip(names, row, strict=True)
        table.add_row(*(Text(cell, style_of(cell) if name in STATUS_COLUMNS else "") for name, cell in cells))
    return table


def _facts(columns: Sequence[Sequence[str]]) -> Table:
    """Return pairs of a name and a value, with values that are wrapped."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, value in zip(*columns, strict=True):
        table.add_row(name, Text(value, style_of(value) if name in STATUS_COLUMNS else ""))
    return table
