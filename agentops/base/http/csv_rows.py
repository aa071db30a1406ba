"""CSV rows for spreadsheets, which must not interpret texts as formulas."""

from __future__ import annotations

import csv
import io
import json
import unicodedata
from collections.abc import Iterable, Sequence

#: The first characters of formulas. Compared in NFKC form, because East Asian spreadsheets accept full-width ones.
FORMULA = frozenset("=+-@\N{MINUS SIGN}")
#: Characters at the start of a cell that some spreadsheets drop, or at which they split the cell.
BREAKS = ("\t", "\r", "\n")
#: Unicode categories of characters that spreadsheets skip at the start of a cell: blanks, and invisible ones.
SKIPPED = frozenset({"Cc", "Cf", "Zl", "Zp", "Zs"})


def csv_cell(value: object) -> str:
    """Return a JSON value as a cell. A text that a spreadsheet would interpret as a formula gets the prefix `'`."""
    if value is None:
        return ""
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"'{text}" if text.startswith(BREAKS) or _begins_a_formula(text) else text


def csv_lines(rows: Iterable[Sequence[object]]) -> str:
    """Return rows as lines of CSV (RFC 4180)."""
    text = io.StringIO()
    csv.writer(text).writerows([csv_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _begins_a_formula(text: str) -> bool:
    first = next((char for char in text if unicodedata.category(char) not in SKIPPED), "")
    return unicodedata.normalize("NFKC", first) in FORMULA
