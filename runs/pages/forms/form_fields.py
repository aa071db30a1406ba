"""Fields of forms that edit parts of a definition: conversion of values to texts and back."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentops.base.http import strict_json
from runs.pages.forms import fields
from timeline.display import make_legible

_INTEGER = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_NUMBER = re.compile(r"-?[0-9]{1,19}(\.[0-9]{1,17})?", re.ASCII)


class Kind(enum.StrEnum):
    """The kinds of fields. A text that is invalid for its kind remains a text, so that validation rejects it."""

    LINE = "line"
    AREA = "area"
    CHOICE = "choice"
    #: Whole numbers; texts such as "forever" remain texts.
    COUNT = "count"
    NUMBER = "number"
    #: A number kept as text: an amount, to preserve its digits, or a duration such as 60s.
    AMOUNT = "amount"
    #: Texts separated by commas.
    WORDS = "words"
    FLAG = "flag"
    JSON = "json"


#: The types of the values that a field shows.
_TYPES: Mapping[Kind, tuple[type, ...]] = {
    **dict.fromkeys((Kind.LINE, Kind.AREA, Kind.CHOICE), (str,)),
    Kind.COUNT: (int, str),
    Kind.NUMBER: (int, float),
    Kind.AMOUNT: (int, float, str),
    Kind.WORDS: (str, list),
    Kind.FLAG: (bool,),
    Kind.JSON: (dict, list),
}
_FLAGS = (("yes", "yes"), ("no", "no"))


class NotShowable(ValueError):
    """A value without a form field. The message names it."""


class InvalidField(ValueError):
    """A text is not JSON."""


@dataclass(frozen=True)
class FieldType:
    """A field of a form: `name` is the key of its value."""

    name: str
    label: str
    kind: Kind = Kind.LINE
    help: str = ""
    choices: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class FilledField:
    """A field with its text, for the template."""

    type: FieldType
    #: Name of the control.
    name: str
    value: str
    errors: Sequence[str] = ()

    @property
    def choices(self) -> Sequence[tuple[str, str]]:
        choices = _FLAGS if self.type.kind is Kind.FLAG else self.type.choices
        has_choice = not self.value or any(value == self.value for value, _ in choices)
        return choices if has_choice else [*choices, (self.value, self.value)]

    @property
    def is_choice(self) -> bool:
        return self.type.kind in (Kind.CHOICE, Kind.FLAG)

    @property
    def is_long(self) -> bool:
        return self.type.kind in (Kind.AREA, Kind.JSON)

    @property
    def is_code(self) -> bool:
        return self.type.kind is Kind.JSON


def is_showable(value: object, kind: Kind) -> bool:
    """Return whether a field of this kind can show the value and return it unchanged."""
    if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind is not Kind.FLAG):
        return False
    return not isinstance(value, list) or kind is Kind.JSON or all(_is_word(item) for item in value)


def text_of(value: Any, kind: Kind) -> str:
    """Return a value as text. Raise NotShowable."""
    if value is None:
        return ""
    if not is_showable(value, kind):
        raise NotShowable(f"the form has no field for {json.dumps(value)[:64]}")
    if kind is Kind.FLAG:
        return "yes" if value else "no"
    if kind is Kind.JSON:
        return json_of(value)
    return clean_text(", ".join(value) if isinstance(value, list) else str(value), kind)


def json_of(value: Any) -> str:
    """Return a value as indented JSON. Invisible characters are escaped, so that an edit keeps them."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return text if make_legible(text) == text else json.dumps(value, indent=2)


def value_of(text: str, kind: Kind) -> Any:
    """Return the value of a non-empty text. Raise InvalidField for invalid JSON."""
    if kind is Kind.JSON:
        try:
            return strict_json.parse(text)
        except ValueError as error:
            raise InvalidField(f"Not valid JSON: {error}.") from None
    if kind is Kind.COUNT and _INTEGER.fullmatch(text):
        return int(text)
    if kind is Kind.NUMBER and _NUMBER.fullmatch(text):
        return float(text) if "." in text else int(text)
    if kind is Kind.WORDS:
        return [word for each in text.split(",") if (word := each.strip())]
    if kind is Kind.FLAG:
        return {"yes": True, "no": False}.get(text, text)
    return text


def clean_text(text: str, kind: Kind) -> str:
    """Return the text of a field with LF line ends, and without surrounding spaces unless it has several lines."""
    return make_legible(fields.text(text)) if kind is Kind.AREA else make_legible(fields.text(text)).strip()


def _is_word(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and value == value.strip() and "," not in value
