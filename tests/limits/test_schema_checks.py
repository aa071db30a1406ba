"""User-written schemas: checking them sends no requests, and never blocks a process."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest

from agentops.base import schema_work
from agentops.base.schema_checks import (
    ExpensiveSchema,
    InvalidSchema,
    SchemaTooExpensive,
    SchemaUnusable,
    check_schema,
    fault_of,
)
from tests.support.loopback_servers import answer, serving

NUMBERS = [*range(200_000), []]
TEXT = "is not of type 'string'"
REFUSED: list[tuple[Any, str, tuple[str | int, ...]]] = [
    ({"$ref": "http://127.0.0.1/s"}, "other documents", ("$ref",)),
    ({"not": {"$dynamicRef": "file:///etc/passwd"}}, "other documents", ("not", "$dynamicRef")),
    ({"properties": {"a": {"pattern": "(?=x)"}}}, "not a valid pattern", ("properties", "a", "pattern")),
    ({"patternProperties": {"(?=x)": {}}}, "not a valid pattern", ("patternProperties", "(?=x)")),
    ({"pattern": "((a{99}){99}){99}"}, "too expensive", ("pattern",)),
    ({"type": "any"}, "'any' is not valid", ("type",)),
    ({"not": {"required": NUMBERS}}, TEXT, ("not", "required", 0)),
    ({"properties": {"default": {"required": NUMBERS}}}, TEXT, ("properties", "default", "required", 0)),
    ({"dependentRequired": {"a": NUMBERS}}, TEXT, ("dependentRequired", "a", 0)),
    ({"dependencies": {"a": NUMBERS}}, "the value is not valid under any", ("dependencies", "a")),
    ({"required": ["a", "b", "a"]}, "equal values", ("required",)),
    ({"properties": {"examples": {"pattern": "(?=x)"}}}, "not a valid pattern", ("properties", "examples", "pattern")),
    ({"$defs": {"enum": {"$ref": "http://127.0.0.1/s"}}}, "other documents", ("$defs", "enum", "$ref")),
]


def test_invalid_schemas_are_refused() -> None:
    for schema, why, path in REFUSED:
        with pytest.raises(InvalidSchema, match=re.escape(why)) as refused:
            check_schema(schema)
        assert refused.value.path == path, schema


def test_property_names_and_constants_are_not_read_as_keywords() -> None:
    check_schema({"properties": {"pattern": {"type": "string"}, "$ref": {"const": {"pattern": "("}}}})
    check_schema({"properties": {"const": {"const": {"pattern": "("}}, "required": {"enum": [{"type": [1, []]}]}}})
    check_schema({"enum": [{"$ref": "https://example.org"}], "$defs": {"a": {}}, "allOf": [{"$ref": "#/$defs/a"}]})


def test_unchecked_schema_causes_no_requests() -> None:
    with serving(answer(b"{}")) as server:
        with pytest.raises(SchemaUnusable):
            fault_of({"$ref": f"http://127.0.0.1:{server.port}/secret"}, {})
        assert server.requests == []


@pytest.mark.parametrize("schema", [{"$ref": "#"}, {"$ref": "#/nowhere"}, {"pattern": "("}, {"$ref": "#anchor"}])
def test_schema_that_cannot_be_applied_is_unusable(schema: Any) -> None:
    with pytest.raises(SchemaUnusable, match="cannot be applied"):
        fault_of(schema, "text")


@pytest.mark.parametrize("depth", [0, 100, 200])
def test_endless_references_end_before_the_stack_does(depth: int) -> None:
    """At the recursion limit of Python, the library may panic with an error that is no `Exception`."""
    if depth:
        return test_endless_references_end_before_the_stack_does(depth - 1)
    with pytest.raises(SchemaUnusable, match="more than 100 references lead to each other"):
        fault_of({"$ref": "#"}, "text")
    return None


def test_recursive_schemas_apply_to_nested_values() -> None:
    tree = {"properties": {"next": {"$ref": "#"}, "name": {"type": "string"}}}
    value: dict[str, Any] = {"name": 5}
    for _ in range(60):
        value = {"next": value}

    fault = fault_of(tree, value)
    assert fault is not None
    assert fault.message == "5 is not of type 'string'"


#: Each level doubles the references: 2 ** 40 without a limit.
DOUBLED = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)} | {"d40": {}}
MANY = {f"d{n}": {} for n in range(5_000)}
STEEP = "(?:[ab].{0,99}){9}[0-9]"
#: Checks that would take from seconds to centuries without a limit.
EXPENSIVE: dict[str, tuple[Any, Any]] = {
    "anyOf": ({"items": {"anyOf": [{"const": n} for n in range(299)]}}, [298] * 20_000),
    "oneOf": ({"items": {"oneOf": [{"const": n} for n in range(299)]}}, [298] * 20_000),
    "enum": ({"items": {"enum": list(range(10_000))}}, [9_999] * 20_000),
    "const": ({"items": {"allOf": [{"const": [0] * 10_000}] * 1_000}}, [[0] * 10_000]),
    "references": ({"$ref": "#/$defs/d0", "$defs": DOUBLED}, {}),
    "references to anchors": (
        {"allOf": [{"$ref": "#here"}] * 10_000, "$defs": {**MANY, "x": {"$anchor": "here"}}},
        {},
    ),
    "references from ids": (
        {"allOf": [{"$id": f"http://a/{n}", "$ref": "#"} for n in range(10_000)], "$defs": MANY},
        {},
    ),
    "references before their keyword": ({"unevaluatedProperties": False, "$ref": "#/$defs/d0", "$defs": DOUBLED}, {}),
    "references for items": ({"unevaluatedItems": False, "$ref": "#/$defs/d0", "$defs": DOUBLED}, []),
    "repeated values": ({"allOf": [{"uniqueItems": True}] * 1_000}, list(range(30_000))),
    "false": ({"allOf": [{"anyOf": [False] * 1_000 + [True]}] * 1_000}, ["x" * 1_000] * 1_000),
    "messages": ({"not": {"anyOf": [{"type": "null"}] * 100_000}}, ["x" * 1_000] * 1_000),
    "properties": ({"items": {"properties": MANY}}, [{}] * 30_000),
    "contains": ({"allOf": [{"contains": {}, "minContains": 30_000}] * 1_000}, [0] * 30_000),
    "a pattern": ({"items": {"pattern": STEEP}}, ["abc" * 2_000] * 20_000),
    "a pattern and a long text": ({"pattern": STEEP}, "abc" * 60_000),
    "names": ({"patternProperties": {STEEP: {}, "x": {}}}, {"abc" * 80 + str(n): n for n in range(1_000)}),
}


def test_work_of_a_check_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_work, "MAX_STEPS", 100_000)
    for name, (schema, value) in EXPENSIVE.items():
        with pytest.raises(SchemaTooExpensive, match=r"too expensive for this value: the check (takes|searches)"):
            raise AssertionError(f"{name}: {fault_of(schema, value)}")


def test_check_of_a_whole_body_is_allowed() -> None:
    """The value has as many members as a request can have, each checked by several keywords."""
    record = {
        "properties": {"id": {"type": "integer", "minimum": 0}},
        "required": ["id"],
        "additionalProperties": False,
    }
    assert (
        fault_of({"type": "array", "items": {"type": "object", **record}}, [{"id": n} for n in range(25_000)]) is None
    )


def test_work_of_checking_a_schema_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_work, "MAX_STEPS", 100_000)
    patterns = {f"p{n}": {"pattern": f"{STEEP}{n}"} for n in range(10_000)}
    for schema in ({"allOf": [{"type": "string"}] * 20_000}, {"properties": patterns}, {"patternProperties": patterns}):
        with pytest.raises(ExpensiveSchema, match="too large: its check takes more than 100000 steps"):
            check_schema(schema)


def test_patterns_never_backtrack() -> None:
    """This includes schemas of another draft, and the property names that patternProperties matches."""
    steep = {"pattern": "(a+)+$"}
    draft = {"$schema": "http://json-schema.org/draft-07/schema#", **steep}
    names = {"patternProperties": {"(a+)+$": {}}}
    for schema, value in [
        (steep, "a" * 50_000 + "b"),
        ({"properties": {"a": draft}}, {"a": "a" * 50_000 + "b"}),
        ({"additionalProperties": False, **names}, {"a" * 250 + "b": 1}),
        ({"unevaluatedProperties": False, **names}, {"a" * 250 + "b": 1}),
    ]:
        assert fault_of(schema, value) is not None


def test_repeated_values_are_detected_in_linear_time() -> None:
    """Values of several types cannot be sorted. Comparing all pairs would exceed the suite's timeout."""
    values: list[Any] = [value for n in range(30_000) for value in (n, f"{n}", [n], {"n": n})]
    assert fault_of({"uniqueItems": True}, values) is None
    assert "equal values" in fault_of({"uniqueItems": True}, [*values, {"n": 7.0}]).message  # type: ignore[union-attr]
    assert fault_of({"uniqueItems": False}, [1, 1]) is None
    assert fault_of({"uniqueItems": True}, [1, True, 0, False, "1", None, [1], [True], {"a": 0}, {"a": False}]) is None
    assert fault_of({"uniqueItems": True}, [{"a": 1, "b": 2}, {"b": 2.0, "a": 1}]) is not None


def test_patterns_apply_to_names_and_to_parts_of_texts() -> None:
    schema = {"patternProperties": {"^x-": {"type": "integer"}}, "properties": {"a": {"pattern": "b+"}}}
    assert fault_of(schema, {"x-1": 1, "other": "t", "a": "abbc"}) is None
    assert list(fault_of(schema, {"x-1": "t"}).absolute_path) == ["x-1"]  # type: ignore[union-attr]
    assert "does not match" in fault_of(schema, {"a": "c"}).message  # type: ignore[union-attr]


def test_long_checks_take_turns_and_short_checks_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_work, "MAX_STEPS", 100_000)
    monkeypatch.setattr(schema_work, "TURN_AFTER", 20_000)
    order: list[str] = []

    def check_long() -> None:
        with pytest.raises(SchemaTooExpensive):
            fault_of(*EXPENSIVE["anyOf"])
        order.append("another long check")

    thread = threading.Thread(target=check_long)
    with schema_work.new_work() as work:
        work.budget.spend(30_000)
        assert work.has_turn
        thread.start()
        assert fault_of({"type": "integer"}, 1) is None
        order.append("this check")
    thread.join(30)
    assert order == ["this check", "another long check"]
    with schema_work.new_work() as work:
        work.budget.spend(30_000)
        assert work.has_turn
