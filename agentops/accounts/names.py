"""Validation of slugs, names and descriptions, and limits of other fields."""

from __future__ import annotations

import unicodedata

from django.core.exceptions import ValidationError
from django.core.validators import RegexValidator

from agentops.accounts.errors import InvalidSlug
from agentops.base.refusals import Invalid

SLUG_PATTERN = r"\A[a-z0-9][a-z0-9-]{0,62}\Z"
UUID_PATTERN = r"\A[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z"
SLUG = RegexValidator(SLUG_PATTERN, "Use at most 63 lower-case letters, digits and dashes.")
# URLs contain the ID or the slug of a project, so a slug must not look like an ID.
NOT_A_UUID = RegexValidator(UUID_PATTERN, "A slug must not be a UUID.", inverse_match=True)
MAX_NAME = 200
MAX_DESCRIPTION = 2000
#: Maximum of `max_running` of a project or an agent.
MOST_RUNNING = 1_000_000
#: Unicode categories of control characters, surrogates, and line and paragraph separators. They could disturb a
#: terminal, split a log line, or be refused by PostgreSQL.
REFUSED = frozenset({"Cc", "Cs", "Zl", "Zp"})


def clean_slug(text: str) -> str:
    """Return the slug. Raises `InvalidSlug`."""
    try:
        SLUG(text)
        NOT_A_UUID(text)
    except ValidationError as error:
        raise InvalidSlug(f"{text[:64]!r} is not a valid slug: {error.message}") from None
    return text


def clean_name(text: str) -> str:
    """Return the name without surrounding spaces. Raises `Invalid` (`invalid_name`)."""
    name = text.strip()
    if not name:
        raise Invalid("the name must not be empty", code="invalid_name")
    if len(name) > MAX_NAME:
        raise Invalid(f"the name can have at most {MAX_NAME} characters", code="invalid_name")
    if any(unicodedata.category(character) in REFUSED for character in name):
        raise Invalid(f"{name[:64]!r} contains control characters", code="invalid_name")
    return name


def clean_description(text: str) -> str:
    """Return the text with plain line breaks, without surrounding spaces. Raises `Invalid` (`invalid_description`)."""
    description = text.replace("\r\n", "\n").strip()
    if len(description) > MAX_DESCRIPTION:
        raise Invalid(f"a description can have at most {MAX_DESCRIPTION} characters", code="invalid_description")
    if any(unicodedata.category(character) in REFUSED for character in description.replace("\n", "")):
        raise Invalid("a description must not contain control characters", code="invalid_description")
    return description


def one_line(text: str, limit: int) -> str:
    """Return an untrusted text as a single line of at most `limit` characters, without control characters."""
    spaced = "".join(" " if unicodedata.category(each) in REFUSED else each for each in text[: limit * 4])
    return truncate(" ".join(spaced.split()), limit)


def truncate(text: str, limit: int) -> str:
    """Return the text truncated to `limit` characters, with an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
