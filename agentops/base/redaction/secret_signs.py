"""Signs of secrets in JSON: the text with which every secret begins, or that precedes it. One search finds all.

The detectors search once for each family of tokens, which is only fast in short texts. A batch of events is long.
"""

from __future__ import annotations

from collections.abc import Iterator

from ahocorasick_rs import AhoCorasick, Implementation

from agentops.base.redaction import secret_names, secret_shapes, secret_statements, secret_urls
from agentops.base.redaction.secret_commands import AFTER_HEADER, FIRSTS, PROGRAMS
from agentops.base.redaction.secret_names import each
from agentops.base.redaction.vendor_tokens import PREFIXES, head_of

# In JSON, most kinds of white space begin with a backslash.
_AFTER_SCHEME = frozenset(" :+%\\")
_HEADERS = (
    *(("bearer", _AFTER_SCHEME), ("basic", _AFTER_SCHEME)),
    *(("authorization", AFTER_HEADER), ("cookie", AFTER_HEADER)),
)
_URL = "://"
#: Prefixes of tokens in JSON → the prefixes.
_PREFIXES = {prefix.replace("\\", "\\\\"): prefix for prefix in PREFIXES}
_MARKS = (*secret_shapes.MARKS, *_PREFIXES, _URL, *secret_urls.MARKS, *secret_statements.MARKS, *PROGRAMS)
_SEARCH = AhoCorasick(_MARKS, implementation=Implementation.DFA)


def signs(text: str, lower: str) -> Iterator[int]:
    """Yield positions of signs of secrets in JSON in ASCII, with "?" for other characters.

    If `secret_shapes.find` finds a secret in a string of the JSON value, at least one position is in that string, or in
    the name of its member. `lower` is the text in lower case. Batches do not use a detector whose sign is missing here.
    """
    marks = set[str]()
    for index, begin, end in _SEARCH.find_matches_as_indexes(text, overlapping=True):
        mark = _MARKS[index]
        marks.add(mark)
        if mark in secret_shapes.MARKS:
            is_sign = secret_shapes.MARKS[mark].match(text, end) is not None
        elif mark in _PREFIXES:
            is_sign = head_of(_PREFIXES[mark]).match(text, end) is not None
        else:
            is_sign = secret_urls.may_follow(text, mark, end) or secret_statements.may_follow(text, mark, end)
        if is_sign:
            yield begin
    if _URL in marks and "@" in text:
        yield from each(text, _URL)
    if not marks.isdisjoint(PROGRAMS):
        yield from _options(text)
    if "password" in text:
        yield from each(text, "login")
    yield from _headers(lower)
    yield from secret_names.signs(lower)
    yield from secret_statements.signs(lower)


def _options(text: str) -> Iterator[int]:
    """Yield the positions of command-line options that may take a secret."""
    for at in each(text, " -"):
        if text[at + 2 : at + 3] in FIRSTS:
            yield at


def _headers(lower: str) -> Iterator[int]:
    """Yield the positions of header names, and of schemes in headers."""
    for word, after in _HEADERS:
        for at in each(lower, word):
            if lower[at + len(word) : at + len(word) + 1] in after:
                yield at
