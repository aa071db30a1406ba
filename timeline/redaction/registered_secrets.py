"""Secrets that the deployment names: found in every spelling they travel in."""

from __future__ import annotations

import base64
import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus

from timeline.redaction.secret_names import SecretSpan

MIN_SECRET = 6  # shorter ones would tear holes into ordinary words


class Registered:
    """The registered secrets with all their spellings. Immutable once built."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        #: Spelling → the secret itself.
        self.spellings: dict[str, str] = {}
        for secret in secrets:
            if len(secret) >= MIN_SECRET:
                self.spellings |= dict.fromkeys(_spellings(secret), secret)
        self._sorted = sorted(self.spellings)
        self._pattern = re.compile(_branches(self.spellings, 2))
        self._heads = re.compile(_branches({text[:size] for text in self.spellings for size in (1, 2)}, 1))
        self.longest = max(map(len, self.spellings), default=0)

    def __bool__(self) -> bool:
        return bool(self.spellings)

    def plain(self, spelling: str) -> str:
        """The secret itself, whichever way it is spelt: equal secrets get equal marks."""
        return self.spellings.get(spelling, spelling)

    def find(self, text: str) -> Iterator[SecretSpan]:
        """Every registered secret in `text`, overlapping ones too: where one begins depends on no other."""
        match = self._pattern.search(text)
        while match:
            yield SecretSpan(*match.span(), match.start(), "secret")
            match = self._pattern.search(text, match.start() + 1)

    def unfinished(self, text: str) -> int:
        """Where the beginning of a secret stands that the end of the text cuts; the length if nowhere does."""
        match = self._heads.search(text, max(0, len(text) - self.longest + 1))
        while match and not self._begins(text[match.start() :]):
            match = self._heads.search(text, match.start() + 1)
        return match.start() if match else len(text)

    def _begins(self, head: str) -> bool:
        at = bisect_left(self._sorted, head)
        return at < len(self._sorted) and self._sorted[at].startswith(head)


def _branches(texts: Iterable[str], depth: int) -> str:
    """A pattern for any of the texts, the longest first, that looks at few of them for each character."""
    longest_first = sorted(texts, key=len, reverse=True)
    if not depth:
        return "|".join(map(re.escape, longest_first))
    tails: dict[str, list[str]] = {}
    for text in longest_first:
        tails.setdefault(text[:1], []).append(text[1:])
    return "|".join(f"{re.escape(first)}(?:{_branches(rest, depth - 1)})" for first, rest in tails.items())


def _spellings(secret: str) -> Iterator[str]:
    """The forms a registered secret travels in."""
    yield secret
    data = secret.encode(errors="surrogatepass")
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        whole = encode(data).decode()
        yield whole
        yield whole.rstrip("=")
        for shift in range(3):
            # Inside a longer encoded text (a header, a file) only the secret's inner characters are the same.
            shifted = encode(bytes(shift) + data).decode()
            inner = shifted[(8 * shift + 5) // 6 : (shift + len(data)) * 8 // 6]
            if len(inner) >= MIN_SECRET:
                yield inner
    for percent in (quote(secret, safe="", errors="replace"), quote_plus(secret, errors="replace")):
        yield percent
        yield re.sub("%[0-9A-F]{2}", lambda m: m[0].lower(), percent)
    for ascii_only in (True, False):
        escaped = json.dumps(secret, ensure_ascii=ascii_only)[1:-1]
        yield escaped
        yield escaped.replace("/", "\\/")
        yield json.dumps(escaped, ensure_ascii=ascii_only)[1:-1]
