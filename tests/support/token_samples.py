"""Random tokens of each format that redaction knows, and texts in which agents print them.

May import the standard library and the table of formats.
"""

from __future__ import annotations

import random
import re
from urllib.parse import quote

from agentops.base.redaction.token_grammar import ALPHABETS, Part, VendorFormat

MARK = r"\[REDACTED:[a-z0-9_]{1,32}:[0-9a-f]{8}\]"
#: Frames with {} for the token: alone, at the start and end, in JSON, settings, URLs and commands; with escapes.
FRAMES = (
    "{}",
    "{} is what it printed.",
    "The key is {}",
    "Use {}.",
    "(see {})",
    '{{"value": "{}", "n": 1}}',
    '{{\\"value\\":\\"{}\\"}}',
    "line\\n{}\\nnext",
    "→\\u0022{}\\u0022",
    "X={}",
    "export SOME_VALUE='{}'",
    'value: "{}"',
    "https://api.example/v1?k={}&a=1",
    "https://api.example/%3D{}%26",
    "curl -H 'X-Auth: {}' https://api.example",
    "tool --value {} --verbose",
    "a,{},b",
    "`{}`",
    "<b>{}</b>",
)
#: Frames in which a token is percent-encoded, or has its slashes escaped as in some JSON.
_URLS, _JSON = {12, 13}, {5, 6}


def tokens(form: VendorFormat, rng: random.Random, count: int) -> list[str]:
    """Return tokens with random characters. Some have no digit, or a hyphen at the end."""
    columns = [_texts(part, rng, count) for part in form.parts()]
    made = [form.prefix + "".join(pieces) for pieces in zip(*columns, strict=True)]
    ends_in_base64 = list(form.parts())[-1].alphabet == "base64"
    return [token + "=" * (-len(token) % 4 % 3) for token in made] if ends_in_base64 else made


def _texts(part: Part, rng: random.Random, count: int) -> list[str]:
    if part.text:
        return [part.text] * count
    drawn = "".join(rng.choices(ALPHABETS[part.alphabet], k=part.most * count))
    lengths = rng.choices(range(part.least, part.most + 1), k=count)
    return [drawn[part.most * number : part.most * number + length] for number, length in enumerate(lengths)]


def framed(token: str, number: int) -> tuple[str, str]:
    """Return a text with the token in a frame, and a pattern of the redacted text."""
    frame = FRAMES[number % len(FRAMES)]
    shown = token
    is_escaped = "\\" in token or "%" in token
    if is_escaped:
        pass
    elif number % len(FRAMES) in _URLS:
        shown = quote(token, safe=":$" if token[-1] == "=" or "+" in token else ":$/=")
    elif number % len(FRAMES) in _JSON and number % 2:
        shown = token.replace("/", "\\/")
    before, after = frame.format("\0").split("\0")
    return before + shown + after, re.escape(before) + MARK + re.escape(after)


def samples(form: VendorFormat, rng: random.Random, count: int) -> list[tuple[str, str]]:
    """Return texts with a token of the format, and a pattern of the redacted text of each."""
    return [framed(token, number) for number, token in enumerate(tokens(form, rng, count))]
