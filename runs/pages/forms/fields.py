"""Parsing of text that users type into forms."""

from __future__ import annotations

import re

from agentops.accounts.management.base import printable
from agentops.base.redaction.redact import BARE

INTEGER = re.compile(r"-?[0-9]{1,10}", re.ASCII)


def text(value: str) -> str:
    """Return the text with LF line ends (forms send CRLF), without characters that databases cannot store."""
    return BARE.clean_text(value.replace("\r\n", "\n").replace("\r", "\n"))[0]


def line(value: str) -> str:
    """Return the text as a single line without control characters."""
    return printable(text(value)).strip()


def integer(value: str) -> int | None:
    """Return the text as an integer of at most 10 digits, or None if it is empty.

    Raise ValueError for any other text. Unlike int(), this rejects "1_000" and non-ASCII digits. The caller checks
    the range.
    """
    digits = value.strip()
    if not digits:
        return None
    if not INTEGER.fullmatch(digits):
        raise ValueError(f"{digits[:64]!r} is not a whole number")
    return int(digits)
