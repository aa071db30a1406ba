"""Sorted lists of spans: merged, without existing marks, and blanked out of a text."""

from __future__ import annotations

import re
from collections.abc import Iterator

from agentops.base.redaction.registered_secrets import SECRET
from agentops.base.redaction.secret_names import SecretSpan

# Kinds that are derived from a name before the value. A kind derived from the value itself is more specific.
_VAGUE = frozenset({"password", "token", "key", "bearer", "authorization"})
_NOT_LINE = re.compile(r"[^\n]")


def blank(text: str, ranges: list[tuple[int, int]]) -> str:
    """Return the text with the sorted ranges replaced by NUL, except for line breaks."""
    if not ranges:
        return text
    parts: list[str] = []
    position = 0
    for begin, end in ranges:
        parts += text[position:begin], _NOT_LINE.sub("\0", text[begin:end])
        position = end
    return "".join([*parts, text[position:]])


def join(spans: list[SecretSpan]) -> Iterator[SecretSpan]:
    """Merge overlapping spans, which must be sorted."""
    last = spans[0]
    for span in spans[1:]:
        if span.begin < last.end:
            kind = span.kind if _is_vaguer(last.kind, span.kind) else last.kind
            last = SecretSpan(last.begin, max(last.end, span.end), min(last.context, span.context), kind)
        else:
            yield last
            last = span
    yield last


def _is_vaguer(kind: str, other: str) -> bool:
    """Return whether another kind is more specific. A name chosen by a project is more specific than "secret"."""
    return kind in _VAGUE or (kind == SECRET and other not in _VAGUE)


def exclude(spans: Iterator[SecretSpan], marks: list[tuple[int, int]]) -> Iterator[SecretSpan]:
    """Exclude existing marks from the spans. Both are sorted."""
    first = 0
    for span in spans:
        while first < len(marks) and marks[first][1] <= span.begin:
            first += 1
        begin, at = span.begin, first
        while at < len(marks) and marks[at][0] < span.end:
            if begin < marks[at][0]:
                yield span._replace(begin=begin, end=marks[at][0])
            begin, at = marks[at][1], at + 1
        if begin < span.end:
            yield span._replace(begin=begin)
