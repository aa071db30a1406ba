"""Regular expressions of definitions: matched in linear time, whatever is written in them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from pydantic_core import SchemaError, SchemaValidator, ValidationError, core_schema

MAX_PATTERN = 200


class InvalidPattern(ValueError):
    """A text is not a regular expression that the linear-time engine supports."""


@dataclass(frozen=True)
class Pattern:
    """A regular expression in the syntax of Rust's regex engine, which has no backtracking."""

    text: str

    def __post_init__(self) -> None:
        _validator(self.text, whole=True)

    def matches(self, subject: str) -> bool:
        """Return whether the whole subject matches."""
        return _is_match(_validator(self.text, whole=True), subject)

    def occurs_in(self, subject: str) -> bool:
        """Return whether a part of the subject matches."""
        return _is_match(_validator(self.text, whole=False), subject)


@lru_cache(maxsize=512)
def _validator(text: str, *, whole: bool) -> SchemaValidator:
    if not text or len(text) > MAX_PATTERN:
        raise InvalidPattern(f"a pattern must have 1 to {MAX_PATTERN} characters")
    try:
        # Compiled alone first, so that an unbalanced bracket cannot escape from the group around it.
        SchemaValidator(core_schema.str_schema(pattern=text, regex_engine="rust-regex"))
        pattern = rf"\A(?:{text})\z" if whole else text
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError:
        raise InvalidPattern(f"{text!r} is not a valid pattern") from None


def _is_match(validator: SchemaValidator, subject: str) -> bool:
    try:
        validator.validate_python(subject)
    except (ValidationError, UnicodeEncodeError):
        return False
    return True
