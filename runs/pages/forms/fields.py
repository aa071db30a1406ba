"""Fields of forms, and functions that read the text of a field.

The action that uses the values checks them further, such as the length of a text: `add_refusal` adds its refusal to the
field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from django import forms

from agentops.accounts.command_base import printable
from agentops.accounts.settings_pages.page_parts import SHORT
from agentops.base.http import strict_json
from agentops.base.redaction.redact import BARE

INTEGER = re.compile(r"-?[0-9]{1,10}", re.ASCII)
#: Attributes of the control of a text for programs.
CODE = {"class": "mono", **SHORT}
#: Attributes of the control of a number.
NUMBER = {"inputmode": "numeric"}
#: Attributes of a control that the browser requires to be filled. The action says what is wrong with an empty value.
NEEDED = {"required": True}


def text(value: str) -> str:
    """Return the text with LF line ends (forms send CRLF), without characters that databases cannot store."""
    return BARE.clean_text(value.replace("\r\n", "\n").replace("\r", "\n"))[0]


def line(value: str) -> str:
    """Return the text as a single line without control characters."""
    return printable(text(value)).strip()


def integer(value: str) -> int | None:
    """Return the text as an integer of at most 10 digits, or None if it is empty. The caller checks the range.

    Raises ValueError for any other text. Unlike int(), this rejects "1_000" and non-ASCII digits.
    """
    digits = value.strip()
    if not digits:
        return None
    if not INTEGER.fullmatch(digits):
        raise ValueError(f"{digits[:64]!r} is not a whole number")
    return int(digits)


class TextField(forms.CharField):
    """A text of several lines with LF line ends. `attrs` are attributes of its control."""

    widget: Any = forms.Textarea
    default_error_messages = {"required": "Enter a value."}

    def __init__(
        self, label: str = "", help_text: str = "", attrs: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        widget = options.pop("widget", self.widget)
        options = {"required": False, "strip": False, **options}
        super().__init__(label=label, help_text=help_text, widget=widget(attrs=attrs), **options)

    def to_python(self, value: Any) -> str:
        return text(super().to_python(value) or "")

    def prepare_value(self, value: Any) -> Any:
        return value if value is None else self.to_python(str(value))


class OneLineField(TextField):
    """A single-line text without control characters."""

    widget: Any = forms.TextInput

    def to_python(self, value: Any) -> str:
        return line(super().to_python(value))


class CountField(OneLineField):
    """A whole number. Returns None for an empty value. The action checks the range."""

    default_error_messages = {"required": "Enter a number."}

    def clean(self, value: Any) -> int | None:
        try:
            return integer(super().clean(value))
        except ValueError as error:
            raise forms.ValidationError(f"{error}. Enter a number such as 20.") from None


class ObjectField(TextField):
    """A JSON object. Returns None for an empty value."""

    default_error_messages = {"invalid": "Not valid JSON: %(reason)s.", "no_object": "Enter a JSON object."}

    def clean(self, value: Any) -> dict[str, Any] | None:
        typed = super().clean(value).strip()
        try:
            parsed = strict_json.parse(typed) if typed else None
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError(self.error_messages["invalid"], params={"reason": error}) from None
        if (parsed is not None and not isinstance(parsed, dict)) or (typed and parsed is None):
            raise forms.ValidationError(self.error_messages["no_object"])
        return parsed


class InputsField(ObjectField):
    """The inputs of a flow."""

    default_error_messages = {
        "invalid": "The inputs are not JSON: %(reason)s.",
        "no_object": "The inputs must be a JSON object.",
    }


class ChoiceField(OneLineField):
    """A choice. A stored value that is not among the choices is added to them; the action refuses an invalid one."""

    widget: Any = forms.Select

    def __init__(self, label: str = "", help_text: str = "", choices: Iterable[Any] = (), **options: Any) -> None:
        super().__init__(label, help_text, **options)
        self.choices = list(choices)

    def get_bound_field(self, form: forms.BaseForm, field_name: str) -> forms.BoundField:
        """Return the field with its choices, and with its value if it is not among them."""
        field = super().get_bound_field(form, field_name)
        value = field.value()
        # The second item of a group of choices is a list of choices.
        groups = [dict(label) if isinstance(label, list) else [choice] for choice, label in self.choices]
        known = [choice for group in groups for choice in group]
        self.widget.choices = [*self.choices, (value, value)] if value and value not in known else self.choices
        return field


class HiddenURL(forms.PasswordInput):
    """A URL that is not sent back to the browser."""

    input_type = "url"
