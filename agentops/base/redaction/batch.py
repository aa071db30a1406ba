"""Redaction of many JSON values at once: one search over all of them for signs of secrets.

Few values contain a secret, but searching each string for each kind of secret costs more than storing it. Here all
values are searched at once, as one JSON text, for signs that every secret has: the prefix of a token, or a name before
a value. Only values with such a sign are then redacted one by one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from pydantic_core import PydanticSerializationError, from_json, to_json

from agentops.base.redaction.redact import BUILT_IN, JSON, NOTHING, Redactor, site_secrets
from agentops.base.redaction.secret_names import each
from agentops.base.redaction.secret_signs import signs

#: Signs of other replacements: NUL, and existing marks, which another secret may follow.
_OTHER_SIGNS = ("\\u0000", "[REDACTED:")


def clean_all(values: Sequence[JSON], redactor: Redactor) -> list[tuple[JSON, frozenset[str]]]:
    """Redact JSON values. The result equals calling `redactor.clean` for each value."""
    try:
        suspects = suspects_among([to_json(value).decode() for value in values], redactor)
    except PydanticSerializationError:  # an unpaired surrogate, or too deep
        suspects = range(len(values))
    return [redactor.clean(value) if index in suspects else (value, NOTHING) for index, value in enumerate(values)]


def clean_texts(texts: Sequence[str], redactor: Redactor) -> list[tuple[str, frozenset[str]]]:
    """Redact JSON values, passed and returned as JSON texts without spaces."""
    suspects = suspects_among(texts, redactor)
    return [_clean_text(text, redactor) if index in suspects else (text, NOTHING) for index, text in enumerate(texts)]


def _clean_text(text: str, redactor: Redactor) -> tuple[str, frozenset[str]]:
    value, changes = redactor.clean(from_json(text))
    return to_json(value).decode() if changes else text, changes


def is_suspect(text: str, redactor: Redactor) -> bool:
    """Return whether a JSON text without spaces may contain something to replace, besides unpaired surrogates."""
    return redactor is not BUILT_IN or next(_signs(text), None) is not None


def suspects_among(texts: Sequence[str], redactor: Redactor) -> set[int] | range:
    """Return the indexes of the JSON texts that may contain something to replace."""
    if redactor is not BUILT_IN:
        return range(len(texts))  # the rules of a project have other signs
    starts = list(accumulate((len(text) + 1 for text in texts), initial=0))
    return {bisect_right(starts, at) - 1 for at in _signs("\n".join(texts))}


def _in_ascii(text: str) -> str:
    # The signs are ASCII. JSON keeps the characters of a sign together, and at most escapes the following text.
    return text if text.isascii() else text.encode("ascii", "replace").decode("ascii")


def _signs(text: str) -> Iterator[int]:
    if secrets := site_secrets():
        yield from (span.begin for span in secrets.find(text))
    text = _in_ascii(text)
    for sign in _OTHER_SIGNS:
        yield from each(text, sign)
    yield from signs(text, text.lower())
