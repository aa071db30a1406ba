"""Detection of vendors' tokens by their prefixes, from the table that bench/write_token_shapes.py generates."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from timeline.redaction.secret_names import DIGIT, LETTER, SecretSpan
from timeline.redaction.token_shapes import TOKEN_SHAPES


class _Vendor(NamedTuple):
    kind: str
    prefix: str
    body: re.Pattern[str]
    least: int


_DIGIT = "[0-9A-Fa-f]"
#: A token does not start after a letter or digit, except at the end of an escape such as \\n, %3D or \\u0022.
START = re.compile(
    rf"(?<![A-Za-z0-9_-])|(?<=\\[nrt])|(?<=%{_DIGIT}{_DIGIT})|(?<=\\u{_DIGIT}{_DIGIT}{_DIGIT}{_DIGIT})", re.ASCII
)
# Some end in a checksum of the rest.
_BODIES = {
    "alnum": re.compile(rf"[A-Za-z0-9]*+(?:_{_DIGIT}{{8}}(?![A-Za-z0-9_-]))?"),
    "word": re.compile("[A-Za-z0-9_-]*+"),
}
_ALL = [_Vendor(kind, prefix, _BODIES[alphabet], least) for kind, prefix, alphabet, least in TOKEN_SHAPES]
PREFIXES = tuple(vendor.prefix for vendor in _ALL)
_TAIL = 3
_BY_TAIL: dict[str, list[_Vendor]] = {}
for _vendor in _ALL:
    _BY_TAIL.setdefault(_vendor.prefix[-_TAIL:], []).append(_vendor)


def _gate(sign: str) -> re.Pattern[str]:
    """Return a pattern for the end of a prefix, followed by a long word as identifiers in code do not have. If the
    token's alphabet contains the separator, the prefix alone counts."""
    words = [prefix for _, prefix, alphabet, _ in TOKEN_SHAPES if alphabet == "word" and prefix.endswith(sign)]
    # Few of all signs follow one of these characters: the others need no look at each prefix.
    before = "".join(sorted({re.escape(word[-2]) for word in words}))
    prefixes = "|".join(f"(?<={re.escape(word)})" for word in words)
    return re.compile(rf"{sign}(?:(?=[A-Za-z0-9]{{12}})|(?<=[{before}]{sign})(?:{prefixes}))")


#: By the last character of a prefix.
GATES = {sign: _gate(sign) for sign in "_-"}


def find(text: str) -> Iterator[SecretSpan]:
    """Yield the tokens in `text`."""
    for begin, vendor in _prefixes(text):
        if START.match(text, begin):
            end = _end(vendor, text, begin + len(vendor.prefix))
            if end:
                yield SecretSpan(begin, end, begin, vendor.kind)


def _prefixes(text: str) -> Iterator[tuple[int, _Vendor]]:
    for gate in GATES.values():
        for match in gate.finditer(text):
            for vendor in _BY_TAIL.get(text[match.end() - _TAIL : match.end()], ()):
                begin = match.end() - len(vendor.prefix)
                if begin >= 0 and text.startswith(vendor.prefix, begin):
                    yield begin, vendor


def _end(vendor: _Vendor, text: str, begin: int) -> int:
    """Return the end of the token whose body starts at `begin`, or 0 if it is an ordinary word."""
    body = vendor.body.match(text, begin)
    return body.end() if body and len(body[0]) >= vendor.least and is_varied(body[0][:64]) else 0


def is_varied(body: str) -> bool:
    """Return whether a text is not an ordinary word: it contains letters and digits, or is long and of mixed case."""
    if DIGIT.search(body):
        return LETTER.search(body) is not None
    return len(body) >= 30 and body.lower() != body and body.upper() != body
