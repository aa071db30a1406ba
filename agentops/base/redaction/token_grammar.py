"""The notation for the body of a token after its prefix, and its regular expression.

A body is a list of parts with spaces between them. `alnum*20-30` is 20 to 30 characters of an alphabet, `uuid` a UUID,
and anything else literal text. With `*`, any 16 or more characters of the alphabets match, because vendors lengthen
their tokens, and previews truncate them. With `=`, for prefixes that also occur in ordinary words, the lengths must
match, and no character of the alphabet may follow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from string import ascii_letters, ascii_lowercase, ascii_uppercase, digits
from typing import NamedTuple

ALPHABETS = {
    "digit": digits,
    "hex": digits + "abcdef",
    "lower": digits + ascii_lowercase,
    "upper": digits + ascii_uppercase,
    "alnum": digits + ascii_letters,
    "word": digits + ascii_letters + "_-",
    "base64": digits + ascii_letters + "+/",
}
#: Groups of hexadecimal digits, with a hyphen between them.
UUID = (8, 4, 4, 4, 12)
#: The length from which a body of the kind `*` always matches.
ENOUGH = 16
#: The maximum length of a part whose pattern is not possessive, so that matching takes linear time.
LONGEST = 2048
_RANGES = {"digit": "0-9", "hex": "0-9A-Fa-f", "lower": "0-9a-z", "upper": "0-9A-Z", "alnum": "0-9A-Za-z"}
_RANGES |= {"word": "0-9A-Za-z_-", "base64": "0-9A-Za-z+/"}
_PART = re.compile(r"([a-z0-9]+)([*=])(\d+)(?:-(\d+))?")
# In base64, JSON may escape a slash, and a URL escapes slashes and plus signs.
_PADDING = "(?:={1,2}|(?:%3[Dd]){1,2})?"
_BASE64 = r"(?:[A-Za-z0-9+/_-]|\\{1,7}/|%2[BbFf])"


class Part(NamedTuple):
    """`least` to `most` characters of an alphabet, or a literal text if `alphabet` is empty."""

    alphabet: str
    least: int
    most: int
    text: str = ""


class VendorFormat(NamedTuple):
    """A token format of a vendor."""

    #: The kind of secret, which the placeholder names.
    kind: str
    vendor: str
    prefix: str
    #: In the notation of this module.
    body: str
    #: The sources of this information: letters of `vendor_formats.SOURCES`.
    sources: str

    @property
    def is_exact(self) -> bool:
        """Whether the lengths of the body must match."""
        return "=" in self.body.replace(" = ", "")

    @property
    def least(self) -> int:
        """The minimum length of a token's body."""
        return sum(part.least for part in self.parts())

    def parts(self) -> Iterator[Part]:
        """Yield the parts of the body."""
        for part in self.body.split():
            if match := _PART.fullmatch(part):
                alphabet, least = match[1], int(match[3])
                yield Part(alphabet, least, int(match[4] or least))
            elif part.rstrip("=") == "uuid":
                for number, length in enumerate(UUID):
                    yield from [Part("", 1, 1, "-")] * (number > 0)
                    yield Part("hex", length, length)
            else:
                yield Part("", len(part), len(part), part)

    def pattern(self) -> str:
        """Return a regular expression for the body, which matches in linear time."""
        return _exact(list(self.parts())) if self.is_exact else _generous(list(self.parts()), self.least)

    def head(self) -> str:
        """Return a regular expression of bounded length that matches the start of every body."""
        first = next(self.parts())
        if self.is_exact:
            return self.pattern()
        if first.text:
            return re.escape(first.text)
        characters = _BASE64 if first.alphabet == "base64" else f"[{_union(list(self.parts()))}]"
        return f"{characters}{{{min(first.least, 12)}}}"


def _exact(parts: list[Part]) -> str:
    """Return the pattern of a body with `=`."""
    pieces = [re.escape(p.text) or _repeated(_character(p), p.least, p.most) for p in parts]
    if (last := parts[-1].alphabet) == "base64":
        return "".join([*pieces, _PADDING, f"(?!{_BASE64})"])
    return "".join([*pieces, f"(?![{_RANGES['word' if last == 'word' else 'alnum']}])"])


def _repeated(one: str, least: int, most: int | str) -> str:
    """Return a repetition, which is possessive if `one` is a set of characters (tests/test_regular_expressions.py)."""
    return f"{one}{{{least},{most}}}{'+' if one.startswith('[') else ''}"


def _character(part: Part) -> str:
    return _BASE64 if part.alphabet == "base64" else f"[{_RANGES[part.alphabet]}]"


def _generous(parts: list[Part], least: int) -> str:
    """Return the pattern of a body with `*`. `least`: the minimum length of a complete body."""
    least = min(least, ENOUGH)
    is_base64 = any(part.alphabet == "base64" for part in parts)
    one = _BASE64 if is_base64 else f"[{_union(parts)}]"
    # Characters of literal texts at which a token can be split into words, such as full stops.
    joints = "".join({c for part in parts for c in part.text if not c.isalnum() and c not in "_-"})
    end = _PADDING if is_base64 else ""
    if not joints:
        return _repeated(one, least, LONGEST if is_base64 else "") + end
    joint, many = re.escape(joints), _repeated(one, 1, LONGEST)
    return f"(?=[0-9A-Za-z_{joint}-]{{{least}}}){many}(?:[{joint}]{many}){{0,4}}{end}"


def _union(parts: list[Part]) -> str:
    """Return the ranges of a set of characters that contains the alphabets of all parts."""
    is_word = any(part.alphabet == "word" or set("_-") & set(part.text) for part in parts)
    return _RANGES["word" if is_word else "alnum"]
