"""Colours of terminal output, from the escape sequences that set a colour or a weight.

timeline.display removes all sequences from a text. This module determines which parts of the rest are coloured.
"""

from __future__ import annotations

import colorsys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import NamedTuple

from django.utils.safestring import SafeString

from runs.pages.content.markup import sanitised
from timeline.display import ANSI, make_legible

#: Maximum changes of colour in a text; the text after them has no colours.
MAX_SPANS = 4000
#: The page's colours for the eight colours of a terminal; white is the usual colour of text.
_COLOURS = ("grey", "red", "green", "amber", "blue", "violet", "teal", "")
#: Code that starts an attribute → its name.
_ATTRIBUTES = {1: "bold", 2: "faint", 3: "italic", 4: "under", 9: "struck"}
#: Code that ends attributes → their names.
_ENDS = {22: {"bold", "faint"}, 23: {"italic"}, 24: {"under"}, 29: {"struck"}}
#: Upper limits of hues, from 0 to 1, and the page's colours for them.
_HUES = ((0.04, "red"), (0.19, "amber"), (0.45, "green"), (0.55, "teal"), (0.72, "blue"), (0.9, "violet"), (1.1, "red"))


class TextSpan(NamedTuple):
    """A part of a text in one style: the positions of its start and end, and its CSS classes."""

    start: int
    end: int
    classes: str


@dataclass(frozen=True, slots=True)
class _Style:
    colour: str = ""
    attributes: frozenset[str] = frozenset()
    #: Whether the background has a colour, or is swapped with the foreground: both are shown as marked text.
    has_background: bool = False

    @property
    def classes(self) -> str:
        names = ["on" if self.has_background else self.colour, *sorted(self.attributes)]
        return " ".join(f"tty-{name}" for name in names if name)


def colours_of(raw: str, displayed: str) -> tuple[TextSpan, ...]:
    """Return the coloured parts of `displayed`, which is the text that timeline.display made of the output `raw`.

    Empty if a secret was masked, because the positions of the parts would be wrong.
    """
    if "\x1b[" not in raw and "\x9b" not in raw:
        return ()
    raw = raw.replace("\r\n", "\n").replace("\r", "\n")
    pieces: list[str] = []
    spans: list[TextSpan] = []
    style, at, length = _Style(), 0, 0
    for sequence in ANSI.finditer(raw):
        pieces.append(make_legible(raw[at : sequence.start()]))
        spans += _span(style, length, length + len(pieces[-1]))
        length += len(pieces[-1])
        at, style = sequence.end(), _style_after(style, sequence[0])
        if length >= len(displayed) or len(spans) >= MAX_SPANS:
            break
    else:
        pieces.append(make_legible(raw[at:]))
        spans += _span(style, length, length + len(pieces[-1]))
    plain = "".join(pieces)
    shorter = min(len(plain), len(displayed))
    return tuple(spans) if plain[:shorter] == displayed[:shorter] else ()


def terminal_html(text: str, spans: Sequence[TextSpan]) -> SafeString:
    """Return `text` as HTML with its spans."""
    return sanitised("".join(_parts(text, spans)))


def _parts(text: str, spans: Sequence[TextSpan]) -> Iterator[str]:
    """Yield the escaped parts of a text, with a span around each coloured one."""
    at = 0
    for span in spans:
        yield escape(text[at : span.start], quote=False)
        yield f'<span class="{span.classes}">{escape(text[span.start : span.end], quote=False)}</span>'
        at = span.end
    yield escape(text[at:], quote=False)


def _span(style: _Style, start: int, end: int) -> list[TextSpan]:
    return [TextSpan(start, end, style.classes)] if end > start and style.classes else []


def _style_after(style: _Style, sequence: str) -> _Style:
    """Return the style after an escape sequence. Only sequences that end in "m" change it."""
    if not sequence.endswith("m"):
        return style
    parameters = sequence.lstrip("\x1b[\x9b")[:-1].replace(":", ";").split(";")
    codes = [int(code) if code.isdecimal() else 0 for code in parameters[:32]]
    while codes:
        code = codes.pop(0)
        if code in (38, 48):  # a 256-colour or 24-bit colour of the text, or of its background
            colour = _extended_colour(codes)
            style = replace(style, colour=colour) if code == 38 else replace(style, has_background=True)
        else:
            style = _apply(style, code)
    return style


def _apply(style: _Style, code: int) -> _Style:
    """Return the style after a code of SGR (Select Graphic Rendition, ECMA-48)."""
    if code == 0:
        return _Style()
    if code in _ATTRIBUTES:
        return replace(style, attributes=style.attributes | {_ATTRIBUTES[code]})
    if code in _ENDS:
        return replace(style, attributes=style.attributes - _ENDS[code])
    if 30 <= code <= 37 or 90 <= code <= 97:
        return replace(style, colour=_COLOURS[code % 10])
    if code == 39:
        return replace(style, colour="")
    if code == 7 or 40 <= code <= 47 or 100 <= code <= 107:
        return replace(style, has_background=True)
    return replace(style, has_background=False) if code in (27, 49) else style


def _extended_colour(codes: list[int]) -> str:
    """Remove a 256-colour or 24-bit colour from `codes`, and return the nearest colour of the page."""
    kind = codes.pop(0) if codes else 0
    if kind == 5 and codes:
        number = codes.pop(0)
        if number < 16:
            return _COLOURS[number % 8]
        level = number - 16
        steps = (level // 36 % 6, level // 6 % 6, level % 6) if number < 232 else (1, 1, 1)
        return _nearest(*(step / 5 for step in steps))
    if kind == 2 and len(codes) >= 3:
        channels = [min(codes.pop(0), 255) / 255 for _ in range(3)]
        return _nearest(*channels)
    return ""


def _nearest(red: float, green: float, blue: float) -> str:
    """Return the nearest colour of the page; empty for a grey. The channels are from 0 to 1."""
    hue, saturation, _ = colorsys.rgb_to_hsv(red, green, blue)
    return "" if saturation < 0.25 else next(name for limit, name in _HUES if hue <= limit)
