"""Schemas that people write: nothing is requested for them, and none holds a process up."""

from __future__ import annotations

from typing import Any

import pytest

from runs.agents.schema_checks import InvalidSchema, SchemaUnusable, check_schema, fault_of
from tests.support.web.raw_http_server import answer, serving


@pytest.mark.parametrize(
    ("schema", "why", "path"),
    [
        ({"$ref": "http://127.0.0.1/s"}, "other documents", ("$ref",)),
        ({"not": {"$dynamicRef": "file:///etc/passwd"}}, "other documents", ("not", "$dynamicRef")),
        ({"properties": {"a": {"pattern": "(?=x)"}}}, "not a valid pattern", ("properties", "a", "pattern")),
        ({"patternProperties": {"(?=x)": {}}}, "not a valid pattern", ("patternProperties", "(?=x)")),
        ({"type": "any"}, "is not valid", ("type",)),
        ({"not": {"required": [*range(200_000), []]}}, "texts only", ("not", "required")),
        ({"properties": {"default": {"required": [*range(200_000), []]}}}, "texts only",
         ("properties", "default", "required")),
        ({"dependentRequired": {"a": [*range(200_000), []]}}, "texts only", ("dependentRequired",)),
        ({"dependencies": {"a": [*range(200_000), []]}}, "texts only", ("dependencies",)),
        ({"properties": {"examples": {"pattern": "(?=x)"}}}, "not a valid pattern",
         ("properties", "examples", "pattern")),
        ({"$defs": {"enum": {"$ref": "http://127.0.0.1/s"}}}, "other documents", ("$defs", "enum", "$ref")),
    ],
)  # fmt: skip
def test_a_schema_that_is_refused(schema: Any, why: str, path: Any) -> None:
    with pytest.raises(InvalidSchema, match=why) as refused:
        check_schema(schema)
    assert path is None or refused.value.path == path


def test_names_and_values_are_no_keywords() -> None:
    check_schema({"properties": {"pattern": {"type": "string"}, "$ref": {"const": {"pattern": "("}}}})
    check_schema({"properties": {"const": {"const": {"pattern": "("}}, "required": {"enum": [{"type": [1, []]}]}}})
    check_schema({"enum": [{"$ref": "https://example.org"}], "$defs": {"a": {}}, "allOf": [{"$ref": "#/$defs/a"}]})


def test_nothing_is_requested_even_for_a_schema_that_was_not_checked() -> None:
    with serving(answer(b"{}")) as server:
        with pytest.raises(SchemaUnusable):
            fault_of({"$ref": f"http://127.0.0.1:{server.port}/secret"}, {})
        assert server.requests == []


@pytest.mark.parametrize("schema", [{"$ref": "#"}, {"$ref": "#/nowhere"}, {"pattern": "("}, {"$ref": "#anchor"}])
def test_a_schema_that_cannot_be_applied(schema: Any) -> None:
    with pytest.raises(SchemaUnusable, match="cannot be applied"):
        fault_of(schema, "text")


def test_patterns_and_references_take_bounded_time() -> None:
    """Unbounded, each would hang until the suite ends it."""
    assert fault_of({"pattern": "(a+)+$"}, "a" * 50_000 + "b") is not None
    # Each level doubles the references: 2 ** 40 without a limit.
    levels = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    with pytest.raises(SchemaUnusable, match="references"):
        fault_of({"$ref": "#/$defs/d0", "$defs": {**levels, "d40": {}}}, {})


def test_repeated_values_are_found_in_linear_time() -> None:
    """Values of several types cannot be sorted; comparing each with each would hang until the suite ends it."""
    values: list[Any] = [value for n in range(30_000) for value in (n, f"{n}", [n], {"n": n})]
    assert fault_of({"uniqueItems": True}, values) is None
    assert "equal values" in fault_of({"uniqueItems": True}, [*values, {"n": 7.0}]).message  # type: ignore[union-attr]
    assert fault_of({"uniqueItems": False}, [1, 1]) is None
    assert fault_of({"uniqueItems": True}, [1, True, 0, False, "1", None, [1], [True], {"a": 0}, {"a": False}]) is None
    assert fault_of({"uniqueItems": True}, [{"a": 1, "b": 2}, {"b": 2.0, "a": 1}]) is not None


def test_patterns_hold_for_names_and_parts_of_texts() -> None:
    schema = {"patternProperties": {"^x-": {"type": "integer"}}, "properties": {"a": {"pattern": "b+"}}}
    assert fault_of(schema, {"x-1": 1, "other": "t", "a": "abbc"}) is None
    assert list(fault_of(schema, {"x-1": "t"}).absolute_path) == ["x-1"]  # type: ignore[union-attr]
    assert "does not match" in fault_of(schema, {"a": "c"}).message  # type: ignore[union-attr]
