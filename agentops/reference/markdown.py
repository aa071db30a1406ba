"""Markdown for the pages of the reference: escaped tables, anchors, and short names for the types in JSON schemas."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

NOTICE = "<!-- Written by `manage.py write_reference` from the code. Change the code, then run `make reference`. -->"


def page(title: str, *blocks: str) -> str:
    return "\n\n".join([f"# {title}", NOTICE, *(block for block in blocks if block)]) + "\n"


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table, or an empty text if there are no rows."""
    lines = [_line(row) for row in rows]
    return "\n".join([_line(headers), _line(["---"] * len(headers)), *lines]) if lines else ""


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def flat(text: str | None) -> str:
    """Return a text of several lines as one line."""
    return " ".join((text or "").split())


def anchor_of(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and the generator of the documentation site build it."""
    return re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


JsonSchema = Mapping[str, Any]


def type_of(schema: JsonSchema) -> str:
    """Return the type of a field, such as `string (date-time)`, `integer or null`, `list of string`, `"a" or "b"`."""
    if "enum" in schema:
        return " or ".join(f'"{value}"' if isinstance(value, str) else str(value).lower() for value in schema["enum"])
    if "const" in schema:
        return f'"{schema["const"]}"'
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return " or ".join(dict.fromkeys(type_of(each) for each in schema[union]))
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    kinds = schema.get("type", "any")
    return " or ".join(_type_name(kind, schema) for kind in ([kinds] if isinstance(kinds, str) else kinds))


def _type_name(kind: str, schema: JsonSchema) -> str:
    if kind == "array" and "items" in schema:
        return f"list of {type_of(schema['items'])}"
    if kind == "string" and "format" in schema:
        return f"string ({schema['format']})"
    return {"array": "list"}.get(kind, kind)
