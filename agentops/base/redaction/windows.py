"""Redaction of a part of a longer text, including secrets that the borders of the part truncate."""

from __future__ import annotations

from agentops.base.redaction.redact import DEFAULT, Redactor, mark
from agentops.base.redaction.secret_names import SecretSpan

#: The number of characters searched before and after a part. The longest secrets are private keys.
CONTEXT = 64 * 1024
# Replacing a secret by a mark can reveal another one next to it.
_ROUNDS = 4


def mask(text: str, before: str = "", after: str = "", redactor: Redactor = DEFAULT) -> str:
    """Return the text with its secrets replaced by marks, including secrets that begin before or end after it.

    The mark is computed from the whole secret, so it does not reveal the part within the text.
    """
    redactor = redactor.fixed()
    if not text or not redactor.shapes:
        return text
    whole, begin, end = before + text + after, len(before), len(before) + len(text)
    for _ in range(_ROUNDS):
        spans = redactor.spans(whole)
        if not spans:
            break
        whole, begin, end = _replace_spans(whole, spans, begin, end)
    return whole[begin:end]


def _replace_spans(whole: str, spans: list[SecretSpan], begin: int, end: int) -> tuple[str, int, int]:
    """Return the text with the spans replaced by marks, and the new range of the part, including its border marks."""
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
