"""The schema of results: which schemas are refused, and what a result becomes."""

from __future__ import annotations

from typing import Any

import pytest

from runs.agents.output_schema import InvalidOutput, InvalidOutputSchema, parse_output, schema_of

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/name"}, "degrees": {"type": "number"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"name": {"type": "string", "minLength": 1}},
}


def test_a_schema_of_an_object_is_taken() -> None:
    assert schema_of({}) is None
    assert schema_of({"output_schema": SCHEMA}) == SCHEMA


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ([], "must be a JSON Schema"),
        ({}, "must be a JSON Schema"),
        ({"type": "array"}, "must be a JSON Schema"),
        ({"type": "object", "required": "city"}, "/required: 'city' is not of type 'array'"),
        ({"type": "object", "properties": {"a": {"$ref": "https://example.com/s"}}}, "other documents"),
        ({"type": "object", "allOf": [{"$ref": "file:///etc/passwd"}]}, "other documents"),
    ],
)
def test_it_refuses_schemas(schema: Any, why: str) -> None:
    with pytest.raises(InvalidOutputSchema, match=why):
        schema_of({"output_schema": schema})


@pytest.mark.parametrize("form", ["%s", "\n```json\n%s\n```\n", "```\n%s\n```"])
def test_a_result_becomes_a_value(form: str) -> None:
    assert parse_output(form % '{"city": "Zürich", "degrees": 12.5}', SCHEMA) == {"city": "Zürich", "degrees": 12.5}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("It is 12 °C.", "not JSON"),
        ("", "not JSON"),
        ('{"city": "a", "city": "b"}', "not JSON"),
        ('{"city": NaN}', "not JSON"),
        ("[]", "not of type 'object'"),
        ("{}", "'city' is a required property"),
        ('{"city": ""}', "^/city: "),
        ('{"city": "a", "more": 1}', "'more' was unexpected"),
    ],
)
def test_other_results_are_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidOutput, match=why):
        parse_output(text, SCHEMA)


@pytest.mark.parametrize("schema", [{"$ref": "#/$defs/none"}, {"pattern": "("}])
def test_a_schema_that_cannot_be_applied(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidOutput, match="cannot be applied"):
        parse_output('{"a": "x"}', {"type": "object", "properties": {"a": schema}})
