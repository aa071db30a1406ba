"""The schema of results: refused schemas, and the parsed value of a result."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentops.base import schema_work
from runs.actions.agent_definitions import problems_of
from runs.agents.output_schema import InvalidOutput, InvalidOutputSchema, OutputTooExpensive, parse_output, schema_of
from tests.support.factories import make_project
from tests.support.flows import EXPENSIVE_INPUTS, EXPENSIVE_SCHEMA

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/name"}, "degrees": {"type": "number"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"name": {"type": "string", "minLength": 1}},
}


def test_object_schemas_are_accepted() -> None:
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
def test_invalid_schemas_are_refused(schema: Any, why: str) -> None:
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
def test_a_schema_that_cannot_be_applied_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidOutput, match="cannot be applied"):
        parse_output('{"a": "x"}', {"type": "object", "properties": {"a": schema}})


@pytest.mark.django_db
def test_a_schema_too_expensive_to_check_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_work, "MAX_STEPS", 50_000)
    large = {"output_schema": {"type": "object", "allOf": [{"type": "object"}] * 10_000}}
    with pytest.raises(InvalidOutputSchema, match="the schema is too large: its check takes more than 50000 steps"):
        schema_of(large)
    agent = {"agent_id": "a", "provider": "fixture", "model": "m", "settings": large}
    [problem] = [each for each in problems_of(make_project(), agent) if "too large" in str(each)]
    assert (problem.code, problem.data["pointer"]) == ("schema_too_expensive", "/settings/output_schema")


def test_a_result_whose_check_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_work, "MAX_STEPS", 50_000)
    with pytest.raises(OutputTooExpensive, match="takes more than 50000 steps"):
        parse_output(json.dumps(EXPENSIVE_INPUTS), EXPENSIVE_SCHEMA)
