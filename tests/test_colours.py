"""Every pair of text and background colours in the stylesheet has the contrast of WCAG AA, in the light and dark
scheme.
"""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

CSS = Path(__file__).resolve().parent.parent / "static/css/tokens.css"
CONTENT = CSS.with_name("content.css")
AA = 4.5
#: The share of the status colour in the background of its badge; see .status.
TINT = 0.11

Colour = tuple[float, float, float]
TOKENS = {
    name: (light, dark)
    for name, light, dark in re.findall(r"--([\w-]+): light-dark\(#(\w{6}), #(\w{6})\);", CSS.read_text())
}
GROUNDS = ["page", "raised", "sunken", "hover"]
WORDS = ["text", "text-2", "text-3", "accent"]
STATUSES = ["grey", "blue", "violet", "amber", "teal", "green", "red", "orange"]


def colour(name: str, scheme: int) -> Colour:
    value = TOKENS[name][scheme]
    red, green, blue = (int(value[at : at + 2], 16) / 255 for at in (0, 2, 4))
    return red, green, blue


def luminance(colour: Colour) -> float:
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: Colour, other: Colour) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def tinted(colour: Colour, ground: Colour) -> Colour:
    red, green, blue = (part * TINT + under * (1 - TINT) for part, under in zip(colour, ground, strict=True))
    return red, green, blue


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_has_enough_contrast(scheme: int) -> None:
    for word, ground in product(WORDS, GROUNDS):
        assert contrast(colour(word, scheme), colour(ground, scheme)) >= AA, (word, ground)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_statuses_have_enough_contrast(scheme: int) -> None:
    for status, ground in product(STATUSES, ["page", "raised", "hover"]):
        ink = colour(status, scheme)
        assert contrast(ink, tinted(ink, colour(ground, scheme))) >= AA, (status, ground)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_code_and_terminal_output_have_enough_contrast(scheme: int) -> None:
    """Every colour of content.css on the background of a payload and of a diff line."""
    ground = colour("sunken", scheme)
    names = set(re.findall(r"^\.(?:hl|tty)-\w+ \{[^}]*?\bcolor: var\(--([\w-]+)\)", CONTENT.read_text(), re.MULTILINE))
    assert len(names) > 6
    for name in names:
        assert contrast(colour(name, scheme), ground) >= AA, name
    for sign in ("red", "green"):
        assert contrast(colour(sign, scheme), tinted(colour(sign, scheme), ground)) >= AA
        assert contrast(colour("text", scheme), tinted(colour(sign, scheme), ground)) >= AA


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_buttons_and_marks_have_enough_contrast(scheme: int) -> None:
    assert contrast((1, 1, 1), colour("accent-fill", scheme)) >= AA
    assert contrast(colour("text", scheme), colour("mark", scheme)) >= AA
    assert contrast(colour("text-3", scheme), colour("mark", scheme)) >= AA
