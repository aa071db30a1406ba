"""Fields of forms that edit parts of a definition, with conversion of values to texts and back; and drafts."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django import forms

from agentops.accounts.settings_pages.page_parts import sentence
from agentops.base.http import strict_json
from runs.agents import definition
from runs.pages.content.differences import TextDifference
from runs.pages.forms import fields
from runs.pages.forms.fields import CODE, ChoiceField
from timeline.display import clean, make_legible

_INTEGER = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_NUMBER = re.compile(r"-?[0-9]{1,19}(\.[0-9]{1,17})?", re.ASCII)


class Kind(enum.StrEnum):
    """The kinds of fields. A text that is invalid for its kind stays a text, so that the definition is refused."""

    LINE = "line"
    AREA = "area"
    CHOICE = "choice"
    #: A whole number, or a text such as "forever".
    COUNT = "count"
    NUMBER = "number"
    #: A number that stays a text: an amount, to keep its digits, or a duration such as 60s.
    AMOUNT = "amount"
    #: Texts separated by commas.
    WORDS = "words"
    FLAG = "flag"
    JSON = "json"


#: The types of the values that a field of a kind can show.
_TYPES: Mapping[Kind, tuple[type, ...]] = {
    **dict.fromkeys((Kind.LINE, Kind.AREA, Kind.CHOICE), (str,)),
    Kind.COUNT: (int, str),
    Kind.NUMBER: (int, float),
    Kind.AMOUNT: (int, float, str),
    Kind.WORDS: (str, list),
    Kind.FLAG: (bool,),
    Kind.JSON: (dict, list),
}
#: The choices of a field of the kind FLAG.
_FLAGS = [("", "–"), ("yes", "yes"), ("no", "no")]


class NotShowable(ValueError):
    """A form has no field for a value. The message names the value."""


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
    """Return a value as the text of a field. Raises NotShowable."""
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
    """Return the value of a text that is not empty. Raises ValidationError for invalid JSON."""
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
    """Return the text of a field with LF line ends; except for the kind AREA, without surrounding white space."""
    legible = make_legible(fields.text(text))
    return legible if kind is Kind.AREA else legible.strip()


def _is_word(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and value == value.strip() and "," not in value


@dataclass
class Draft:
    """A definition that a user edits."""

    #: The version that a save replaces, which the user has seen; 0 for a new definition.
    base: int
    #: The definition as JSON or TOML.
    text: str = ""
    #: Positions in the text, and the errors there.
    errors: list[tuple[str, str]] = field(default_factory=list)
    #: The differences between the version `base` and the draft; None if they are not displayed.
    preview: list[TextDifference] | None = None
    #: Changes that another user has saved since the form was opened; None without any.
    conflict: list[TextDifference] | None = None

    def add_error(self, error: object, pointer: str = "", document: Mapping[str, Any] | None = None) -> None:
        """Add an error of the text, with its position if it has a JSON `pointer` within `document`."""
        position = "" if document is None else clean(definition.json_path(pointer, document))
        self.errors.append((position, clean(sentence(error))))
