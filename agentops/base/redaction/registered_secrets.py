"""Detection of known secret values in all their encodings."""

from __future__ import annotations

import base64
import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote, quote_plus

from ahocorasick_rs import AhoCorasick

from agentops.base.redaction.secret_names import SecretSpan

MIN_SECRET = 6  # shorter values occur in ordinary words
SECRET = "secret"  # noqa: S105 (a kind of secret)
# JSON nested five times. Batches are searched as JSON, which adds one level.
_JSON_DEPTH = 6
_SURROGATES = re.compile("[\ud800-\udfff]")


class SecretSet:
    """A set of secret values and their encodings. Immutable. A mapping gives the kind of each secret."""

    def __init__(self, secrets: Iterable[str] | Mapping[str, str] = ()) -> None:
        kinds = secrets if isinstance(secrets, Mapping) else dict.fromkeys(secrets, SECRET)
        self._kinds = {secret: kind for secret, kind in kinds.items() if len(secret) >= MIN_SECRET}
        #: The secrets by their encodings.
        self.spellings: dict[str, str] = {}
        for secret in self._kinds:
            self.spellings |= dict.fromkeys(_spellings(secret), secret)
        # A secret itself takes precedence over an encoding of another secret.
        self.spellings |= {secret: secret for secret in self._kinds}
        self._sorted = sorted(self.spellings)
        # Spellings with surrogates cannot be searched for, and never occur in storable text.
        self._search = AhoCorasick([each for each in self._sorted if not _SURROGATES.search(each)])
        self._heads = re.compile(_branches({text[:size] for text in self.spellings for size in (1, 2)}))
        self.longest = max(map(len, self.spellings), default=0)

    def __bool__(self) -> bool:
        return bool(self.spellings)

    def plain(self, spelling: str) -> str:
        """Return the secret of an encoding, so that all encodings of a secret get the same placeholder."""
        return self.spellings.get(spelling, spelling)

    def find(self, text: str) -> Iterator[SecretSpan]:
        """Yield all occurrences of secrets in `text`, including overlapping ones; only the longest at each position."""
        if not text.isascii():
            text = _SURROGATES.sub("?", text)
        ends: dict[int, int] = {}
        for _, begin, end in self._search.find_matches_as_indexes(text, overlapping=True):
            ends[begin] = max(end, ends.get(begin, 0))
        for begin, end in ends.items():
            yield SecretSpan(begin, end, begin, self._kinds[self.spellings[text[begin:end]]])

    def unfinished(self, text: str) -> int:
        """Return the position of a secret that the end of the text truncates, or the length of the text."""
        match = self._heads.search(text, max(0, len(text) - self.longest + 1))
        while match and not self._begins(text[match.start() :]):
            match = self._heads.search(text, match.start() + 1)
        return match.start() if match else len(text)

    def _begins(self, head: str) -> bool:
        at = bisect_left(self._sorted, head)
        return at < len(self._sorted) and self._sorted[at].startswith(head)


def _branches(texts: Iterable[str]) -> str:
    """Return a regular expression for any of the texts, longest first, grouped by their first characters."""
    tails: dict[str, list[str]] = {}
    for text in sorted(texts, key=len, reverse=True):
        tails.setdefault(text[:1], []).append(re.escape(text[1:]))
    return "|".join(f"{re.escape(first)}(?:{'|'.join(rest)})" for first, rest in tails.items())


def _spellings(secret: str) -> Iterator[str]:
    """Yield the encodings of a secret: plain, base64, percent-encoded and JSON-escaped."""
    yield secret
    data = secret.encode(errors="surrogatepass")
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        whole = encode(data).decode()
        yield whole
        yield whole.rstrip("=")
        for shift in range(3):
            # Inside a longer base64 text only the inner characters of the secret stay the same.
            shifted = encode(bytes(shift) + data).decode()
            inner = shifted[(8 * shift + 5) // 6 : (shift + len(data)) * 8 // 6]
            if len(inner) >= MIN_SECRET:
                yield inner
    for percent in (quote(secret, safe="", errors="replace"), quote_plus(secret, errors="replace")):
        yield percent
        yield re.sub("%[0-9A-F]{2}", lambda m: m[0].lower(), percent)
    yield from _json_spellings(secret)


def _json_spellings(secret: str) -> Iterator[str]:
    """Yield a secret as it appears in JSON, in JSON inside JSON, and so on: tool calls are logged and sent that way."""
    level = {secret}
    for _ in range(_JSON_DEPTH):
        # A serializer may or may not escape non-ASCII letters; the next one finds none left to escape.
        level = {json.dumps(inner, ensure_ascii=ascii_only)[1:-1] for inner in level for ascii_only in (True, False)}
        yield from level
        yield from (inner.replace("/", "\\/") for inner in level)
