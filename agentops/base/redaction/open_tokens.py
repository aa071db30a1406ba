"""Tokens truncated by the end of a text, which a stream holds back."""

from __future__ import annotations

import re
from collections.abc import Iterable
from string import ascii_letters, digits

from agentops.base.redaction.vendor_tokens import PREFIXES, START, WIDE_PREFIXES

#: The prefixes of the other shapes.
_OTHERS = ("sk-", "aok_", "eyJ")
_WORD = ascii_letters + digits + "_-"
#: The characters of most tokens, the characters of `WIDE_PREFIXES` tokens, and the additional characters of the latter.
_NARROW, _WIDE = _WORD + ".", _WORD + r".+/=%\:~"
_SEPARATORS = frozenset(_WIDE) - frozenset(_NARROW)
_TERRAFORM = ".atlasv1."
_EDGE = START.pattern


def _branches(prefixes: Iterable[str]) -> str:
    """Return a pattern for any of the prefixes, grouped by their first characters, which makes the search faster."""
    tails: dict[str, list[str]] = {}
    for prefix in prefixes:
        tails.setdefault(prefix[0], []).append(prefix[1:])
    return "|".join(
        f"{re.escape(first)}(?:{'|'.join(map(re.escape, sorted(rest, reverse=True)))})" for first, rest in tails.items()
    )


_PREFIX = re.compile(rf"(?:{_EDGE})(?:{_branches([*PREFIXES, *_OTHERS])})", re.ASCII)
_WIDE_PREFIX = re.compile("|".join(map(re.escape, WIDE_PREFIXES)))
_TELEGRAM = re.compile(r"(?<=[0-9]:)A(?:A[A-Za-z0-9_-]*+)?\Z", re.ASCII)
_AZURE = re.compile(r"(?<=[0-9])Q(?:~[A-Za-z0-9_.~-]*+)?\Z", re.ASCII)
_BEFORE_TERRAFORM = re.compile(r"(?<=[A-Za-z0-9]{14})", re.ASCII)
_HEADS = frozenset(prefix[:length] for prefix in (*PREFIXES, *_OTHERS) for length in range(1, len(prefix)))
#: Last character → lengths of incomplete prefixes that end in it, longest first.
_LENGTHS = {
    end: sorted({len(head) for head in _HEADS if head[-1] == end}, reverse=True) for end in map(chr, range(128))
}


def unfinished(text: str) -> int:
    """Return the position of a token, or of an incomplete prefix, at the end of the text; otherwise its length."""
    first = size = len(text)
    run = len(text.rstrip(_NARROW))
    # All characters after the prefix can belong to the token.
    if run < size and (match := _PREFIX.search(text, run)):
        first = match.start()
    if text[run - 1 : run] in _SEPARATORS:
        first = min(first, _wide(text), size if text[run - 1] != ":" else _start(_TELEGRAM.match(text, run), size))
    if "." in text[run:]:
        first = min(first, _terraform(text, run))
    if "~" in text or text.endswith("Q"):
        first = min(first, _start(_AZURE.search(text, len(text.rstrip(_NARROW + "~"))), size))
    for length in _LENGTHS.get(text[-1:], ()):
        if length <= size and text[size - length :] in _HEADS and START.match(text, size - length):
            return min(first, size - length)
    return first


def _start(match: re.Match[str] | None, otherwise: int) -> int:
    return match.start() if match else otherwise


def _wide(text: str) -> int:
    run = len(text.rstrip(_WIDE))
    starts = (match.start() for match in _WIDE_PREFIX.finditer(text, run))
    return next((start for start in starts if START.match(text, start)), len(text))


def _terraform(text: str, run: int) -> int:
    """Return the position of the second-last or last full stop, if such a token can begin there."""
    last = text.rfind(".")
    begin = last - len(_TERRAFORM) + 1 if text.endswith(_TERRAFORM, run, last + 1) else last
    is_open = begin < last or _TERRAFORM.startswith(text[last:])
    return begin if is_open and _BEFORE_TERRAFORM.match(text, begin) else len(text)
