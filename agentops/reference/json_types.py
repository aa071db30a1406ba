"""Short names for the types in JSON schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
