"""Known shapes of secrets: tokens by their prefix, keys in PEM, credentials in headers and URLs. Pure.
May import: the standard library, secret_names."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator

from timeline import secret_names
from timeline.secret_names import DIGIT, LETTER, TEMPLATE, Span, each, lowered

# Every quantifier of these two modules is bounded, or possessive: it never gives back what it took. So time
# is linear. There is no detector for high entropy as such: hashes, uuids, lockfiles and images are an agent's
# daily food, and what is redacted is hidden from the model too. Randomness counts behind a telling name only.


def _edge(prefix: str) -> str:
    """A token starts at no letter or digit, but escapes in front of it (\\n, %3D, \\u0022) end in one."""
    digit = "[0-9A-Fa-f]"
    return (
        rf"(?:(?<![A-Za-z0-9_-]{prefix})|(?<=\\[nrt]{prefix})|(?<=%{digit}{digit}{prefix})"
        rf"|(?<=\\u{digit}{digit}{digit}{digit}{prefix}))"
    )


Shape = tuple[str, re.Pattern[str]]


def _shape(kind: str, prefix: str, body: str) -> Shape:
    return kind, re.compile(prefix + _edge(prefix) + body, re.ASCII)


_WORD = "[A-Za-z0-9_-]"
_PEM_LABEL = r"(?:[A-Z]{2,10} ){0,2}PRIVATE KEY(?: BLOCK)?-----"
_PEM_GAP = r"(?:[\s,:+\"']|\\[nr])"
_PEM_HEADERS = rf"(?:{_PEM_GAP}{{1,4}}+[A-Z][A-Za-z-]{{2,20}}: [^\n\\]{{1,120}}+){{0,4}}+"
# With its end in sight, or as far as it looks like a key: previews and streams cut keys in the middle.
_PEM = (
    rf"-----BEGIN {_PEM_LABEL}(?:(?:[^-]|-(?!----)){{0,16384}}+-----END {_PEM_LABEL}"
    rf"|{_PEM_HEADERS}{_PEM_GAP}{{0,8}}+[A-Za-z0-9+/=]{{16,76}}+(?:{_PEM_GAP}|[A-Za-z0-9+/=]{{1,76}}+){{0,1024}}+)"
)
_PEM_LINE = re.compile(r"[A-Za-z0-9+/=]{16}")

# A family is tried only when its gate, which starts with one rare character, is found: clean text pays for
# the gates alone.
_FAMILIES: tuple[tuple[re.Pattern[str], tuple[Shape, ...]], ...] = (
    (
        re.compile(r"-(?:(?<=sk-)|(?<=k-lf-)|(?<=glpat-)|(?<=xox[a-z]-)|(?<=xapp-)|(?<=-----)BEGIN )"),
        (
            _shape("anthropic_key", "sk-ant-", rf"{_WORD}{{16,}}+"),
            _shape("langfuse_key", "[ps]k-lf-", rf"{_WORD}{{16,}}+"),
            _shape("api_key", "sk-", rf"{_WORD}{{16,}}+"),
            _shape("gitlab_token", "glpat-", rf"{_WORD}{{16,}}+(?:\.{_WORD}{{2,64}}+){{0,2}}"),
            _shape("slack_token", "xox[abceoprs]-", r"(?=[A-Za-z-]{0,64}[0-9])[A-Za-z0-9-]{10,}+"),
            _shape("slack_token", "xapp-", r"(?=[A-Za-z-]{0,64}[0-9])[A-Za-z0-9-]{16,}+"),
            ("private_key", re.compile(_PEM)),
        ),
    ),
    (
        re.compile(r"_(?:(?<=gh[oprsu]_)|(?<=github_pat_)|(?<=aok_))"),
        (
            _shape("github_token", "gh[oprsu]_", r"[A-Za-z0-9]{20,}+"),
            _shape("github_token", "github_pat_", r"[A-Za-z0-9_]{20,}+"),
            _shape("agentops_key", "aok_", rf"{_WORD}{{16,}}+"),
        ),
    ),
    (
        re.compile(r"A(?:KIA|SIA|Iza)"),
        (
            _shape("aws_key", "A[KS]IA", r"[A-Z0-9]{16}(?![A-Za-z0-9])"),
            _shape("google_key", "AIza", rf"{_WORD}{{35}}(?!{_WORD})"),
        ),
    ),
    (
        re.compile(r"J(?<=eyJ)"),
        (
            _shape("jwt", "eyJ", rf"{_WORD}{{8,}}+\.eyJ{_WORD}{{4,}}+(?:\.{_WORD}*+)?"),
            _shape("jwt", "eyJ", rf"{_WORD}{{8,}}+\.{_WORD}*+\.{_WORD}{{16,}}+(?:\.{_WORD}*+){{0,2}}"),
        ),
    ),
)
_SK_VENDOR = re.compile(r"sk-(?:proj|svcacct|admin|or-v1|live|test|None)-")

_USERINFO = re.compile(r"[^\s:/@?#\"'<>\\]{0,64}:([^\s/@?\"'<>\\]{1,180}+)@")
_QUOTE = r"\\{0,3}[\"'`]?"
_BEARER = re.compile(rf"(?:\s|:|%20|\+){{1,4}}{_QUOTE}([A-Za-z0-9._~+/=-]{{16,}}+)", re.ASCII)
_BASIC = re.compile(r"(?:\s|%20|\+){1,4}([A-Za-z0-9+/]{8,}+={0,2})", re.ASCII)
_HEADER = re.compile(
    rf"{_QUOTE}\s{{0,2}}[:=,]\s{{0,3}}{_QUOTE}"
    r"(?:[A-Za-z][A-Za-z0-9-]{1,20}\s{1,3}([A-Za-z0-9._~+/=:-]{6,}+)|([A-Za-z0-9._~+/=:-]{16,}+))",
    re.ASCII,
)


def find(text: str) -> list[Span]:
    """Every span of `text` that looks like a secret, in no order, maybe overlapping."""
    spans: list[Span] = []
    for gate, shapes in _FAMILIES:
        if gate.search(text):
            spans += _tokens(text, shapes)
    if "@" in text and "://" in text:
        spans += _userinfo(text)
    lower = lowered(text)
    if "authorization" in lower or "bearer" in lower or "basic" in lower:
        spans += _headers(text, lower)
    if "=" in text or ":" in text or "--" in text or "%3" in text:
        spans += secret_names.find(text, lower)
    return spans


def _tokens(text: str, shapes: tuple[Shape, ...]) -> Iterator[Span]:
    for kind, pattern in shapes:
        for match in pattern.finditer(text):
            if _is_token(kind, match[0]):
                yield Span(match.start(), match.end(), match.start(), kind)


def _is_token(kind: str, token: str) -> bool:
    if kind == "private_key":
        return _PEM_LINE.search(token) is not None  # not the mere mention of its first and last line
    if kind != "api_key":
        return True
    # Packages and CSS classes are named sk-… too: a key has digits among its letters.
    if _SK_VENDOR.match(token):
        return DIGIT.search(token, 8) is not None
    parts = re.split("[_-]", token[3:])
    return any(len(part) >= 12 and DIGIT.search(part) and LETTER.search(part) for part in parts)


def _userinfo(text: str) -> Iterator[Span]:
    for at in each(text, "://"):
        match = _USERINFO.match(text, at + 3)
        if match and not TEMPLATE.match(match[1]):
            yield Span(*match.span(1), at, "url_password")


def _headers(text: str, lower: str) -> Iterator[Span]:
    for at in each(lower, "bearer"):
        match = _BEARER.match(text, at + 6)
        if match and DIGIT.search(match[1]) and not TEMPLATE.match(match[1]):
            yield Span(*match.span(1), at, "bearer")
    for at in each(lower, "basic"):
        match = _BASIC.match(text, at + 5)
        if match and _is_basic(match[1]):
            yield Span(*match.span(1), at, "basic")
    for at in each(lower, "authorization"):
        match = _HEADER.match(text, at + 13)
        group = match.lastindex if match else None
        if match and group and _is_credential(match[group]):
            yield Span(*match.span(group), at, "authorization")


def _is_basic(value: str) -> bool:
    """Basic credentials are base64 of printable "user:password"; a word after "basic" is not."""
    try:
        plain = base64.b64decode(value[:1024], validate=True).decode()
    except (binascii.Error, ValueError):
        return False
    return ":" in plain and plain.isprintable()


def _is_credential(value: str) -> bool:
    """Behind "Authorization:" almost anything is one, but not a word of prose or a template's YOUR_TOKEN."""
    if DIGIT.search(value):
        return not TEMPLATE.match(value)
    return value[1:] != value[1:].lower() and value != value.upper() and not TEMPLATE.match(value)
