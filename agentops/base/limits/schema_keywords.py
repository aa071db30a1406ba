"""JSON Schema keywords with a work budget: a validator class based on jsonschema.

It replaces keywords whose work the library does in one go, and keywords for which one error is enough.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend

from agentops.base.limits import schema_work
from agentops.base.limits.unevaluated import unevaluated_items, unevaluated_properties

#: Steps of a keyword, and of visiting a subschema.
KEYWORD, VISIT = 4, 4
#: Schema members that a keyword processes per step, and characters of a message that are written per step.
MEMBERS_PER_STEP, CHARACTERS_PER_STEP = 4, 20
#: Characters compared per step, if texts are equal.
EQUAL_PER_STEP = 4_096
MAX_SHOWN = 80
Errors = Iterator[ValidationError]
_LIBRARY: Any = jsonschema.Draft202012Validator


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
    """Return a value whose JSON is the same for all equal values: 1.0 equals 1, but true does not."""
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
    """Return a value for a message: the path leads to it, so lists, objects and long texts need not be written."""
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


def _counted(follow: Callable[..., Any]) -> Any:
    def apply(validator: Any, argument: Any, value: Any, schema: Any) -> Errors:
        budget = schema_work.current().budget
        size = len(argument) if isinstance(argument, list | dict) else 0
        budget.spend(KEYWORD + size // MEMBERS_PER_STEP)
        for error in follow(validator, argument, value, schema) or ():
            budget.spend(len(error.message) // CHARACTERS_PER_STEP)
            yield error

    return apply


def _counted_reference(keyword: str) -> Any:
    follow = _counted(_LIBRARY.VALIDATORS[keyword])

    def apply(validator: Any, reference: str, value: Any, schema: Any) -> Errors:
        schema_work.current().spend_reference(reference, validator._resolver)
        yield from follow(validator, reference, value, schema)

    return apply


CountedValidator: Any = extend(  # type: ignore[no-untyped-call]
    _LIBRARY,
    {keyword: _counted(_OWN.get(keyword, follow)) for keyword, follow in _LIBRARY.VALIDATORS.items()}
    | {keyword: _counted_reference(keyword) for keyword in ("$ref", "$dynamicRef")},
)
_iter_errors, _descend = CountedValidator.iter_errors, CountedValidator.descend


def _no_value(value: Any) -> ValidationError:
    """Return the error of a schema that is `false`. The library would write the whole value into it."""
    options: dict[str, Any] = {"validator": None, "validator_value": None, "instance": value, "schema": False}
    return ValidationError("no value is allowed here", **options)


def _counted_errors(self: Any, value: Any) -> Errors:
    schema_work.current().budget.spend(VISIT)
    return iter((_no_value(value),)) if self.schema is False else _iter_errors(self, value)


def _counted_descent(self: Any, instance: Any, schema: Any, **options: Any) -> Errors:
    schema_work.current().budget.spend(VISIT)
    if schema is not False:
        yield from _descend(self, instance, schema, **options)
        return
    error = _no_value(instance)
    if (path := options.get("path")) is not None:
        error.path.appendleft(path)
    yield error


def _evolve(self: Any, **changes: Any) -> Any:
    """Return the validator of another schema. The library would use the class of `$schema`, which counts nothing."""
    return CountedValidator(
        changes.get("schema", self.schema), registry=self._registry, _resolver=changes.get("_resolver", self._resolver)
    )


CountedValidator.iter_errors, CountedValidator.descend = _counted_errors, _counted_descent
CountedValidator.evolve = _evolve
