"""Texts as people see them: legible, without secrets, cut to what a page has room for."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import cast

from timeline.preview import preview
from timeline.redaction.redact import DEFAULT as REDACTOR
from timeline.redaction.redact import JSON

#: A secret that begins where a text is cut is still known as one if its end is this near.
LOOKAHEAD = 32_768

#: Colours, cursor moves, and whole sequences that set titles, links or the clipboard. One that does not end says
#: nothing a terminal would show either, but what follows it might: it stays, with its escape character marked.
_ANSI = re.compile(r"(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,8}[@-~]|\x1b[\]PX^_][^\x07\x1b\n]{0,2048}(?:\x07|\x1b\\)")
#: What shows as nothing, or makes its neighbours show in another order; joiners and marks of one letter's direction
#: stay, because writing needs them.
_UNSEEN = "\u00ad\u180e\u200b\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
_ODD = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_UNSEEN}]")


@dataclass(frozen=True, slots=True)
class Clip:
    """A text as it is shown, and the size in bytes of the whole where that is more; 0 where it is not."""

    text: str = ""
    whole: int = 0

    def __bool__(self) -> bool:
        return bool(self.text)


def legible(text: str) -> str:
    """`text` without the codes of terminals, every unseen character marked by its name."""
    if not _ODD.search(text):
        return text
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _ODD.sub(_marked, _ANSI.sub("", text))


def clean(text: str) -> str:
    """All of `text`, legible and without secrets: in this order, or colours inside of a secret would hide it."""
    return REDACTOR.clean_text(legible(text))[0]


def clip(text: str, limit: int, *, size: int = 0, secrets: bool = False) -> Clip:
    """The first `limit` bytes of `text`, cleaned before they are cut. `size`: bytes of the whole, where `text` is only
    its beginning. With its `secrets` only for who may see them."""
    # More than this cannot matter, and a text may have megabytes.
    head = text[: limit + LOOKAHEAD]
    shown, cut = preview(legible(head) if secrets else clean(head), limit)
    if not cut and len(head) == len(text) and size <= len(text.encode(errors="replace")):
        return Clip(shown)
    return Clip(shown, max(size, len(text.encode(errors="replace"))))


def pretty(value: object, *, secrets: bool = False) -> str:
    """A JSON value for people: indented, and without secrets, which deep escapes would hide; text as it is, unless
    it is JSON itself. With its `secrets` only for who may see them."""
    if isinstance(value, str):
        if value[:1] not in ("{", "["):
            return value
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return str(value)
    try:
        value = value if secrets else REDACTOR.clean(cast("JSON", value))[0]
        return json.dumps(value, indent=2, ensure_ascii=False, default=str)
    except (ValueError, RecursionError):
        return "(nested too deeply to be shown)"


def lasting(seconds: float) -> str:
    """A span of time in the two units that matter, as static/js/time.js counts it on."""
    minutes, rest = divmod(max(int(seconds), 0), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def took(ms: float) -> str:
    """How long something took: exact where it was short."""
    if ms < 1000:
        return f"{ms:.0f} ms"
    return f"{ms / 1000:.1f} s" if ms < 60_000 else lasting(ms / 1000)


def _marked(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return f"\N{MATHEMATICAL LEFT ANGLE BRACKET}U+{code:04X}\N{MATHEMATICAL RIGHT ANGLE BRACKET}"
