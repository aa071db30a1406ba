"""What people type into forms, as the rest of the code wants it."""

from __future__ import annotations

import re

from agentops.projects.management.base import printable
from timeline.redaction.redact import BARE

WHOLE = re.compile(r"-?[0-9]{1,10}", re.ASCII)


def text(typed: str) -> str:
    """Text with the line ends that programs use (forms send CRLF), without what no database can store."""
    return BARE.clean_text(typed.replace("\r\n", "\n").replace("\r", "\n"))[0]


def line(typed: str) -> str:
    """One line of it."""
    return printable(text(typed)).strip()


def whole(typed: str) -> int | None:
    """A whole number; None for nothing typed. Raises ValueError for anything else.

    int() alone also takes "1_000" and other scripts' digits. What is too small or too large is not ours to say.
    """
    digits = typed.strip()
    if not digits:
        return None
    if not WHOLE.fullmatch(digits):
        raise ValueError(f"{digits[:64]!r} is no whole number")
    return int(digits)
