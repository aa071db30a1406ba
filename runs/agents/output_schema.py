"""The JSON Schema that an agent's result must match: its validation, and the result as a value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import jsonschema
from jsonschema.exceptions import best_match
from referencing import Registry

from agentops.http import strict_json

#: A result between the fences of a Markdown code block, as models like to write JSON.
_FENCED = re.compile(r"\s*```(?:json)?\n(.*)\n```\s*", re.DOTALL)
#: Nothing is loaded: a schema that refers to another document is refused.
_NO_DOCUMENTS: Registry[Any] = Registry()


class InvalidOutputSchema(ValueError):
    """The settings of an agent contain something else than a JSON Schema of an object."""


class InvalidOutput(ValueError):
    """The result of a run does not match its agent's schema. The message says where."""


def schema_of(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the schema in an agent's settings, or None. Raises `InvalidOutputSchema`."""
    schema = settings.get("output_schema")
    if schema is None:
        return None
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise InvalidOutputSchema('settings.output_schema must be a JSON Schema with "type": "object"')
    if any(not reference.startswith("#") for reference in _references(schema)):
        raise InvalidOutputSchema("settings.output_schema must not refer to other documents")
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        place = strict_json.pointer(error.absolute_path) or "/"
        raise InvalidOutputSchema(f"settings.output_schema: {place}: {error.message[:200]}") from None
    return schema


def parse_output(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a run as a value. Raises `InvalidOutput`."""
    fenced = _FENCED.fullmatch(text)
    try:
        value: dict[str, Any] = strict_json.parse(fenced[1] if fenced else text)
    except strict_json.NotJson as error:
        raise InvalidOutput(f"it is not JSON: {error}") from None
    try:
        validator = jsonschema.Draft202012Validator(schema, registry=_NO_DOCUMENTS)
        fault = best_match(validator.iter_errors(value))
    except Exception as error:  # a reference to nowhere, a regular expression that Python does not know
        raise InvalidOutput(f"the schema cannot be applied: {str(error)[:200]}") from error
    if fault is not None:
        raise InvalidOutput(f"{strict_json.pointer(fault.absolute_path) or '/'}: {fault.message[:200]}")
    return value


def _references(value: Any) -> list[str]:
    """Return the targets of all references in a schema."""
    if isinstance(value, dict):
        own = [value[name] for name in ("$ref", "$dynamicRef") if isinstance(value.get(name), str)]
        return own + [reference for member in value.values() for reference in _references(member)]
    return [reference for item in value for reference in _references(item)] if isinstance(value, list) else []
