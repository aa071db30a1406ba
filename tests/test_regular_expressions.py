"""Regular expressions of the product match the same text on every supported Python version."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from re import _constants, _parser  # type: ignore[attr-defined]
from types import ModuleType

import pytest

from agentops.base.redaction.vendor_formats import FORMATS

#: Patterns that match exactly one character.
ONE_CHARACTER = {_constants.IN, _constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY}


def possessive_groups(parsed: _parser.SubPattern) -> Iterator[_parser.SubPattern]:
    """Yield the subpatterns that are repeated possessively or atomic, and longer than one character."""
    for kind, value in parsed:
        parts = list(_parts_of(value))
        if kind is _constants.ATOMIC_GROUP or (kind is _constants.POSSESSIVE_REPEAT and not _takes_one(parts[0])):
            yield from parts
        for part in parts:
            yield from possessive_groups(part)


def _takes_one(part: _parser.SubPattern) -> bool:
    return len(part) == 1 and part[0][0] in ONE_CHARACTER


def _parts_of(value: object) -> Iterator[_parser.SubPattern]:
    if isinstance(value, _parser.SubPattern):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _parts_of(each)


def patterns_of(module: ModuleType) -> Iterator[re.Pattern[str]]:
    """Yield the compiled expressions of a module, including its tables and classes."""
    for value in vars(module).values():
        yield from _patterns_in(value)
        if isinstance(value, type) and value.__module__ == module.__name__:
            yield from _patterns_in(tuple(vars(value).values()))


def _patterns_in(value: object) -> Iterator[re.Pattern[str]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, tuple | list | set | frozenset):
        for each in value:
            yield from _patterns_in(each)
    elif isinstance(value, dict):
        yield from _patterns_in((*value, *value.values()))


def product_modules() -> Iterator[ModuleType]:
    for name in ("agentops", "timeline", "runs"):
        package = importlib.import_module(name)
        for found in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not found.name.endswith(".__main__"):
                yield importlib.import_module(found.name)


EXPRESSIONS = ("(?:a|bc)++", "(?:ab){1,3}+", "(?>ab?)", "x((?:a?b)*+)", "(?:a|(?:bc)?+)", "(?:(a))++")


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_possessive_groups_are_detected(expression: str) -> None:
    assert list(possessive_groups(_parser.parse(expression)))


def test_no_possessive_group_is_longer_than_a_character() -> None:
    """Before Python 3.11.5 a possessive group may match too much (github.com/python/cpython/issues/106052).

    With 3.11.2 of Debian 12, a private key kept its last line, and a token included the following full stop.
    """
    compiled = {(each.pattern, each.flags) for module in product_modules() for each in patterns_of(module)}
    compiled |= {(text, 0) for form in FORMATS for text in (form.pattern(), form.head())}
    assert len(compiled) > 200
    wrong = [text for text, flags in compiled if list(possessive_groups(_parser.parse(text, flags)))]
    assert wrong == []
