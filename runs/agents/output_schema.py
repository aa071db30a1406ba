"""The JSON Schema that an agent's result must match: checks of the schema, and of results by it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from agentops.base.http import strict_json
from agentops.base.schema_checks import (
    TOO_EXPENSIVE,
    ExpensiveSchema,
    InvalidSchema,
    SchemaTooExpensive,
    SchemaUnusable,
    check_schema,
    fault_of,
)

#: A result inside a Markdown code block, a frequent form of JSON answers.
_FENCED = re.compile(r"\s*```(?:json)?\n(.*)\n```\s*", re.DOTALL)


class InvalidOutputSchema(ValueError):
    """The output schema in an agent's settings is not a JSON Schema of an object."""


class ExpensiveOutputSchema(InvalidOutputSchema):
    """Checking the schema exceeds the work that one check may do."""


class InvalidOutput(ValueError):
    """The result of a run does not match its agent's schema. The message gives the position."""

    #: The error type with which the run is paused.
    code = "invalid_output"


class OutputTooExpensive(InvalidOutput):
    """Checking the result exceeds the work that one check may do."""

    code = TOO_EXPENSIVE


def schema_of(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the schema in an agent's settings, or None. Raises `InvalidOutputSchema`."""
    schema = settings.get("output_schema")
    if schema is None:
        return None
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise InvalidOutputSchema('settings.output_schema must be a JSON Schema with "type": "object"')
    try:
        _check(json.dumps(schema))
    except InvalidSchema as error:
        pointer = strict_json.pointer(error.path) or "/"
        error_class = ExpensiveOutputSchema if isinstance(error, ExpensiveSchema) else InvalidOutputSchema
        raise error_class(f"settings.output_schema: {pointer}: {error}") from None
    return schema


@lru_cache(maxsize=64)
def _check(text: str) -> None:
    """Check a schema. The result is cached, because each start of a run calls this."""
    check_schema(json.loads(text))


def parse_output(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Parse the result of a run as JSON, and check it by the schema. Raises `InvalidOutput`."""
    fenced = _FENCED.fullmatch(text)
    try:
        value: dict[str, Any] = strict_json.parse(fenced[1] if fenced else text)
    except strict_json.NotJson as error:
        raise InvalidOutput(f"it is not JSON: {error}") from None
    try:
        fault = fault_of(schema, value)
    except SchemaTooExpensive as error:
        raise OutputTooExpensive(str(error)) from None
    except SchemaUnusable as error:
        raise InvalidOutput(str(error)) from error
    if fault is not None:
        raise InvalidOutput(f"{strict_json.pointer(fault.absolute_path) or '/'}: {fault.message[:200]}")
    return value
