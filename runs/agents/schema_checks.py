"""JSON Schemas that people write: checked before they are stored, and applied without a request and in bounded time.

A schema belongs to one project, and the processes that apply it serve all of them. So nothing is loaded for it,
its patterns are matched and its lists searched for repeated values in linear time, and its references, which can
multiply, are counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import jsonschema
from jsonschema.exceptions import ValidationError, best_match
from jsonschema.validators import extend
from referencing import Registry

from runs.hooks.patterns import InvalidPattern, Pattern

#: References that may be followed while a value is checked.
MAX_REFERENCES = 100_000
Path = tuple[str | int, ...]
_NO_DOCUMENTS: Registry[Any] = Registry()
#: What holds values, not schemas.
_VALUES = frozenset({"const", "default", "enum", "examples"})
#: What holds schemas by the names that people give to them, which may be those of keywords.
_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
#: What may hold a list of texts that are all different, or one for each property. Of anything else the library compares
#: each with each.
_TEXTS, _TEXTS_BY_PROPERTY = frozenset({"type", "required"}), frozenset({"dependentRequired", "dependencies"})
_left: ContextVar[list[int]] = ContextVar("references that are left")


class InvalidSchema(ValueError):
    """Not a JSON Schema, or one that cannot be used here. `path` leads to the invalid part."""

    def __init__(self, text: str, path: Path = ()) -> None:
        super().__init__(text)
        self.path = path


class SchemaUnusable(ValueError):
    """The schema cannot be applied: a reference leads nowhere, or back to itself without end."""


def check_schema(schema: Any) -> None:
    """Check a schema. Raises `InvalidSchema`."""
    for path, keyword, value in _keywords(schema):
        by_property = keyword in _TEXTS_BY_PROPERTY and isinstance(value, Mapping)
        lists = value.values() if by_property else [value] if keyword in _TEXTS else []
        if not all(isinstance(text, str) for each in lists if isinstance(each, list) for text in each):
            raise InvalidSchema(f"{keyword} must hold texts only", path)
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise InvalidSchema(error.message[:200], tuple(error.absolute_path)) from None
    for path, keyword, value in _keywords(schema):
        if keyword in ("$ref", "$dynamicRef") and isinstance(value, str) and not value.startswith("#"):
            raise InvalidSchema("a schema must not refer to other documents", path)
        if keyword == "pattern" and isinstance(value, str):
            _check_pattern(value, path)
        elif keyword == "patternProperties" and isinstance(value, Mapping):
            for text in value:
                _check_pattern(text, (*path, text))


def fault_of(schema: Mapping[str, Any], value: Any) -> ValidationError | None:
    """Return what is wrong with a value, or None. Raises `SchemaUnusable`."""
    token = _left.set([MAX_REFERENCES])
    try:
        fault: ValidationError | None = best_match(_Validator(schema, registry=_NO_DOCUMENTS).iter_errors(value))
    except Exception as error:
        # The library has no base class for references to nowhere, endless recursion and the like.
        raise SchemaUnusable(f"the schema cannot be applied: {str(error)[:200]}") from error
    finally:
        _left.reset(token)
    return fault


def _keywords(schema: Any, path: Path = (), *, is_by_name: bool = False) -> Iterator[tuple[Path, str, Any]]:
    if isinstance(schema, Mapping):
        for name, value in schema.items():
            if is_by_name:
                yield from _keywords(value, (*path, name))
                continue
            yield (*path, name), name, value
            if name not in _VALUES:
                yield from _keywords(value, (*path, name), is_by_name=name in _BY_NAME)
    elif isinstance(schema, list):
        for index, item in enumerate(schema):
            yield from _keywords(item, (*path, index))


def _check_pattern(text: str, path: Path) -> None:
    try:
        Pattern(text)
    except InvalidPattern as error:
        raise InvalidSchema(str(error), path) from None


def _pattern(validator: Any, text: str, value: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(value, "string") and not Pattern(text).occurs_in(value):
        yield ValidationError(f"{value!r} does not match {text!r}")


def _pattern_properties(validator: Any, schemas: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    if not validator.is_type(value, "object"):
        return
    for text, subschema in schemas.items():
        for name in filter(Pattern(text).occurs_in, value):
            yield from validator.descend(value[name], subschema, path=name, schema_path=text)


def _unique_items(validator: Any, is_required: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    if is_required and validator.is_type(value, "array"):
        texts = {json.dumps(_comparable(item), sort_keys=True) for item in value}
        if len(texts) < len(value):
            yield ValidationError("the list has equal values")


def _comparable(value: Any) -> Any:
    """Return a value whose JSON is the same as that of each equal value: 1.0 equals 1, but true does not."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _comparable(item) for name, item in value.items()}
    return value


def _counted(keyword: str) -> Any:
    follow = jsonschema.Draft202012Validator.VALIDATORS[keyword]

    def apply(validator: Any, reference: str, value: Any, schema: Any) -> Any:
        left = _left.get()
        left[0] -= 1
        if left[0] < 0:
            raise SchemaUnusable(f"it follows more than {MAX_REFERENCES} references")
        return follow(validator, reference, value, schema)

    return apply


_Validator = extend(  # type: ignore[no-untyped-call]
    jsonschema.Draft202012Validator,
    {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "uniqueItems": _unique_items,
        "$ref": _counted("$ref"),
        "$dynamicRef": _counted("$dynamicRef"),
    },
)
