"""Markdown for the pages of the reference: escaped tables, and anchors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

NOTICE = "<!-- Written by `manage.py write_reference` from the code. Change the code, then run `make reference`. -->"


def page(title: str, *blocks: str) -> str:
    return "\n\n".join([f"# {title}", NOTICE, *(block for block in blocks if block)]) + "\n"


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table, or nothing if there are no rows."""
    lines = [_line(row) for row in rows]
    return "\n".join([_line(headers), _line(["---"] * len(headers)), *lines]) if lines else ""


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def flat(text: str | None) -> str:
    """Return a text of several lines as one line."""
    return " ".join((text or "").split())


def anchor_of(heading: str) -> str:
    """Return the anchor of a heading, as forges and the site build it."""
    return re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
