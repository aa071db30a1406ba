"""Detection of secret values and token formats that projects and the site register, and operations on lists of spans.

Values are found in all their encodings. A format is a prefix and a number of characters of an alphabet. Formats are
simpler than regular expressions, so that a search takes linear time, and a stream knows how much to hold back.
"""

from __future__ import annotations

import base64
import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from string import ascii_letters, digits
from typing import NamedTuple
from urllib.parse import quote, quote_plus

from ahocorasick_rs import AhoCorasick

from agentops.base.redaction.secret_names import SecretSpan
from agentops.base.redaction.vendor_tokens import START, branches

#: Minimum length of a secret: shorter values occur in ordinary words.
MIN_SECRET = 6
SECRET = "secret"  # noqa: S105 (a kind of secret)
#: Levels of JSON texts within JSON texts: five, and one more because batches are searched as JSON.
_JSON_DEPTH = 6
_SURROGATES = re.compile("[\ud800-\udfff]")


class SecretSet:
    """A set of secret values and their encodings. Immutable."""

    def __init__(self, secrets: Iterable[str] | Mapping[str, str] = ()) -> None:
        """Prepare the search. `secrets`: values, or a mapping of values to kinds."""
        kinds = secrets if isinstance(secrets, Mapping) else dict.fromkeys(secrets, SECRET)
        self._kinds = {secret: kind for secret, kind in kinds.items() if len(secret) >= MIN_SECRET}
        #: The secrets by their encodings ("spellings").
        self.spellings: dict[str, str] = {}
        for secret in self._kinds:
            self.spellings |= dict.fromkeys(_spellings(secret), secret)
        # A secret itself takes precedence over an encoding of another secret.
        self.spellings |= {secret: secret for secret in self._kinds}
        self._sorted = sorted(self.spellings)
        # Storable text has no surrogates, and they cannot be searched for.
        self._search = AhoCorasick([each for each in self._sorted if not _SURROGATES.search(each)])
        self._heads = re.compile(branches({text[:size] for text in self.spellings for size in (1, 2)}))
        self.longest = max(map(len, self.spellings), default=0)

    def __bool__(self) -> bool:
        return bool(self.spellings)

    def plain(self, spelling: str) -> str:
        """Return the secret with this encoding, so that all encodings of a secret get the same placeholder."""
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
        """Return the position of a secret that the end of the text truncates; the text's length if there is none."""
        match = self._heads.search(text, max(0, len(text) - self.longest + 1))
        while match and not self._begins(text[match.start() :]):
            match = self._heads.search(text, match.start() + 1)
        return match.start() if match else len(text)

    def _begins(self, head: str) -> bool:
        """Return whether an encoding begins with `head`."""
        at = bisect_left(self._sorted, head)
        return at < len(self._sorted) and self._sorted[at].startswith(head)


def _spellings(secret: str) -> Iterator[str]:
    """Yield the encodings of a secret: plain, base64, percent-encoded and JSON-escaped."""
    yield secret
    data = secret.encode(errors="surrogatepass")
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        whole = encode(data).decode()
        yield whole
        yield whole.rstrip("=")
        for shift in range(3):
            # Within a longer base64 text, only the inner characters of the secret's encoding are the same.
            shifted = encode(bytes(shift) + data).decode()
            inner = shifted[(8 * shift + 5) // 6 : (shift + len(data)) * 8 // 6]
            if len(inner) >= MIN_SECRET:
                yield inner
    for percent in (quote(secret, safe="", errors="replace"), quote_plus(secret, errors="replace")):
        yield percent
        yield re.sub("%[0-9A-F]{2}", lambda m: m[0].lower(), percent)
    yield from _json_spellings(secret)


def _json_spellings(secret: str) -> Iterator[str]:
    """Yield the forms of a secret in JSON, in JSON within JSON and so on, as tool calls are logged and sent."""
    level = {secret}
    for _ in range(_JSON_DEPTH):
        # A serializer may or may not escape letters that are not ASCII.
        level = {json.dumps(inner, ensure_ascii=ascii_only)[1:-1] for inner in level for ascii_only in (True, False)}
        yield from level
        yield from (inner.replace("/", "\\/") for inner in level)


#: The alphabets of registered formats: name → characters.
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
    """A token format: `prefix`, then `least` to `most` characters of the alphabet, then another character."""

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
            if not run_begin <= body <= run_end:  # a run with many prefixes is only read once
                run_begin, run_end = body, run.match(text, body).end()  # type: ignore[union-attr]
            if self.least <= run_end - body <= self.most and self._starts(text, at):
                yield SecretSpan(at, run_end, at, self.kind)
                at = text.find(self.prefix, max(run_end, body))
            else:
                at = text.find(self.prefix, at + 1)

    def unfinished(self, text: str) -> int:
        """Return the position of a token or an incomplete prefix at the end of the text; else the text's length."""
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
        """Return whether a token can start at this position: not in the middle of a word."""
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
        """Return the position from which further text could complete or change a token; else the text's length."""
        return min((each.unfinished(text) for each in self._formats), default=len(text))


#: Kinds that follow from a name before the value. A kind that follows from the value itself is more specific.
_VAGUE = frozenset({"password", "token", "key", "bearer", "authorization"})
_NOT_LINE = re.compile(r"[^\n]")


def blank(text: str, ranges: list[tuple[int, int]]) -> str:
    """Return the text with each character in the ranges, except line breaks, replaced by NUL. `ranges` is sorted."""
    if not ranges:
        return text
    parts: list[str] = []
    position = 0
    for begin, end in ranges:
        parts += text[position:begin], _NOT_LINE.sub("\0", text[begin:end])
        position = end
    return "".join([*parts, text[position:]])


def join(spans: list[SecretSpan]) -> Iterator[SecretSpan]:
    """Yield spans with overlapping ones merged. `spans` is sorted and not empty."""
    last = spans[0]
    for span in spans[1:]:
        if span.begin < last.end:
            kind = span.kind if _is_vaguer(last.kind, span.kind) else last.kind
            last = SecretSpan(last.begin, max(last.end, span.end), min(last.context, span.context), kind)
        else:
            yield last
            last = span
    yield last


def _is_vaguer(kind: str, other: str) -> bool:
    """Return whether `other` is more specific than `kind`. A kind that a project names is more so than "secret"."""
    return kind in _VAGUE or (kind == SECRET and other not in _VAGUE)


def exclude(spans: Iterator[SecretSpan], ranges: list[tuple[int, int]]) -> Iterator[SecretSpan]:
    """Yield the parts of the spans outside the ranges, such as existing placeholders. Both are sorted."""
    first = 0
    for span in spans:
        while first < len(ranges) and ranges[first][1] <= span.begin:
            first += 1
        begin, at = span.begin, first
        while at < len(ranges) and ranges[at][0] < span.end:
            if begin < ranges[at][0]:
                yield span._replace(begin=begin, end=ranges[at][0])
            begin, at = ranges[at][1], at + 1
        if begin < span.end:
            yield span._replace(begin=begin)
