"""Previews: the first bytes of a long text, for payloads that point to the row holding the whole."""

from __future__ import annotations

import re

PREVIEW_BYTES = 2048

_SURROGATES = re.compile("[\ud800-\udfff]")


def preview(text: str, limit: int = PREVIEW_BYTES) -> tuple[str, bool]:
    """`text` cut to at most `limit` UTF-8 bytes at a character border, and whether anything was cut."""
    if text.isascii():
        return (text, False) if len(text) <= limit else (text[:limit], True)
    head = text[:limit]  # a character takes at least one byte, so nothing behind this can be kept
    try:
        data = head.encode()
    except UnicodeEncodeError:
        data = _SURROGATES.sub("\ufffd", head).encode()
    kept = data[:limit].decode(errors="ignore")  # only the character that the cut split can be invalid
    return kept, len(data) > limit or len(head) < len(text)
