"""Redaction at the door: secrets, NUL and lone surrogates leave a text before it is stored or sent. Pure.
May import: the standard library, pydantic's JSON type, secret_shapes, secret_names."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias
from urllib.parse import quote, quote_plus

from pydantic import JsonValue

from timeline import secret_shapes
from timeline.secret_names import Span, kind_of_member

JSON: TypeAlias = JsonValue

NUL = "nul"
SURROGATE = "surrogate"
REDACTED = "redacted"
NOTHING: frozenset[str] = frozenset()

MIN_SECRET = 6  # shorter ones would tear holes into ordinary words
HOLD = 256
MAX_HELD = 32_768
LOOK_BACK = 16  # as far back as a shape looks to see whether a token starts there

# A mark in place of a secret may make its neighbour visible as one; more than two rounds are hardly needed.
_ROUNDS = 4
_MARK = re.compile(r"\[REDACTED:[a-z0-9_]{1,32}:[0-9a-f]{8}\]")
# Kinds that come from a name in front: what a value's own shape says is better to know.
_VAGUE = frozenset({"password", "token", "key", "bearer", "authorization"})
_SURROGATES = re.compile("[\ud800-\udfff]")
# A name as code writes it: no shape of a secret is that short and all in lower case.
_PLAIN_KEY = re.compile(r"[a-z_]{1,16}", re.ASCII)


def mark(kind: str, original: str) -> str:
    """What stands where a secret stood: equal secrets get equal marks, so that they can be told apart."""
    digest = hashlib.sha256(original.encode(errors="surrogatepass")).hexdigest()
    return f"[REDACTED:{kind}:{digest[:8]}]"


class Redactor:
    """Immutable once built, so threads may share it. With `shapes` off only NUL and lone surrogates are replaced."""

    def __init__(self, secrets: Iterable[str] = (), *, shapes: bool = True) -> None:
        self._shapes = shapes
        self._plain: dict[str, str] = {}
        for secret in secrets:
            if len(secret) >= MIN_SECRET:
                self._plain |= dict.fromkeys(_spellings(secret), secret)
        longest_first = sorted(self._plain, key=len, reverse=True)
        self._registered = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self.longest = len(longest_first[0]) if longest_first else 0

    def clean_text(self, text: str, before: str = "", after: str = "") -> tuple[str, frozenset[str]]:
        """The text as it may be stored, and which of `nul`, `surrogate`, `redacted` happened to it.

        What stands before and after it is looked at, not given back."""
        text, found = _legible(text)
        for _ in range(_ROUNDS if self._shapes else 0):
            spans = self.spans(text, before, after)
            if not spans:
                break
            text, found = self._replace(text, spans), found | {REDACTED}
        return text, found

    def clean(self, value: JSON) -> tuple[JSON, frozenset[str]]:
        """Every string of a JSON value, keys too, cleaned; the same object when there was nothing to do."""
        fixed: dict[str, str] = {}
        found = NOTHING
        todo: list[JSON] = [value]
        while todo:  # no recursion: depth is the sender's choice
            item = todo.pop()
            if isinstance(item, str):
                found |= self._note(fixed, item)
            elif isinstance(item, list):
                todo.extend(item)
            elif isinstance(item, dict):
                for key, member in item.items():
                    if not (self._registered is None and _PLAIN_KEY.fullmatch(key)):
                        found |= self._note(fixed, key)
                    if isinstance(member, str):
                        found |= self._note(fixed, member, key)
                    elif isinstance(member, list | dict):
                        todo.append(member)
        return (_rebuilt(value, fixed), found) if found else (value, NOTHING)

    def spans(self, text: str, before: str = "", after: str = "") -> list[Span]:
        """The secrets of a text in order, overlapping ones joined, marks of an earlier round left out."""
        whole = before + text + after
        marks = [m.span() for m in _MARK.finditer(whole)] if "[REDACTED:" in whole else []
        if marks:  # NUL is part of no name and no token, and every position stays
            whole = _MARK.sub(lambda m: "\0" * len(m[0]), whole)
        found = secret_shapes.find(whole)
        if self._registered:
            found += [Span(*m.span(), m.start(), "secret") for m in self._registered.finditer(whole)]
        if not found:
            return found
        past, size = len(before), len(text)
        return [
            Span(max(span.begin - past, 0), min(span.end - past, size), span.context - past, span.kind)
            for span in _without(_joined(sorted(found)), marks)
            if past < span.end and span.begin < past + size
        ]

    def _note(self, fixed: dict[str, str], text: str, name: str = "") -> frozenset[str]:
        """Put the cleaned form of a string into `fixed` if it differs."""
        cleaned, found = self.clean_text(text)
        if name and self._shapes and REDACTED not in found and "[REDACTED:" not in text:
            cleaned, found = self._clean_member(name, cleaned, found)
        if found:
            fixed[text] = cleaned
        return found

    def _clean_member(self, name: str, text: str, found: frozenset[str]) -> tuple[str, frozenset[str]]:
        """A string that is no secret by itself may be one by the key it stands under."""
        kind = kind_of_member(name, text)
        if kind:
            return mark(kind, text), found | {REDACTED}
        if name.lower().endswith("authorization"):
            cleaned, more = self.clean_text(text, f"{name}: ")
            return cleaned, found | more
        return text, found

    def _replace(self, text: str, spans: list[Span]) -> str:
        parts: list[str] = []
        done = 0
        for span in spans:
            original = text[span.begin : span.end]
            parts += text[done : span.begin], mark(span.kind, self._plain.get(original, original))
            done = span.end
        return "".join([*parts, text[done:]])


class Stream:
    """Cleans a text that comes in pieces: what could be the start of a secret waits until its end is seen.

    One per streamed text, not shared between threads. It holds back 256 characters, or as many as the longest
    registered secret has, or a secret that has no end yet, up to MAX_HELD."""

    def __init__(self, redactor: Redactor | None = None) -> None:
        self._redactor = redactor or DEFAULT
        self._hold = max(HOLD, self._redactor.longest)
        self._given = ""  # the end of what has left, as it came: context for what follows
        self._held = ""
        self.found: frozenset[str] = NOTHING

    def feed(self, text: str) -> str:
        """Take the next piece; give what is now certain to be clean."""
        self._held += text
        cut = len(self._held) - self._hold
        if cut <= 0:
            return ""
        if len(self._held) <= self._hold + MAX_HELD:
            for span in reversed(self._redactor.spans(self._held, self._given)):
                if span.context < cut < span.end:
                    cut = max(span.context, 0)
        return self._release(cut)

    def flush(self) -> str:
        """The rest, at the end of the text."""
        rest = self._release(len(self._held))
        self._given = ""
        return rest

    def _release(self, count: int) -> str:
        raw, self._held = self._held[:count], self._held[count:]
        cleaned, found = self._redactor.clean_text(raw, self._given, self._held)
        self._given = (self._given + raw)[-LOOK_BACK:]
        self.found |= found
        return cleaned


def _legible(text: str) -> tuple[str, frozenset[str]]:
    """Neither Postgres nor UTF-8 can hold NUL and lone surrogates."""
    found = NOTHING
    if "\0" in text:
        text, found = text.replace("\0", "\ufffd"), frozenset({NUL})
    if text.isascii():
        return text, found
    try:
        text.encode()  # much quicker than a search
    except UnicodeEncodeError:
        return _SURROGATES.sub("\ufffd", text), found | {SURROGATE}
    return text, found


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


def _joined(spans: list[Span]) -> Iterator[Span]:
    """Sorted spans with overlapping ones made one: nothing of either may show."""
    last = spans[0]
    for span in spans[1:]:
        if span.begin < last.end:
            kind = span.kind if last.kind in _VAGUE else last.kind
            last = Span(last.begin, max(last.end, span.end), min(last.context, span.context), kind)
        else:
            yield last
            last = span
    yield last


def _without(spans: Iterator[Span], marks: list[tuple[int, int]]) -> Iterator[Span]:
    """Cut the marks of an earlier cleaning out of the spans; both are in order."""
    first = 0
    for span in spans:
        while first < len(marks) and marks[first][1] <= span.begin:
            first += 1
        begin, at = span.begin, first
        while at < len(marks) and marks[at][0] < span.end:
            if begin < marks[at][0]:
                yield span._replace(begin=begin, end=marks[at][0])
            begin, at = marks[at][1], at + 1
        if begin < span.end:
            yield span._replace(begin=begin)


def _rebuilt(value: JSON, fixed: dict[str, str]) -> JSON:
    """A copy of `value` with the strings in `fixed` replaced; the original stays as it was."""
    root: list[JSON] = [value]
    todo: list[tuple[Any, Any]] = [(root, 0)]  # a list and an index, or a dict and a key
    while todo:
        place, key = todo.pop()
        item: JSON = place[key]
        if isinstance(item, str):
            place[key] = fixed.get(item, item)
        elif isinstance(item, list):
            place[key] = items = list(item)
            todo.extend((items, index) for index in range(len(items)))
        elif isinstance(item, dict):
            place[key] = members = _rekeyed(item, fixed)
            todo.extend((members, name) for name in members)
    return root[0]


def _rekeyed(item: dict[str, JSON], fixed: dict[str, str]) -> dict[str, JSON]:
    """Keys that become equal by cleaning are told apart by a number, so that no member is lost."""
    fresh: dict[str, JSON] = {}
    for key, member in item.items():
        name = base = fixed.get(key, key)
        count = 1
        while name in fresh or (name != key and name in item):
            count += 1
            name = f"{base}~{count}"
        fresh[name] = member
    return fresh


DEFAULT = Redactor()
# Replaces only what no column can hold: for what the model said, which is never altered otherwise.
BARE = Redactor(shapes=False)
