"""Redaction at the door: secrets, NUL and lone surrogates leave a text before it is stored or sent."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from timeline.redaction import secret_shapes
from timeline.redaction.registered_secrets import Registered
from timeline.redaction.secret_names import SecretSpan, kind_of_member, lowered

if TYPE_CHECKING:  # for a type alone pydantic would cost every command a tenth of a second
    from pydantic import JsonValue

JSON: TypeAlias = "JsonValue"

NUL = "nul"
SURROGATE = "surrogate"
REDACTED = "redacted"
NOTHING: frozenset[str] = frozenset()

MAX_HELD = 32_768
CONTEXT = 512  # more than any detector looks back for a name, a command or a scheme
_EAGER = 256  # held text up to this length is searched at each piece, longer text only as it grows

# A mark in place of a secret may make its neighbour visible as one; more than two rounds are hardly needed.
_ROUNDS = 4
_MARK = re.compile(r"\[REDACTED:[a-z0-9_]{1,32}:[0-9a-f]{8}\]")
_MARK_HEAD = re.compile(r"\[REDACTED:[a-z0-9_]{0,32}:?[0-9a-f]{0,8}\Z")
_MARK_LENGTH = 52
# Kinds that come from a name in front: what a value's own shape says is better to know.
_VAGUE = frozenset({"password", "token", "key", "bearer", "authorization"})
_SURROGATES = re.compile("[\ud800-\udfff]")
# A name as code writes it: no shape of a secret is that short and all in lower case.
_PLAIN_KEY = re.compile(r"[a-z_]{1,16}", re.ASCII)
_NOT_LINE = re.compile(r"[^\n]")
_REST_OF_SECRET = re.compile(r"\A[^\s\"'<>,;]+")


def mark(kind: str, original: str) -> str:
    """What stands where a secret stood: equal secrets get equal marks, so that they can be told apart."""
    digest = hashlib.sha256(original.encode(errors="surrogatepass")).hexdigest()
    return f"[REDACTED:{kind}:{digest[:8]}]"


class Redactor:
    """Immutable once built, so threads may share it. With `shapes` off only NUL and lone surrogates are replaced."""

    def __init__(self, secrets: Iterable[str] = (), *, shapes: bool = True) -> None:
        self.shapes = shapes
        self._registered = Registered(secrets)
        self.longest = self._registered.longest

    def clean_text(self, text: str, before: str = "", after: str = "") -> tuple[str, frozenset[str]]:
        """The text as it may be stored, and which of `nul`, `surrogate`, `redacted` happened to it.

        What stands before and after it is looked at, not given back."""
        text, found = legible(text)
        if self.shapes and (spans := self.spans(text, before, after)):
            return self.replace(text, spans), found | {REDACTED}
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
                named = _named(item)
                for key, member in item.items():
                    if not (not self._registered and _PLAIN_KEY.fullmatch(key)):
                        found |= self._note(fixed, key)
                    if isinstance(member, str):
                        found |= self._note(fixed, member, named if key in ("value", "Value") else key)
                    elif isinstance(member, list | dict):
                        todo.append(member)
        return (_rebuilt(value, fixed), found) if found else (value, NOTHING)

    def spans(self, text: str, before: str = "", after: str = "") -> list[SecretSpan]:
        """The secrets of a text in order, overlapping ones joined, marks of an earlier cleaning left out."""
        found, _ = self.search(before + text + after)
        past, size = len(before), len(text)
        return [
            SecretSpan(max(span.begin - past, 0), min(span.end - past, size), span.context - past, span.kind)
            for span in found
            if past < span.end and span.begin < past + size
        ]

    def search(self, whole: str, past: int = 0) -> tuple[list[SecretSpan], list[str]]:
        """The secrets of a text in order, and what each round of the search looked at.

        What was found, and every mark, is NUL in the next round: it is part of no name and no token, and every
        position stays. What would reach over `past` is left out: what lies before was looked at in full already."""
        blanks = [m.span() for m in _MARK.finditer(whole)] if "[REDACTED:" in whole else []
        texts = [_blanked(whole, blanks)]
        spans: list[SecretSpan] = []
        for _ in range(_ROUNDS):
            found = secret_shapes.find(texts[-1])
            if self._registered:
                found += self._registered.find(texts[-1])
            found = sorted(span for span in found if not span.begin < past < span.end)
            found = list(_without(_joined(found), blanks)) if found else found
            if not found:
                break
            spans = sorted(spans + found)
            blanks = sorted(blanks + [(span.begin, span.end) for span in found])
            texts.append(_blanked(whole, blanks))
        return spans, texts

    def unfinished(self, text: str) -> int:
        """Where something begins that more text could make a secret, or another one; the length if nowhere does."""
        begin = secret_shapes.unfinished(text, lowered(text))
        if self._registered:
            begin = min(begin, self._registered.unfinished(text))
        at = text.rfind("[", max(0, len(text) - _MARK_LENGTH))
        if at >= 0 and ("[REDACTED:".startswith(text[at:]) or _MARK_HEAD.match(text, at)):
            begin = min(begin, at)
        return begin

    def _note(self, fixed: dict[str, str], text: str, name: str = "") -> frozenset[str]:
        """Put the cleaned form of a string into `fixed` if it differs."""
        cleaned, found = self.clean_text(text)
        if name and self.shapes and REDACTED not in found and "[REDACTED:" not in text:
            cleaned, found = self._clean_member(name, cleaned, found)
        if found:
            fixed[text] = cleaned
        return found

    def _clean_member(self, name: str, text: str, found: frozenset[str]) -> tuple[str, frozenset[str]]:
        """A string that is no secret by itself may be one by the key it stands under."""
        kind = kind_of_member(name, text)
        if kind:
            return mark(kind, text), found | {REDACTED}
        if name.lower().endswith(("authorization", "cookie")):
            cleaned, more = self.clean_text(text, f"{name}: ")
            return cleaned, found | more
        return text, found

    def replace(self, text: str, spans: list[SecretSpan]) -> str:
        """The text with a mark in place of each span."""
        parts: list[str] = []
        done = 0
        for span in spans:
            original = text[span.begin : span.end]
            parts += text[done : span.begin], mark(span.kind, self._registered.plain(original))
            done = span.end
        return "".join([*parts, text[done:]])


class Stream:
    """Cleans a text that comes in pieces: what could still become a secret waits until that is decided.

    One per streamed text, not shared between threads. Everything else leaves at once. What leaves, joined, is
    `clean_text` of the whole text, unless a possible secret is longer than MAX_HELD: then it leaves by itself."""

    def __init__(self, redactor: Redactor | None = None) -> None:
        self._redactor = redactor or DEFAULT
        self._most = MAX_HELD + self._redactor.longest
        self._given = ""  # the end of what has left, as it came: context for what follows
        self.held = ""  # what has not left yet
        self._enough = 0  # the search waits until so much is held
        self._overlong = False  # what was held too long was a secret: the rest of it is to come
        self.found: frozenset[str] = NOTHING

    def feed(self, text: str) -> str:
        """Take the next piece; give what is now certain to be clean."""
        text, found = legible(text)
        self.found |= found
        self.held += self._swallowed(text) if self._overlong else text
        if len(self.held) < self._enough:
            return ""
        return self._release(ended=False)

    def flush(self) -> str:
        """The rest, at the end of the text."""
        rest = self._release(ended=True)
        self._given, self._enough, self._overlong = "", 0, False
        return rest

    def _release(self, *, ended: bool) -> str:
        if not self._redactor.shapes:
            rest, self.held = self.held, ""
            return rest
        whole, past = self._given + self.held, len(self._given)
        spans, texts = self._redactor.search(whole, past)
        cut = len(whole)
        if not ended and len(self.held) <= self._most:
            cut = max(_settled(self._redactor, whole, spans, texts), past)
        elif not ended:
            self._overlong = bool(spans) and spans[-1].end == cut
        leaving = [
            span._replace(begin=span.begin - past, end=span.end - past) for span in spans if past <= span.begin < cut
        ]
        if leaving:
            self.found |= {REDACTED}
        cleaned = self._redactor.replace(whole[past:cut], leaving)
        self._given, self.held = _context(whole, cut, spans), whole[cut:]
        waiting = len(self.held)
        self._enough = min(waiting + 1 + max(waiting - _EAGER, 0) // 8, self._most + 1)  # so that time stays linear
        return cleaned

    def _swallowed(self, text: str) -> str:
        rest = _REST_OF_SECRET.sub("", text, count=1)
        self._overlong = not rest
        return rest


def _settled(redactor: Redactor, whole: str, spans: list[SecretSpan], texts: list[str]) -> int:
    """How much of a text nothing that follows it can change."""
    cut = _before(spans, min(map(redactor.unfinished, texts)))
    for _ in range(_ROUNDS if cut < len(whole) else 0):
        # What follows may turn out to be a secret: then a token in front of it ends there.
        earlier = _before(redactor.search(whole[:cut])[0], cut)
        if earlier == cut:
            break
        cut = _before(spans, earlier)
    return cut


def _before(spans: list[SecretSpan], cut: int) -> int:
    for span in reversed(spans):
        if span.begin < cut <= span.end:
            cut = span.begin
    return cut


def _context(whole: str, cut: int, spans: list[SecretSpan]) -> str:
    """The end of what has left; it begins in no secret, or that would no longer be known as one."""
    begin = max(cut - CONTEXT, 0)
    for span in spans:
        if span.begin < begin < span.end:
            begin = max(span.begin, cut - MAX_HELD)
    return whole[begin:cut]


def legible(text: str) -> tuple[str, frozenset[str]]:
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


def _blanked(text: str, places: list[tuple[int, int]]) -> str:
    """The text with NUL at the places, which are in order; lines stay lines."""
    if not places:
        return text
    parts: list[str] = []
    done = 0
    for begin, end in places:
        parts += text[done:begin], _NOT_LINE.sub("\0", text[begin:end])
        done = end
    return "".join([*parts, text[done:]])


def _joined(spans: list[SecretSpan]) -> Iterator[SecretSpan]:
    """Sorted spans with overlapping ones made one: nothing of either may show."""
    last = spans[0]
    for span in spans[1:]:
        if span.begin < last.end:
            kind = span.kind if last.kind in _VAGUE else last.kind
            last = SecretSpan(last.begin, max(last.end, span.end), min(last.context, span.context), kind)
        else:
            yield last
            last = span
    yield last


def _without(spans: Iterator[SecretSpan], marks: list[tuple[int, int]]) -> Iterator[SecretSpan]:
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


def _named(item: dict[str, JSON]) -> str:
    """What a member called "value" is the value of: `{"name": "password", "value": "…"}`."""
    for key in ("name", "key", "Name", "Key"):
        if isinstance(name := item.get(key), str):
            return name
    return "value"


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
