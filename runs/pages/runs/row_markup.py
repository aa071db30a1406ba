"""The markup of the list's rows.

A list has 50 rows of a few forms: with or without a summary, a cost and so on. Django interprets the template of a row
once for each form, with placeholders instead of values; format_html fills them in for each run.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from django.template.loader import render_to_string
from django.utils.html import format_html
from django.utils.safestring import SafeString

from runs.pages.runs.list_columns import DEFAULT
from runs.pages.runs.run_row import RunRow


def markup_of(
    rows: Iterable[RunRow], *, columns: tuple[str, ...] = DEFAULT, boxes: bool, swap: bool = False
) -> list[SafeString]:
    """Return the rows as HTML: with checkboxes if `boxes`, replacing the rows of an open page if `swap`."""
    filled = ({name: value for name, value in row.items() if value} for row in rows)
    return [format_html(_form(tuple(values), columns, boxes, swap), **values) for values in filled]


@lru_cache(maxsize=512)
def _form(fields: tuple[str, ...], columns: tuple[str, ...], boxes: bool, swap: bool) -> str:
    """Return the format string of rows in which these fields are not empty."""
    placeholders = {name: f"{{{name}}}" for name in fields}
    context = {"row": placeholders, "columns": columns, "boxes": boxes, "swap": swap}
    return render_to_string("runs/runs/_list_row.html", context)
