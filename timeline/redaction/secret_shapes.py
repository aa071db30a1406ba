"""Detection of secrets by their format: tokens with a prefix, PEM keys, credentials in headers and URLs."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from string import ascii_letters, digits

from timeline.redaction import secret_commands, secret_names, vendor_tokens
from timeline.redaction.secret_names import DIGIT, LETTER, TEMPLATE, SecretSpan, each, lower_case
from timeline.redaction.vendor_tokens import START

# Every quantifier of these two modules is bounded, or possessive: it never gives back what it took. So time
# is linear. There is no detector for high entropy as such: hashes, uuids, lockfiles and images are an agent's
# daily food, and what is redacted is hidden from the model too. Randomness counts behind a telling name only.


def _edge(prefix: str) -> str:
    """Return a pattern for the start of a token: not after a letter or digit, except at the end of an escape such as
    \\n, %3D or \\u0022."""
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
FAMILIES: tuple[tuple[re.Pattern[str], tuple[Shape, ...]], ...] = (
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
            # The prefix of an API key is not a secret: it identifies the key, for example in the audit log.
            _shape("agentops_key", "aok_", rf"(?!(?:live|test)_[0-9A-Za-z]{{12}}(?!{_WORD})){_WORD}{{16,}}+"),
        ),
    ),
    (
        re.compile(r"A(?:KIA|SIA|BIA|CCA|Iza|A(?<=:AA)|A(?<=EAA)|KCp|I(?<=LTAI))"),
        (
            _shape("aws_key", "A(?:[KS]I|BI|CC)A", r"[A-Z0-9]{16}(?![A-Za-z0-9])"),
            _shape("google_key", "AIza", rf"{_WORD}{{35}}(?!{_WORD})"),
            ("telegram_token", re.compile(rf"(?<=[0-9]:)AA{_WORD}{{28,}}+", re.ASCII)),
            _shape("square_token", "EAAA", rf"(?={_WORD}{{0,20}}[0-9]){_WORD}{{22,}}+"),
            _shape("facebook_token", "EAA[MC]", r"[A-Za-z0-9]{60,}+"),
            _shape("artifactory_key", "AKCp", r"[A-Za-z0-9]{40,}+"),
            _shape("alibaba_key", "LTAI", r"(?=[A-Za-z]{0,20}[0-9])[A-Za-z0-9]{16,24}+(?![A-Za-z0-9])"),
        ),
    ),
    (
        re.compile(r"S(?:K[0-9a-f]{16}|G\.[A-Za-z0-9_-]{8})"),
        (
            _shape("twilio_key", "SK", r"[0-9a-f]{32}(?![A-Za-z0-9])"),
            _shape("sendgrid_key", r"SG\.", rf"{_WORD}{{16,}}+\.{_WORD}{{16,}}+"),
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
KINDS = frozenset(kind for _, shapes in FAMILIES for kind, _ in shapes)
PREFIXES = (
    *("sk-", "pk-lf-", "glpat-", "xapp-", "gho_", "ghp_", "ghr_", "ghs_", "ghu_", "github_pat_", "aok_"),
    *("AKIA", "ASIA", "ABIA", "ACCA", "AIza", "EAAA", "EAAC", "EAAM", "AKCp", "LTAI", "SK", "SG.", "eyJ"),
    *(f"xox{letter}-" for letter in "abceoprs"),
)
# What a stream holds back: a token, or the start of a prefix, that extends to the end of the text.
_PREFIXES = (*PREFIXES, *vendor_tokens.PREFIXES)
_TOKEN_CHARS = ascii_letters + digits + "_-."
_OPEN_TOKEN = re.compile(f"{_edge('')}(?:{'|'.join(map(re.escape, _PREFIXES))})[A-Za-z0-9_.-]*+\\Z", re.ASCII)
_OPEN_TELEGRAM = re.compile(r"(?<=[0-9]):(A(?:A[A-Za-z0-9_-]*+)?)\Z", re.ASCII)
_HEADS = frozenset(prefix[:length] for prefix in _PREFIXES for length in range(1, len(prefix)))
_LONGEST_HEAD = max(map(len, _HEADS))
_OPEN_LABEL = r"(?: [A-Z ]{0,48}-{0,4})?"
_OPEN_PEM = re.compile(
    rf"-(?:-(?:-(?:-(?:-(?:B(?:E(?:G(?:I(?:N{_OPEN_LABEL})?)?)?)?)?)?)?)?)?\Z"
    rf"|-----BEGIN {_PEM_LABEL}"
    rf"(?:(?:[^-]|-(?!----)){{0,16384}}+(?:-----(?:E(?:N(?:D{_OPEN_LABEL})?)?)?)?\Z"
    rf"|{_PEM_HEADERS}{_PEM_GAP}{{0,8}}+(?:{_PEM_GAP}|[A-Za-z0-9+/=]{{1,76}}+){{0,1024}}+\\?\Z)"
)
_SK_VENDOR = re.compile(r"sk-(?:proj|svcacct|admin|or-v1|live|test|None)-")

_USERINFO = re.compile(r"[^\s:/@?#\"'<>\\]{0,64}:([^\s/@?\"'<>\\]{1,180}+)@")
_QUOTE = r"\\{0,15}[\"'`]?"
_BEARER = re.compile(rf"(?:\s|:|%20|\+){{1,4}}{_QUOTE}([A-Za-z0-9._~+/=-]{{16,}}+)", re.ASCII)
_BASIC = re.compile(r"(?:\s|%20|\+){1,4}([A-Za-z0-9+/]{8,}+={0,2})", re.ASCII)
_HEADER = re.compile(
    rf"{_QUOTE}\s{{0,2}}[:=,]\s{{0,3}}{_QUOTE}"
    r"(?:[A-Za-z][A-Za-z0-9-]{1,20}\s{1,3}([A-Za-z0-9._~+/=:-]{6,}+)|([A-Za-z0-9._~+/=:-]{16,}+))",
    re.ASCII,
)
_OPEN_USERINFO = re.compile(r"[^\s:/@?#\"'<>\\]{0,64}:([^\s/@?\"'<>\\]{1,180}+)\Z")
_OPEN_BEARER = re.compile(rf"(?:\s|:|%20|\+){{1,4}}{_QUOTE}([A-Za-z0-9._~+/=-]++)\Z", re.ASCII)
_OPEN_BASIC = re.compile(r"(?:\s|%20|\+){1,4}([A-Za-z0-9+/=]++)\Z", re.ASCII)
_OPEN_HEADER = re.compile(
    rf"{_QUOTE}\s{{0,2}}[:=,]\s{{0,3}}{_QUOTE}([A-Za-z0-9._~+/=:-]++(?:\s{{1,3}}+[A-Za-z0-9._~+/=:-]*+)?)\Z", re.ASCII
)


def find(text: str) -> list[SecretSpan]:
    """Return the spans of `text` that look like secrets, unsorted and possibly overlapping."""
    spans = list(vendor_tokens.find(text))
    for gate, shapes in FAMILIES:
        if gate.search(text):
            spans += _tokens(text, shapes)
    if "@" in text and "://" in text:
        spans += _userinfo(text)
    lower = lower_case(text)
    if "authorization" in lower or "bearer" in lower or "basic" in lower:
        spans += _headers(text, lower)
    if "=" in text or ":" in text or "--" in text or "%3" in text:
        spans += secret_names.find(text, lower)
    spans += secret_commands.find(text, lower)
    return spans


def unfinished(text: str, lower: str) -> int:
    """Return the position from which further text could complete a secret, or the length of the text."""
    begins = [secret_names.unfinished(text, lower), secret_commands.unfinished(text, lower), _unfinished_token(text)]
    for where, word, pattern in (
        (text, "://", _OPEN_USERINFO),
        (lower, "bearer", _OPEN_BEARER),
        (lower, "basic", _OPEN_BASIC),
        (lower, "authorization", _OPEN_HEADER),
    ):
        matches = (pattern.match(text, at + len(word)) for at in each(where, word))
        begins += [match.start(1) for match in matches if match]
    if "-" in text and (match := _OPEN_PEM.search(text)):
        begins.append(match.start())
    return min(begins)


def _unfinished_token(text: str) -> int:
    """Return the position of a token, or of the start of a prefix, that extends to the end of the text."""
    size = len(text)
    run = len(text.rstrip(_TOKEN_CHARS))
    if run < size and (match := _OPEN_TOKEN.search(text, run)):
        return match.start()
    if run < size and (match := _OPEN_TELEGRAM.search(text, run - 1 if run else 0)):
        return match.start(1)
    for length in range(min(_LONGEST_HEAD, size), 0, -1):
        if text[size - length :] in _HEADS and START.match(text, size - length):
            return size - length
    return size


def _tokens(text: str, shapes: tuple[Shape, ...]) -> Iterator[SecretSpan]:
    for kind, pattern in shapes:
        for match in pattern.finditer(text):
            if _is_token(kind, match[0]):
                yield SecretSpan(match.start(), match.end(), match.start(), kind)


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


def _userinfo(text: str) -> Iterator[SecretSpan]:
    for at in each(text, "://"):
        match = _USERINFO.match(text, at + 3)
        if match and not TEMPLATE.match(match[1]):
            yield SecretSpan(*match.span(1), at, "url_password")


def _headers(text: str, lower: str) -> Iterator[SecretSpan]:
    for at in each(lower, "bearer"):
        match = _BEARER.match(text, at + 6)
        if match and DIGIT.search(match[1]) and not TEMPLATE.match(match[1]):
            yield SecretSpan(*match.span(1), at, "bearer")
    for at in each(lower, "basic"):
        match = _BASIC.match(text, at + 5)
        if match and _is_basic(match[1]):
            yield SecretSpan(*match.span(1), at, "basic")
    for at in each(lower, "authorization"):
        match = _HEADER.match(text, at + 13)
        group = match.lastindex if match else None
        if match and group and _is_credential(match[group]):
            yield SecretSpan(*match.span(group), at, "authorization")


def _is_basic(value: str) -> bool:
    """Return whether a value is base64 of a printable "user:password"."""
    try:
        plain = base64.b64decode(value[:1024], validate=True).decode()
    except (binascii.Error, ValueError):
        return False
    return ":" in plain and plain.isprintable()


def _is_credential(value: str) -> bool:
    """Return whether a value after "Authorization:" is a credential, and not prose or a placeholder."""
    if DIGIT.search(value):
        return not TEMPLATE.match(value)
    return value[1:] != value[1:].lower() and value != value.upper() and not TEMPLATE.match(value)
