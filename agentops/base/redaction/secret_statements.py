"""Detection of secrets in statements and files of programs: SQL, settings of Docker and npm, htpasswd, openssl."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from typing import NamedTuple

from agentops.base.redaction.secret_names import PASSWORD, TEMPLATE, SecretSpan, each

# JSON nested four times has at most fifteen backslashes before a quote.
_QUOTE = r"\\{0,15}[\"']"
_GAP = r"(?:\s|\\[nrt]){1,4}"
_QUOTED = rf"{_QUOTE}([^\"'\\\n]{{1,256}}+)"


class _Statement(NamedTuple):
    """A word, a pattern for the following text, with the secret as the last group, and one for the preceding text."""

    kind: str
    word: str
    rest: re.Pattern[str]
    before: re.Pattern[str] | None
    #: Whether the word is case-insensitive, as in SQL.
    any_case: bool


def _place(kind: str, word: str, rest: str, before: str = "", *, any_case: bool = False) -> _Statement:
    flags = re.IGNORECASE if any_case else re.NOFLAG
    return _Statement(kind, word, re.compile(rest, flags), re.compile(before, flags) if before else None, any_case)


_BASE64 = "([A-Za-z0-9+/]++={0,2})"
_LOOK_BACK = 200
_FLAG = r"-[A-Za-z0-9]{1,12}\s{1,4}"
_FLAGS = rf"\s{{1,4}}(?=(?:{_FLAG}){{0,3}}-[A-Za-z0-9]{{0,8}}b)"
_ARGUMENT, _SECRET_ARGUMENT = r"[^\s-]\S{0,255}+\s{1,4}", r"[\"']?([^\s\"';|&]{1,256}+)"
PLACES = (
    # CREATE USER … IDENTIFIED BY '…', ALTER ROLE … PASSWORD '…', SET PASSWORD FOR … = PASSWORD('…')
    _place(
        PASSWORD,
        "identified",
        rf"(?:{_GAP}with{_GAP}\S{{1,64}}+)?{_GAP}(?:by|as)(?:{_GAP}password)?{_GAP}{_QUOTED}",
        rf"(?:user|role|to|exists){_GAP}(?!is\b|are\b|was\b|be\b)\S{{1,128}}+{_GAP}\Z",
        any_case=True,
    ),
    _place(
        PASSWORD,
        "password",
        rf"(?:{_GAP}for{_GAP}[^\s=]{{1,128}}+\s{{0,4}}=\s{{0,4}}|\s?\(|{_GAP}){_QUOTED}",
        rf"(?:(?:create|alter){_GAP}(?:role|user|login|group)\b[^;]*|set{_GAP}(?:password\b[^;]*)?|encrypted{_GAP})\Z",
        any_case=True,
    ),
    _place("basic", "auth", rf"{_QUOTE}\s{{0,4}}:\s{{0,4}}{_QUOTE}{_BASE64}", rf"{_QUOTE}_?\Z"),
    _place("basic", "_auth", rf"\s{{0,2}}=\s{{0,2}}[\"']?{_BASE64}"),
    _place(
        PASSWORD,
        "htpasswd",
        rf"{_FLAGS}(?=(?:{_FLAG}){{0,3}}-[A-Za-z0-9]{{0,8}}n)(?:{_FLAG}){{1,4}}{_ARGUMENT}{_SECRET_ARGUMENT}",
    ),
    _place(PASSWORD, "htpasswd", rf"{_FLAGS}(?:{_FLAG}){{1,4}}{_ARGUMENT}{_ARGUMENT}{_SECRET_ARGUMENT}"),
    _place(PASSWORD, " pass:", r"([^\s\"'\\;|&]{1,256}+)", r"-pass(?:in|out)?\s?\Z"),
)
# Lower-case part of the words → the places. Most texts contain none of the parts, so few are searched for.
_BY_PART = {part: tuple(place for place in PLACES if part in place.word) for part in ("pass", "auth", "identified")}
KINDS = frozenset(place.kind for place in PLACES)
#: Case-sensitive words. "password" is also a sign of `secret_names`.
MARKS = tuple(dict.fromkeys(place.word for place in PLACES if not place.any_case))


def may_be_in(lower: str) -> bool:
    """Return whether the text may contain one of the words, except "auth". Faster than an empty iteration."""
    return "pass" in lower or "identified" in lower


def find(text: str, lower: str) -> Iterator[SecretSpan]:
    """Yield the secrets in statements and files. `lower` is the text in lower case."""
    for place, match, at in _matches(text, lower):
        group = match.lastindex or 0
        if _is_secret(place.kind, match[group]):
            yield SecretSpan(*match.span(group), at, place.kind)


def unfinished(text: str, lower: str) -> int:
    """Return the position of a value that the end of the text truncates, or the length of the text."""
    size = len(text)
    return min(
        (match.start(match.lastindex or 0) for _, match, _ in _matches(text, lower) if match.end() == size),
        default=size,
    )


def signs(lower: str) -> Iterator[int]:
    """Yield the positions of case-insensitive words that a value may follow, except the words of `secret_names`."""
    yield from each(lower, "identified")


def may_follow(text: str, mark: str, end: int) -> bool:
    """Return whether a value may follow a word of `MARKS` that ends at `end`."""
    return any(place.word == mark and place.rest.match(text, end) for place in PLACES)


def is_basic(value: str) -> bool:
    """Return whether a value is base64 of a printable "user:password"."""
    try:
        plain = base64.b64decode(value[:1024], validate=True).decode()
    except (binascii.Error, ValueError):
        return False
    return ":" in plain and plain.isprintable()


def _matches(text: str, lower: str) -> Iterator[tuple[_Statement, re.Match[str], int]]:
    for part, places in _BY_PART.items():
        for place in places if part in lower else ():
            for at in each(lower if place.any_case else text, place.word):
                match = place.rest.match(text, at + len(place.word))
                if match and (place.before is None or place.before.search(text[max(0, at - _LOOK_BACK) : at])):
                    yield place, match, at


def _is_secret(kind: str, value: str) -> bool:
    if kind == "basic":
        return is_basic(value)
    return (
        len(value) > 3 and len(set(value)) > 1 and not TEMPLATE.match(value) and (kind == PASSWORD or len(value) >= 32)
    )
