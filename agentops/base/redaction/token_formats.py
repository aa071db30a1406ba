"""Detection of tokens in formats defined by a project: a prefix, and a number of characters of an alphabet.

The formats are deliberately less powerful than regular expressions: the search takes linear time for any user input,
and a stream can determine how much text to hold back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from string import ascii_letters, digits
from typing import NamedTuple

from agentops.base.redaction.secret_names import SecretSpan
from agentops.base.redaction.vendor_tokens import START

#: Name of an alphabet → its characters.
ALPHABETS = {
    "digits": digits,
    "hex": digits + "abcdefABCDEF",
    "alnum": ascii_letters + digits,
    "word": ascii_letters + digits + "_-",
    "base64": ascii_letters + digits + "+/=_-",
}
_WORD = frozenset(ALPHABETS["word"])
_RUNS = {name: re.compile(f"[{re.escape(characters)}]*+") for name, characters in ALPHABETS.items()}


class TokenFormat(NamedTuple):
    """A token format: `prefix`, then exactly `least` to `most` characters of the alphabet."""

    kind: str
    prefix: str
    alphabet: str
    least: int
    most: int

    def find(self, text: str) -> Iterator[SecretSpan]:
        """Yield the tokens in `text`."""
        run = _RUNS[self.alphabet]
        run_begin = run_end = -1
        at = text.find(self.prefix)
        while at >= 0:
            body = at + len(self.prefix)
            if not run_begin <= body <= run_end:  # a run that holds many prefixes is read once
                run_begin, run_end = body, run.match(text, body).end()  # type: ignore[union-attr]
            if self.least <= run_end - body <= self.most and self._starts(text, at):
                yield SecretSpan(at, run_end, at, self.kind)
                at = text.find(self.prefix, max(run_end, body))
            else:
                at = text.find(self.prefix, at + 1)

    def unfinished(self, text: str) -> int:
        """Return the position of a token or an incomplete prefix at the end of the text, or the length of the text."""
        size, prefix = len(text), self.prefix
        # The body may have any length up to the maximum, and consists of the characters at the end of the text.
        window = max(0, size - self.most - len(prefix))
        run_begin = window + len(text[window:].rstrip(ALPHABETS[self.alphabet]))
        at = text.find(prefix, max(window, run_begin - len(prefix)))
        while at >= 0 and not self._starts(text, at):
            at = text.find(prefix, at + 1)
        if at >= 0:
            return at
        for length in range(min(len(prefix) - 1, size), 0, -1):
            if text.endswith(prefix[:length]) and self._starts(text, size - length):
                return size - length
        return size

    def _starts(self, text: str, at: int) -> bool:
        """Return whether a token can start here: not in the middle of a word."""
        return self.prefix[0] not in _WORD or START.match(text, at) is not None


class TokenFormats:
    """A set of formats. Immutable."""

    def __init__(self, formats: Iterable[TokenFormat] = ()) -> None:
        self._formats = tuple(formats)
        self.longest = max((len(each.prefix) + each.most for each in self._formats), default=0)

    def __bool__(self) -> bool:
        return bool(self._formats)

    def find(self, text: str) -> Iterator[SecretSpan]:
        """Yield the tokens of all formats, unsorted and possibly overlapping."""
        for each in self._formats:
            yield from each.find(text)

    def unfinished(self, text: str) -> int:
        """Return the position from which further text could complete or change a token, or the length of the text."""
        return min((each.unfinished(text) for each in self._formats), default=len(text))
