"""Marks blocks of messages in a form that no reader knows.

Such a block becomes a text with a mark and its JSON, so that people see that something is there. The event of the
message has the number of its marks, which a metric sums up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runs.providers.messages import canonical

MARK = "[Unknown block: "
#: Maximum characters of the name of a block.
_MAX_NAME = 64


def marked(block: Mapping[str, Any]) -> str:
    """Return the text of an unknown block: its type, or else its members, and its JSON."""
    kind = block.get("type")
    name = kind if isinstance(kind, str) and kind else ", ".join(map(str, block))
    printable = "".join(letter for letter in name if letter.isprintable())[:_MAX_NAME]
    return f"{MARK}{printable or 'no type'}]\n{canonical(block)}"


def count_marks(text: str) -> int:
    """Return the number of unknown blocks in the text of a message."""
    return text.count(MARK)
