"""JSON Schemas of users: checked before they are stored, and applied without network requests and within a budget.

The processes that apply the schema of a project serve all projects. So no other documents are loaded, patterns are
matched in linear time, and all work is counted: keywords, members of values, references and messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
from jsonschema.exceptions import ValidationError, best_match
from referencing import Registry

from agentops.base.fair_shares import WorkBudget, WorkExceeded
from agentops.base.patterns import InvalidPattern
from agentops.base.schema_keywords import CountedValidator
from agentops.base.schema_work import SchemaWork, new_work

#: Error code for schemas that are too expensive, in all APIs.
TOO_EXPENSIVE = "schema_too_expensive"
Path = tuple[str | int, ...]
_NO_DOCUMENTS: Registry[Any] = Registry()
#: Keywords that contain values, not schemas.
_VALUES = frozenset({"const", "default", "enum", "examples"})
#: Keywords that contain schemas by user-defined names, which may equal keywords.
_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})


class InvalidSchema(ValueError):
    """The schema is invalid or unsupported. `path` leads to the invalid part."""

    def __init__(self, text: str, path: Path = ()) -> None:
        super().__init__(text)
        self.path = path


class ExpensiveSchema(InvalidSchema):
    """The schema is too large to check."""


class SchemaUnusable(ValueError):
    """The schema cannot be applied: a reference is unresolvable or endlessly recursive."""


class SchemaTooExpensive(SchemaUnusable):
    """Checking the value exceeds the budget of one check."""


def check_schema(schema: Any, budget: WorkBudget | None = None) -> None:
    """Check a schema. Raises `InvalidSchema`; `ExpensiveSchema` if the check exceeds the budget.

    The work counts towards `budget`, by default a new one.
    """
    try:
        with new_work(budget) as work:
            _check_parts(work, schema)
            fault = _first_error(CountedValidator(jsonschema.Draft202012Validator.META_SCHEMA), schema)
    except WorkExceeded as error:
        raise ExpensiveSchema(f"the schema is too large: its check {error}") from None
    if fault is not None:
        raise InvalidSchema(fault.message[:200], tuple(fault.absolute_path))


def fault_of(schema: Mapping[str, Any], value: Any) -> ValidationError | None:
    """Return the first error of a value, or None. Raises `SchemaUnusable` or `SchemaTooExpensive`.

    Of the subschemas of `anyOf`, the error of the one that fits best is returned.
    """
    try:
        with new_work() as work:
            work.measure(schema)
            first = _first_error(CountedValidator(schema, registry=_NO_DOCUMENTS), value)
    except WorkExceeded as error:
        raise SchemaTooExpensive(f"the schema is too expensive for this value: the check {error}") from None
    except Exception as error:
        # The library has no common class for unresolvable references, endless recursion and similar errors.
        raise SchemaUnusable(f"the schema cannot be applied: {str(error)[:200]}") from error
    fault: ValidationError | None = best_match([] if first is None else [first])
    return fault


def _first_error(validator: Any, value: Any) -> ValidationError | None:
    return next(validator.iter_errors(value), None)


def _check_parts(work: SchemaWork, schema: Any) -> None:
    """Check references and patterns, which the library does not check. Raises `InvalidSchema`."""
    for path, keyword, value in _keywords(work, schema):
        if keyword in ("$ref", "$dynamicRef") and isinstance(value, str) and not value.startswith("#"):
            raise InvalidSchema("a schema must not refer to other documents", path)
        if keyword == "pattern" and isinstance(value, str):
            _check_pattern(work, value, path)
        elif keyword == "patternProperties" and isinstance(value, Mapping):
            for text in value:
                _check_pattern(work, text, (*path, text))


def _keywords(
    work: SchemaWork, schema: Any, path: Path = (), *, is_by_name: bool = False
) -> Iterator[tuple[Path, str, Any]]:
    """Yield all keywords of a schema and its subschemas, each with its path and value.

    `is_by_name`: `schema` contains subschemas by names, such as those of properties.
    """
    work.budget.spend()
    if isinstance(schema, Mapping):
        for name, value in schema.items():
            if is_by_name:
                yield from _keywords(work, value, (*path, name))
                continue
            yield (*path, name), name, value
            if name not in _VALUES:
                yield from _keywords(work, value, (*path, name), is_by_name=name in _BY_NAME)
    elif isinstance(schema, list):
        for index, item in enumerate(schema):
            yield from _keywords(work, item, (*path, index))


def _check_pattern(work: SchemaWork, text: str, path: Path) -> None:
    try:
        work.pattern(text)
    except InvalidPattern as error:
        raise InvalidSchema(str(error), path) from None
