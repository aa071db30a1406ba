"""`unevaluatedProperties` and `unevaluatedItems`: the members of a value that no other keyword evaluates.

The library follows references without a count, matches patterns with backtracking, and searches lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema.exceptions import ValidationError

from agentops.base.limits import schema_work

STEPS = 4
Errors = Iterator[ValidationError]


def unevaluated_properties(validator: Any, subschema: Any, value: Any, schema: Any) -> Errors:
    """Yield an error for each property that no other keyword evaluates and `subschema` does not allow."""
    if not isinstance(value, dict):
        return
    evaluated = _evaluated(validator, value, _without(schema, "unevaluatedProperties"))
    for name in value:
        if name not in evaluated:
            yield from validator.descend(value[name], subschema, path=name, schema_path=name)


def unevaluated_items(validator: Any, subschema: Any, value: Any, schema: Any) -> Errors:
    """Yield an error for each item that no other keyword evaluates and `subschema` does not allow."""
    if not isinstance(value, list):
        return
    evaluated = _evaluated(validator, value, _without(schema, "unevaluatedItems"))
    for index, item in enumerate(value):
        if index not in evaluated:
            yield from validator.descend(item, subschema, path=index)


def _without(schema: Mapping[str, Any], keyword: str) -> dict[str, Any]:
    return {name: each for name, each in schema.items() if name != keyword}


def _evaluated(validator: Any, value: Any, schema: Any) -> set[Any]:
    """Return the names or indexes of the members that a schema evaluates, including subschemas that apply."""
    budget = schema_work.current().budget
    budget.spend(STEPS)
    if not isinstance(schema, Mapping):
        return set()
    evaluated = _named(value, schema) if isinstance(value, dict) else _indexed(validator, value, schema)
    for each, subschema in _applied(validator, value, schema):
        evaluated |= _evaluated(each, value, subschema)
    budget.spend(len(evaluated))
    return evaluated


def _named(value: Mapping[str, Any], schema: Mapping[str, Any]) -> set[Any]:
    if "additionalProperties" in schema or "unevaluatedProperties" in schema:
        return set(value)
    work = schema_work.current()
    evaluated = set(schema.get("properties", {}).keys() & value.keys())
    for text in schema.get("patternProperties", {}):
        evaluated |= {name for name in value if work.occurs(text, name)}
    return evaluated


def _indexed(validator: Any, value: list[Any], schema: Mapping[str, Any]) -> set[Any]:
    if "items" in schema or "unevaluatedItems" in schema:
        return set(range(len(value)))
    evaluated = set(range(len(schema.get("prefixItems", ()))))
    if "contains" in schema:
        evaluated |= {index for index, item in enumerate(value) if _is_valid(validator, item, schema["contains"])}
    return evaluated


def _applied(validator: Any, value: Any, schema: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the subschemas that apply to the value itself, each with its validator."""
    for keyword in ("$ref", "$dynamicRef"):
        if keyword in schema:
            schema_work.current().spend_reference(schema[keyword], validator._resolver)
            target = validator._resolver.lookup(schema[keyword])
            yield validator.evolve(schema=target.contents, _resolver=target.resolver), target.contents
    for keyword in ("allOf", "oneOf", "anyOf"):
        yield from ((validator, each) for each in schema.get(keyword, ()) if _is_valid(validator, value, each))
    if "if" in schema:
        holds = _is_valid(validator, value, schema["if"])
        yield from ((validator, schema[name]) for name in (("if", "then") if holds else ("else",)) if name in schema)
    if isinstance(value, dict):
        yield from ((validator, each) for name, each in schema.get("dependentSchemas", {}).items() if name in value)


def _is_valid(validator: Any, value: Any, schema: Any) -> bool:
    return next(validator.descend(value, schema), None) is None
