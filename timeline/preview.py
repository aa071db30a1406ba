"""Previews of long texts, for event payloads that refer to the row with the full text."""

from __future__ import annotations

import re

PREVIEW_BYTES = 2048

_SURROGATES = re.compile("[\ud800-\udfff]")


def preview(text: str, limit: int = PREVIEW_BYTES) -> tuple[str, bool]:
    """Return `text` truncated to at most `limit` UTF-8 bytes at a character boundary, and whether it was truncated."""
    if text.isascii():
        return (text, False) if len(text) <= limit else (text[:limit], True)
    head = text[:limit]  # a character has at least one byte
    try:
        data = head.encode()
    except UnicodeEncodeError:
        data = _SURROGATES.sub("\ufffd", head).encode()
    is_truncated = len(data) > limit or len(head) < len(text)
    head = data[:limit].decode(errors="ignore")  # only a truncated last character can be invalid
    return head, is_truncated
