"""The table that every benchmark prints: one row per case, judged by its ratio.

Absolute figures depend on the machine and its load.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from statistics import median

COLUMNS = ("what", "agentops", "peer or limit", "ratio", "goal", "reached")
WIDTHS = (46, 20, 40, 7, 9, 7)
#: The variable with the path of a JSON-lines file. Judged rows are appended to it for the table of bench/__main__.py.
JUDGED_FILE = "BENCH_JUDGED_FILE"


@dataclass(frozen=True)
class Row:
    """A case. Without a goal it is not judged. A text as `ratio` says why it could not be measured."""

    what: str
    own: str
    other: str = "-"
    ratio: float | None = None
    at_least: float | None = None
    at_most: float | None = None

    @property
    def goal(self) -> str:
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        return f"<= {self.at_most:g}" if self.at_most is not None else "-"

    @property
    def reached(self) -> str:
        if self.ratio is None or self.goal == "-":
            return "-"
        low = self.at_least is None or self.ratio >= self.at_least
        high = self.at_most is None or self.ratio <= self.at_most
        return "yes" if low and high else "NO"


def heading(title: str) -> None:
    print(f"\n== {title} ==")
    _line(COLUMNS)
    print("-" * (sum(WIDTHS) + 2 * len(WIDTHS) - 2), flush=True)


def show(row: Row) -> None:
    ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
    _line((row.what, row.own, row.other, ratio, row.goal, row.reached))
    if row.reached != "-" and JUDGED_FILE in os.environ:
        with Path(os.environ[JUDGED_FILE]).open("a") as judged:
            told = {"what": row.what, "ratio": ratio, "goal": row.goal, "reached": row.reached}
            judged.write(f"{json.dumps(told)}\n")


def note(text: str) -> None:
    """Print a remark, or a line of a breakdown."""
    print(f"   {text}", flush=True)


def mid(values: list[float]) -> float:
    return float(median(values))


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` percent of the values do not exceed, or NaN for no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share / 100))] if ordered else nan


def rate(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.2f} {unit}"


def _line(cells: tuple[str, ...]) -> None:
    print("  ".join(cell.ljust(width) for cell, width in zip(cells, WIDTHS, strict=True)).rstrip(), flush=True)
