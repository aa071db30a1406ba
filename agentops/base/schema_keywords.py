"""A validator class for JSON Schema, based on the one of jsonschema, which counts its work.

The keywords of `_OWN` are replaced: their work could not be counted, or one error is enough. For
`unevaluatedProperties` and `unevaluatedItems`, for example, the library follows references, and matches patterns with
backtracking.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jsonschema
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend

from agentops.base import schema_work

#: Steps to determine the evaluated members for one schema.
EVALUATION = 4
#: Steps of a keyword.
KEYWORD = 4
#: Steps to visit a subschema.
VISIT = 4
#: Members of a schema that a keyword processes per step.
MEMBERS_PER_STEP = 4
#: Characters of a message that are written per step.
CHARACTERS_PER_STEP = 20
#: Characters of equal texts that are compared per step.
EQUAL_PER_STEP = 4_096
#: Maximum characters of a text in a message.
MAX_SHOWN = 80

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
    """Return the names or indexes of the members of `value` that a schema evaluates.

    These include the members that its subschemas evaluate, as far as they apply to `value`.
    """
    budget = schema_work.current().budget
    budget.spend(EVALUATION)
    if not isinstance(schema, Mapping):
        return set()
    if isinstance(value, dict):
        evaluated = _evaluated_names(value, schema)
    else:
        evaluated = _evaluated_indexes(validator, value, schema)
    for each, subschema in _applied_subschemas(validator, value, schema):
        evaluated |= _evaluated(each, value, subschema)
    budget.spend(len(evaluated))
    return evaluated


def _evaluated_names(value: Mapping[str, Any], schema: Mapping[str, Any]) -> set[Any]:
    if "additionalProperties" in schema or "unevaluatedProperties" in schema:
        return set(value)
    work = schema_work.current()
    evaluated = set(schema.get("properties", {}).keys() & value.keys())
    for text in schema.get("patternProperties", {}):
        evaluated |= {name for name in value if work.occurs(text, name)}
    return evaluated


def _evaluated_indexes(validator: Any, value: list[Any], schema: Mapping[str, Any]) -> set[Any]:
    if "items" in schema or "unevaluatedItems" in schema:
        return set(range(len(value)))
    evaluated = set(range(len(schema.get("prefixItems", ()))))
    if "contains" in schema:
        evaluated |= {index for index, item in enumerate(value) if _is_valid(validator, item, schema["contains"])}
    return evaluated


def _applied_subschemas(validator: Any, value: Any, schema: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the subschemas that apply to the value itself, not to its members, each with its validator."""
    for keyword in ("$ref", "$dynamicRef"):
        if keyword in schema:
            with schema_work.current().following(schema[keyword], validator._resolver):
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


_LIBRARY: Any = jsonschema.Draft202012Validator


# The functions of keywords. Each yields the errors of a value.


def _any_of(validator: Any, subschemas: Any, value: Any, schema: Any) -> Errors:
    errors: list[ValidationError] = []
    for error in _first_errors(validator, subschemas, value):
        if error is None:
            return
        errors.append(error)
    yield ValidationError(f"{_shown(value)} is not valid under any of the given schemas", context=errors)


def _one_of(validator: Any, subschemas: Any, value: Any, schema: Any) -> Errors:
    errors: list[ValidationError] = []
    is_valid = False
    for error in _first_errors(validator, subschemas, value):
        if error is not None:
            errors.append(error)
        elif is_valid:
            yield ValidationError(f"{_shown(value)} is valid under more than one of the given schemas")
            return
        else:
            is_valid = True
    if not is_valid:
        yield ValidationError(f"{_shown(value)} is not valid under any of the given schemas", context=errors)


def _first_errors(validator: Any, subschemas: Any, value: Any) -> Iterator[ValidationError | None]:
    """Yield the first error for each subschema; None for a subschema that allows the value."""
    for index, subschema in enumerate(subschemas):
        yield next(validator.descend(value, subschema, schema_path=index), None)


def _const(validator: Any, constant: Any, value: Any, schema: Any) -> Errors:
    if not _equal(constant, value):
        yield ValidationError(f"{constant!r} was expected")


def _enum(validator: Any, constants: Any, value: Any, schema: Any) -> Errors:
    if not any(_equal(each, value) for each in constants):
        yield ValidationError(f"{_shown(value)} is not one of {constants!r}")


def _equal(one: Any, two: Any) -> bool:
    """Return whether two values are equal in JSON: 1.0 equals 1, but true does not."""
    budget = schema_work.current().budget
    budget.spend()
    if isinstance(one, str) and isinstance(two, str):
        budget.spend(min(len(one), len(two)) // EQUAL_PER_STEP)
        return one == two
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(_equal, one, two))
    if isinstance(one, dict) and isinstance(two, dict):
        return len(one) == len(two) and all(name in two and _equal(each, two[name]) for name, each in one.items())
    return isinstance(one, bool) is isinstance(two, bool) and bool(one == two)


def _pattern(validator: Any, text: str, value: Any, schema: Any) -> Errors:
    if isinstance(value, str) and not schema_work.current().occurs(text, value):
        yield ValidationError(f"{_shown(value)} does not match {text!r}")


def _pattern_properties(validator: Any, schemas: Any, value: Any, schema: Any) -> Errors:
    if not isinstance(value, dict):
        return
    work = schema_work.current()
    for text, subschema in schemas.items():
        for name in value:
            if work.occurs(text, name):
                yield from validator.descend(value[name], subschema, path=name, schema_path=text)


def _additional_properties(validator: Any, subschema: Any, value: Any, schema: Any) -> Errors:
    if not isinstance(value, dict):
        return
    work = schema_work.current()
    named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for name in value:
        if name in named or any(work.occurs(text, name) for text in patterns):
            continue
        if subschema is False:
            yield ValidationError(f"Additional properties are not allowed ({name!r} was unexpected)")
        else:
            yield from validator.descend(value[name], subschema, path=name)


def _unique_items(validator: Any, is_required: Any, value: Any, schema: Any) -> Errors:
    if is_required and isinstance(value, list):
        texts = {json.dumps(_comparable(item), sort_keys=True) for item in value}
        if len(texts) < len(value):
            yield ValidationError("the list has equal values")


def _comparable(value: Any) -> Any:
    """Return a value whose JSON is the same for all values that are equal as in `_equal`."""
    budget = schema_work.current().budget
    budget.spend(2)
    if isinstance(value, str):
        budget.spend(len(value) // CHARACTERS_PER_STEP)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    if isinstance(value, dict):
        return {name: _comparable(item) for name, item in value.items()}
    return value


def _shown(value: Any) -> str:
    """Return a value for a message, without the content of lists, objects and long texts: the path leads there."""
    if isinstance(value, list | dict):
        return "the value"
    return repr(value) if not isinstance(value, str) or len(value) <= MAX_SHOWN else f"{value[:MAX_SHOWN]!r}…"


_OWN = {
    "additionalProperties": _additional_properties,
    "anyOf": _any_of,
    "const": _const,
    "enum": _enum,
    "oneOf": _one_of,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "unevaluatedItems": unevaluated_items,
    "unevaluatedProperties": unevaluated_properties,
    "uniqueItems": _unique_items,
}


def _counted(keyword: Callable[..., Any]) -> Any:
    """Return the function of a keyword with its work and its messages counted."""

    def apply(validator: Any, argument: Any, value: Any, schema: Any) -> Errors:
        budget = schema_work.current().budget
        size = len(argument) if isinstance(argument, list | dict) else 0
        budget.spend(KEYWORD + size // MEMBERS_PER_STEP)
        for error in keyword(validator, argument, value, schema) or ():
            budget.spend(len(error.message) // CHARACTERS_PER_STEP)
            yield error

    return apply


def _counted_reference(keyword: str) -> Any:
    """Return the function of `$ref` or `$dynamicRef` with the resolution of the reference counted."""
    follow = _counted(_LIBRARY.VALIDATORS[keyword])

    def apply(validator: Any, reference: str, value: Any, schema: Any) -> Errors:
        with schema_work.current().following(reference, validator._resolver):
            yield from follow(validator, reference, value, schema)

    return apply


CountedValidator: Any = extend(  # type: ignore[no-untyped-call]
    _LIBRARY,
    {name: _counted(_OWN.get(name, keyword)) for name, keyword in _LIBRARY.VALIDATORS.items()}
    | {keyword: _counted_reference(keyword) for keyword in ("$ref", "$dynamicRef")},
)
_iter_errors, _descend = CountedValidator.iter_errors, CountedValidator.descend


def _no_value(value: Any) -> ValidationError:
    """Return the error of a schema that is `false`. That of the library would contain the whole value."""
    options: dict[str, Any] = {"validator": None, "validator_value": None, "instance": value, "schema": False}
    return ValidationError("no value is allowed here", **options)


def _counted_errors(self: Any, value: Any) -> Errors:
    """Replace the library's `iter_errors`, and count the visit of the schema."""
    schema_work.current().budget.spend(VISIT)
    return iter((_no_value(value),)) if self.schema is False else _iter_errors(self, value)


def _counted_descent(self: Any, instance: Any, schema: Any, **options: Any) -> Errors:
    """Replace the library's `descend`, and count the visit of the schema."""
    schema_work.current().budget.spend(VISIT)
    if schema is not False:
        yield from _descend(self, instance, schema, **options)
        return
    error = _no_value(instance)
    if (path := options.get("path")) is not None:
        error.path.appendleft(path)
    yield error


def _evolve(self: Any, **changes: Any) -> Any:
    """Return the validator of another schema. That of the library would have the class of `$schema`, without counts."""
    return CountedValidator(
        changes.get("schema", self.schema), registry=self._registry, _resolver=changes.get("_resolver", self._resolver)
    )


CountedValidator.iter_errors, CountedValidator.descend = _counted_errors, _counted_descent
CountedValidator.evolve = _evolve
