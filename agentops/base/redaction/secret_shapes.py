"""Detection of secrets by their format: tokens with a prefix, PEM keys, credentials in headers and URLs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from agentops.base.redaction import (
    open_tokens,
    private_keys,
    secret_commands,
    secret_names,
    secret_statements,
    secret_urls,
    vendor_tokens,
)
from agentops.base.redaction.secret_names import DIGIT, LETTER, TEMPLATE, SecretSpan, each, lower_case
from agentops.base.redaction.secret_statements import is_basic
from agentops.base.redaction.vendor_formats import FORMATS

# Every quantifier of these two modules is bounded or possessive, so matching takes linear time. High entropy alone is
# not detected: agents often handle hashes, UUIDs, lockfiles and images, and redacted text is hidden from the model too.
# Randomness only counts after a telling name.


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
_LOOK = 64  # how much of a token tells whether it is random
#: The marker that each shape contains, and the shape.
SHAPES: tuple[tuple[str, Shape], ...] = (
    ("sk-", _shape("api_key", "sk-", rf"{_WORD}{{16,}}+")),
    # The prefix of an API key is not a secret: it identifies the key, for example in the audit log.
    ("aok_", _shape("agentops_key", "aok_", rf"(?!(?:live|test)_[0-9A-Za-z]{{12}}(?!{_WORD})){_WORD}{{16,}}+")),
    (":AA", ("telegram_token", re.compile(rf"(?<=[0-9]:)AA{_WORD}{{28,}}+", re.ASCII))),
    ("eyJ", _shape("jwt", "eyJ", rf"{_WORD}{{8,}}+\.eyJ{_WORD}{{4,}}+(?:\.{_WORD}*+)?")),
    ("eyJ", _shape("jwt", "eyJ", rf"{_WORD}{{8,}}+\.{_WORD}*+\.{_WORD}{{16,}}+(?:\.{_WORD}*+){{0,2}}")),
    # The text before these markers is displayed: a stream cannot distinguish it from a word until the rest arrives.
    (".atlasv1.", ("terraform_token", re.compile(rf"(?<=[A-Za-z0-9]{{14}})\.atlasv1\.{_WORD}{{16,}}+", re.ASCII))),
    ("Q~", ("azure_client_secret", re.compile(r"(?<=[0-9])Q~(?:\.?[A-Za-z0-9_~-]){28,}", re.ASCII))),
    (private_keys.MARK, ("private_key", private_keys.PATTERN)),
)
KINDS = frozenset(kind for _, (kind, _) in SHAPES) | {form.kind for form in FORMATS}
#: Markers at or near the start of a token of these shapes → an expression that matches after them. In addition, there
#: are the prefixes of vendors' tokens.
MARKS = {
    "sk-": re.compile(rf"{_WORD}{{16}}", re.ASCII),
    "aok_": re.compile(rf"{_WORD}{{16}}", re.ASCII),
    ":AA": re.compile(rf"{_WORD}{{28}}", re.ASCII),
    "eyJ": re.compile(rf"{_WORD}{{8}}", re.ASCII),
    ".atlasv1.": re.compile(rf"{_WORD}{{16}}", re.ASCII),
    "Q~": re.compile(r"[A-Za-z0-9_.~-]{28}", re.ASCII),
    private_keys.MARK: re.compile("[A-Z]"),
}

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
    spans = list(_tokens(text)) if vendor_tokens.may_be_in(text) else []
    if "@" in text and "://" in text:
        spans += _userinfo(text)
    lower = lower_case(text)
    has_auth = "auth" in lower
    if has_auth or "bearer" in lower or "basic" in lower:
        spans += _headers(text, lower)
    if "=" in text or ":" in text or "--" in text or "%3" in text:
        spans += secret_names.find(text, lower)
    if secret_commands.may_be_in(text, lower):
        spans += secret_commands.find(text, lower)
    if has_auth or secret_statements.may_be_in(lower):
        spans += secret_statements.find(text, lower)
    if secret_urls.may_be_in(text):
        spans += secret_urls.find(text)
    return spans


def unfinished(text: str, lower: str) -> int:
    """Return the position from which further text could complete a secret, or the length of the text."""
    begins = [secret_names.unfinished(text, lower)]
    if secret_commands.may_be_in(text, lower):
        begins.append(secret_commands.unfinished(text, lower))
    if "auth" in lower or secret_statements.may_be_in(lower):
        begins.append(secret_statements.unfinished(text, lower))
    begins += [open_tokens.unfinished(text), private_keys.unfinished(text)]
    if secret_urls.may_be_in(text):
        begins.append(secret_urls.unfinished(text))
    for where, word, pattern in (
        (text, "://", _OPEN_USERINFO),
        (lower, "bearer", _OPEN_BEARER),
        (lower, "basic", _OPEN_BASIC),
        (lower, "authorization", _OPEN_HEADER),
    ):
        matches = (pattern.match(text, at + len(word)) for at in each(where, word))
        begins += [match.start(1) for match in matches if match]
    return min(begins)


def _tokens(text: str) -> Iterator[SecretSpan]:
    """Yield the tokens in `text`. Formats of vendors are more specific than the other shapes."""
    of_vendors, marks = vendor_tokens.find(text)
    yield from of_vendors.values()
    for mark, (kind, pattern) in SHAPES if marks else ():
        for match in pattern.finditer(text) if mark in marks else ():
            if match.start() not in of_vendors and _is_token(kind, match[0]):
                yield SecretSpan(match.start(), match.end(), match.start(), kind)


def _is_token(kind: str, token: str) -> bool:
    if kind == "private_key":
        return private_keys.is_key(token)
    if kind != "api_key":
        return True
    # Packages and CSS classes are also named sk-…: a key contains digits among its letters.
    body = token[len("sk-") :][:_LOOK]
    is_long = len(body) >= 40 and body.lower() != body and DIGIT.search(body) is not None
    parts = re.split("[_-]", body)
    return is_long or any(len(part) >= 12 and DIGIT.search(part) and LETTER.search(part) for part in parts)


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
        if match and is_basic(match[1]):
            yield SecretSpan(*match.span(1), at, "basic")
    for at in each(lower, "authorization"):
        match = _HEADER.match(text, at + 13)
        group = match.lastindex if match else None
        if match and group and _is_credential(match[group]):
            yield SecretSpan(*match.span(group), at, "authorization")


def _is_credential(value: str) -> bool:
    """Return whether a value after "Authorization:" is a credential, and not prose or a placeholder."""
    if DIGIT.search(value):
        return not TEMPLATE.match(value)
    return value[1:] != value[1:].lower() and value != value.upper() and not TEMPLATE.match(value)
