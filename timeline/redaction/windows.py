"""Redaction of a part of a longer text: a secret that the part's borders cut is masked as the whole one would be."""

from __future__ import annotations

from timeline.redaction.redact import DEFAULT, Redactor, mark
from timeline.redaction.secret_names import SecretSpan

#: Characters before and after a part that are enough to see a secret as one: the longest are private keys.
CONTEXT = 64 * 1024
# A mark in place of a secret may make its neighbour visible as one.
_ROUNDS = 4


def mask(text: str, before: str = "", after: str = "", redactor: Redactor = DEFAULT) -> str:
    """Return the text with every secret replaced by its mark, those included that begin before or end after it.

    The mark is that of the whole secret, so it tells nothing of the characters that lie in the text.
    """
    if not text:
        return text
    whole, begin, end = before + text + after, len(before), len(before) + len(text)
    for _ in range(_ROUNDS):
        spans = redactor.spans(whole)
        if not spans:
            break
        whole, begin, end = _marked(whole, spans, begin, end)
    return whole[begin:end]


def _marked(whole: str, spans: list[SecretSpan], begin: int, end: int) -> tuple[str, int, int]:
    """The text with marks for the spans, and where the part lies in it now; a mark at its border belongs to it."""
    parts: list[str] = []
    done = shift = 0
    new_begin, new_end = begin, end
    for span in spans:
        stands_for = mark(span.kind, whole[span.begin : span.end])
        parts += whole[done : span.begin], stands_for
        done, starts = span.end, span.begin + shift
        shift += len(stands_for) - (span.end - span.begin)
        if span.end <= begin:
            new_begin = begin + shift
        elif span.begin < begin:
            new_begin = starts
        if span.end <= end:
            new_end = end + shift
        elif span.begin < end:
            new_end = starts + len(stands_for)
    return "".join([*parts, whole[done:]]), new_begin, new_end
