"""Private keys in PEM format: complete, truncated, and while they arrive."""

from __future__ import annotations

import re

MARK = "-----BEGIN "
_LABEL = r"(?:[A-Z]{2,10} ){0,2}PRIVATE KEY(?: BLOCK)?-----"
_GAP = r"(?:[\s,:+\"']|\\[nr])"
_HEADERS = rf"(?:{_GAP}{{1,4}}[A-Z][A-Za-z-]{{2,20}}: [^\n\\]{{1,120}}+){{0,4}}"
#: Lines of Base64 and the gaps between them.
_LINES = r"(?:[\s,:+\"'A-Za-z0-9/=]{1,64}+|\\[nr]){0,1024}"
_BODY = rf"{_HEADERS}{_GAP}{{0,8}}[A-Za-z0-9+/=]{{16,76}}+{_LINES}"
#: Up to the end of the key, or as long as the text looks like one: previews and streams truncate keys.
PATTERN = re.compile(rf"-----BEGIN {_LABEL}(?:(?:[^-]|-(?!----)){{0,16384}}-----END {_LABEL}|{_BODY})")
_LINE = re.compile(r"[A-Za-z0-9+/=]{16}")
_OPEN_LABEL = r"(?: [A-Z ]{0,48}-{0,4})?"
_OPEN = re.compile(
    rf"-(?:-(?:-(?:-(?:-(?:B(?:E(?:G(?:I(?:N{_OPEN_LABEL})?)?)?)?)?)?)?)?)?\Z"
    rf"|-----BEGIN {_LABEL}"
    rf"(?:(?:[^-]|-(?!----)){{0,16384}}(?:-----(?:E(?:N(?:D{_OPEN_LABEL})?)?)?)?\Z"
    rf"|{_HEADERS}{_LINES}\\?\Z)"
)


def is_key(text: str) -> bool:
    """Return whether a match of `PATTERN` contains a key, and not only the names of its first and last line."""
    return _LINE.search(text) is not None


def unfinished(text: str) -> int:
    """Return the position of a key, or of its first line, that the end of the text truncates, or the text's length."""
    match = _OPEN.search(text) if "-" in text else None
    return match.start() if match else len(text)
