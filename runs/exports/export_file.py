"""Files that are made while they are sent, and the forms of their rows."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

#: Spreadsheets take a cell that begins with one of these as a formula.
FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True)
class ExportFile:
    """A file: its name, its media type, and its text in portions of bounded size. The text can be read once."""

    name: str
    media_type: str
    portions: Iterator[str]


def csv_cell(value: object) -> str:
    """Return a JSON value as a cell, which no spreadsheet takes as a formula."""
    if value is None:
        return ""
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"'{text}" if text.startswith(FORMULA) else text


def csv_lines(rows: Iterable[Sequence[object]]) -> str:
    """Return rows as lines of CSV (RFC 4180)."""
    text = io.StringIO()
    csv.writer(text).writerows([csv_cell(value) for value in row] for row in rows)
    return text.getvalue()
