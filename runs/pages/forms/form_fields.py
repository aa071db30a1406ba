"""Fields of forms that edit parts of a definition: conversion of values to texts and back."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from django import forms

from agentops.base.http import strict_json
from runs.pages.forms import fields
from runs.pages.forms.fields import CODE, ChoiceField
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
_FLAGS = [("", "–"), ("yes", "yes"), ("no", "no")]


class NotShowable(ValueError):
    """A value without a form field. The message names it."""


class ValueField(ChoiceField):
    """A field whose text is a value of its kind. Returns None for an empty text."""

    def __init__(
        self,
        label: str,
        kind: Kind = Kind.LINE,
        help_text: str = "",
        choices: Iterable[tuple[str, str]] = (),
        attrs: Mapping[str, Any] | None = None,
    ) -> None:
        self.kind = kind
        widget: Any = forms.TextInput
        if kind in (Kind.AREA, Kind.JSON):
            widget, attrs = forms.Textarea, {"rows": 2, **(CODE if kind is Kind.JSON else {}), **(attrs or {})}
        elif kind in (Kind.CHOICE, Kind.FLAG):
            widget, choices = forms.Select, _FLAGS if kind is Kind.FLAG else [("", "–"), *choices]
        super().__init__(label, help_text, choices, attrs=attrs, widget=widget)

    def to_python(self, value: Any) -> str:
        return clean_text(value or "", self.kind)

    def clean(self, value: Any) -> Any:
        text = self.to_python(value)
        return value_of(text, self.kind) if text else None

    def has_changed(self, initial: Any, data: Any) -> bool:
        return self.to_python(initial) != self.to_python(data)


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
    """Return the value of a non-empty text. Raise ValidationError for invalid JSON."""
    if kind is Kind.JSON:
        try:
            return strict_json.parse(text)
        except ValueError as error:
            raise forms.ValidationError(f"Not valid JSON: {error}.") from None
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
