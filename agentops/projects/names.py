"""What may be a slug or a name: the checks that every door shares."""

from __future__ import annotations

import unicodedata

from django.core.exceptions import ValidationError
from django.core.validators import RegexValidator

from agentops.projects.errors import InvalidName, InvalidSlug

SLUG_PATTERN = r"\A[a-z0-9][a-z0-9-]{0,62}\Z"
UUID_PATTERN = r"\A[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z"
SLUG = RegexValidator(SLUG_PATTERN, "Lower-case letters, digits and dashes, at most 63.")
# An address names a project by its id or by its slug, and must never mean two.
NOT_A_UUID = RegexValidator(UUID_PATTERN, "Not in the form of a UUID.", inverse_match=True)
MAX_NAME = 200
# Control characters, lone surrogates, line and paragraph separators: they break a terminal, a log line or Postgres.
REFUSED = frozenset({"Cc", "Cs", "Zl", "Zp"})


def clean_slug(text: str) -> str:
    try:
        SLUG(text)
        NOT_A_UUID(text)
    except ValidationError as error:
        raise InvalidSlug(f"{text[:64]!r} is no slug: {error.message}") from None
    return text


def clean_name(text: str) -> str:
    """The name without spaces around it."""
    name = text.strip()
    if not name:
        raise InvalidName("a name must not be empty")
    if len(name) > MAX_NAME:
        raise InvalidName(f"a name has at most {MAX_NAME} characters")
    if any(unicodedata.category(character) in REFUSED for character in name):
        raise InvalidName(f"{name[:64]!r} has control characters in it")
    return name


def one_line(text: str, limit: int) -> str:
    """Somebody's words as a line of at most `limit` characters: nothing in it begins another line, or a header."""
    spaced = "".join(" " if unicodedata.category(each) in REFUSED else each for each in text[: limit * 4])
    return clipped(" ".join(spaced.split()), limit)


def clipped(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
