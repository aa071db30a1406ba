"""Texts for display, without control characters, redacted and truncated; and previews of long texts.

The payload of an event contains a preview if a row contains the full text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import cast

import orjson

from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.redaction.redact import JSON

PREVIEW_BYTES = 2048

_SURROGATES = re.compile("[\ud800-\udfff]")


def preview(text: str, limit: int = PREVIEW_BYTES) -> tuple[str, bool]:
    """Return `text` truncated to at most `limit` UTF-8 bytes at a character boundary, and whether it was truncated."""
    if text.isascii():
        return (text, False) if len(text) <= limit else (text[:limit], True)
    head = text[:limit]  # a character has at least one byte
    try:
        data = head.encode()
    except UnicodeEncodeError:
        data = _SURROGATES.sub("\ufffd", head).encode()
    is_truncated = len(data) > limit or len(head) < len(text)
    head = data[:limit].decode(errors="ignore")  # only a truncated last character can be invalid
    return head, is_truncated


#: Characters read beyond the limit, so that a secret at the truncation point is recognized.
LOOKAHEAD = 32_768

#: ANSI escape sequences: colours, cursor movement, titles, links, clipboard. An unterminated sequence is kept, with its
#: escape character made visible, because text may follow it.
ANSI = re.compile(r"(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,8}[@-~]|\x1b[\]PX^_][^\x07\x1b\n]{0,2048}(?:\x07|\x1b\\)")
#: The start of an escape sequence.
_ESCAPE = re.compile("[\x1b\x9b]")
#: Maximum characters of an escape sequence, rounded up.
MAX_ESCAPE = 2_100
#: Invisible characters and bidirectional overrides. Joiners and marks of a single letter's direction are kept, because
#: some scripts need them.
_INVISIBLE = "\u00ad\u180e\u200b\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
_UNPRINTABLE = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_INVISIBLE}]")


#: Characters in a line, and lines in the box of a text, on a narrow screen (static/css/payloads.css).
_BOX_WIDTH, _BOX_LINES = 18, 20


@dataclass(frozen=True, slots=True)
class Clip:
    """A text for display. `whole` is the size of the full text in bytes if it is truncated, otherwise 0."""

    text: str = ""
    whole: int = 0

    def __bool__(self) -> bool:
        return bool(self.text)


def may_scroll(text: str) -> bool:
    """Return whether the box of a text scrolls on a narrow screen, and must therefore be reachable by keyboard."""
    if len(text) > _BOX_WIDTH * _BOX_LINES:
        return True
    return sum(1 + len(line) // _BOX_WIDTH for line in text.splitlines()) > _BOX_LINES


def make_legible(text: str) -> str:
    """Return `text` without ANSI sequences, with a visible code for each invisible character."""
    if not _UNPRINTABLE.search(text):
        return text
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _UNPRINTABLE.sub(_visible_code, ANSI.sub("", text))


def make_pieces_legible(pieces: Iterable[str]) -> Iterator[str]:
    """Yield the result of `make_legible` for the joined pieces. The yielded pieces may have other lengths."""
    held = ""
    for piece in pieces:
        text = held + piece
        end = _settled_length(text)
        held = text[end:]
        yield make_legible(text[:end])
    yield make_legible(held)


def _settled_length(text: str) -> int:
    """Return the length of the part of a text that no following text can change: no sequence is open at its end."""
    last = 0
    for match in ANSI.finditer(text):
        last = match.end()
    escape = _ESCAPE.search(text, max(last, len(text) - MAX_ESCAPE))
    end = escape.start() if escape else len(text)
    return end - text.endswith("\r", 0, end)


def clean(text: str) -> str:
    """Return `text` legible and redacted. Escape sequences are removed first: one inside a secret would hide it."""
    return REDACTOR.clean_text(make_legible(text))[0]


def clip(text: str, limit: int, *, size: int = 0, secrets: bool = False) -> Clip:
    """Return the first `limit` bytes of `text`, redacted before it is truncated.

    `size` is the number of bytes of the full text if `text` is only its beginning. With `secrets`, the text is not
    redacted: the caller checks the permission.
    """
    # A text may be several megabytes long.
    head = text[: limit + LOOKAHEAD]
    text_preview, is_cut = preview(make_legible(head) if secrets else clean(head), limit)
    if not is_cut and len(head) == len(text) and size <= len(text.encode(errors="replace")):
        return Clip(text_preview)
    return Clip(text_preview, max(size, len(text.encode(errors="replace"))))


def format_member(name: str, value: object) -> str:
    """Return the value of a JSON member on one line. Redaction may depend on the name, such as "password"."""
    try:
        cleaned = cast("dict[str, JSON]", REDACTOR.clean(cast("JSON", {name: value}))[0])
        [cleaned_value] = cleaned.values()
        return json.dumps(cleaned_value, ensure_ascii=False, default=str)
    except (ValueError, RecursionError):
        return "(not readable)"


def format_json(value: object, *, secrets: bool = False) -> str:
    """Return a JSON value indented and redacted; a text unchanged, unless it contains JSON itself.

    With `secrets`, the value is not redacted: the caller checks the permission.
    """
    if isinstance(value, str):
        if value[:1] not in ("{", "["):
            return value
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return str(value)
    try:
        return _indented(value if secrets else REDACTOR.clean(cast("JSON", value))[0])
    except (ValueError, RecursionError):
        return "(too deeply nested to display)"


def _indented(value: object) -> str:
    """Return a value as indented JSON. The library's own encoder indents in Python, about thirty times as slowly."""
    try:
        return orjson.dumps(value, default=str, option=orjson.OPT_INDENT_2).decode()
    except orjson.JSONEncodeError:  # an unpaired surrogate, a number beyond 64 bits, or deep nesting
        return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def format_duration(seconds: float) -> str:
    """Return a duration in its two largest units, such as "3 min 05 s", in the format of static/js/time.js."""
    minutes, rest = divmod(max(int(seconds), 0), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
    hours = minutes // 60
    return f"{hours} h {minutes % 60:02} min" if hours < 24 else f"{hours // 24} d {hours % 24:02} h"


def format_ms(ms: float) -> str:
    """Return a duration in milliseconds, seconds or longer units, depending on its length."""
    if ms < 999.5:
        return f"{ms:.0f} ms"
    return f"{ms / 1000:.1f} s" if ms < 60_000 else format_duration(ms / 1000)


def format_elapsed(seconds: float) -> str:
    """Return a final duration. It is more precise than a counting one, which `format_duration` formats."""
    return format_ms(seconds * 1000)


def dollars(cost: Decimal | None) -> str:
    """Return a cost with two decimals, or four below $1; empty if it is unknown."""
    if cost is None:
        return ""
    return f"${cost:.2f}" if cost >= 1 or not cost else f"${cost:.4f}"


def total_cost(cost: Decimal | None, unpriced_calls: int) -> str:
    """Return a sum of costs, which is a lower bound if the cost of some calls is unknown; empty if none is known."""
    if not unpriced_calls or cost is None:
        return dollars(cost)
    return f"at least {dollars(cost)}, {calls_unpriced(unpriced_calls)}"


def calls_unpriced(count: int) -> str:
    """Return the number of calls whose cost is unknown."""
    return f"{count:,} call{'' if count == 1 else 's'} unpriced"


def _visible_code(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return f"\N{MATHEMATICAL LEFT ANGLE BRACKET}U+{code:04X}\N{MATHEMATICAL RIGHT ANGLE BRACKET}"
