"""Detection of secrets by their form (tokens, private keys, credentials in headers and URLs), and all kinds."""

from __future__ import annotations

import re
from collections.abc import Iterator

from agentops.base.redaction import secret_names, secret_places, secret_urls, vendor_tokens
from agentops.base.redaction.registered_secrets import SECRET
from agentops.base.redaction.secret_names import DIGIT, LETTER, TEMPLATE, SecretSpan, after_escape, each, lower_case
from agentops.base.redaction.secret_places import is_basic
from agentops.base.redaction.vendor_formats import FORMATS

# Private keys in PEM format.
_BEGIN = "-----BEGIN "
_LABEL = r"(?:[A-Z]{2,10} ){0,2}PRIVATE KEY(?: BLOCK)?-----"
_GAP = r"(?:[\s,:+\"']|\\[nr])"
_HEADERS = rf"(?:{_GAP}{{1,4}}[A-Z][A-Za-z-]{{2,20}}: [^\n\\]{{1,120}}+){{0,4}}"
#: Lines of Base64 and the gaps between them.
_LINES = r"(?:[\s,:+\"'A-Za-z0-9/=]{1,64}+|\\[nr]){0,1024}"
_BODY = rf"{_HEADERS}{_GAP}{{0,8}}[A-Za-z0-9+/=]{{16,76}}+{_LINES}"
#: A key up to its last line, or as far as the text looks like one, because previews and streams truncate keys.
_KEY = re.compile(rf"-----BEGIN {_LABEL}(?:(?:[^-]|-(?!----)){{0,16384}}-----END {_LABEL}|{_BODY})")
_LINE = re.compile(r"[A-Za-z0-9+/=]{16}")
_OPEN_LABEL = r"(?: [A-Z ]{0,48}-{0,4})?"
#: A key, or its first line, that the end of the text truncates.
_OPEN_KEY = re.compile(
    rf"-(?:-(?:-(?:-(?:-(?:B(?:E(?:G(?:I(?:N{_OPEN_LABEL})?)?)?)?)?)?)?)?)?\Z"
    rf"|-----BEGIN {_LABEL}"
    rf"(?:(?:[^-]|-(?!----)){{0,16384}}(?:-----(?:E(?:N(?:D{_OPEN_LABEL})?)?)?)?\Z"
    rf"|{_HEADERS}{_LINES}\\?\Z)"
)


# Tokens. Every quantifier of the patterns in this package is bounded or possessive, so that matching takes linear time.
# High entropy alone is not detected: agents often handle hashes, UUIDs, lockfiles and images, and redacted text is
# hidden from the model too. Randomness only counts after the name of a secret.

Shape = tuple[str, re.Pattern[str]]


def _shape(kind: str, prefix: str, body: str) -> Shape:
    """Return the kind and the pattern of tokens with a prefix, which starts no word or follows an escape."""
    return kind, re.compile(rf"{prefix}(?:(?<![A-Za-z0-9_-]{prefix})|{after_escape(prefix)}){body}", re.ASCII)


_WORD = "[A-Za-z0-9_-]"
#: Characters of a token that are checked for randomness.
_LOOK = 64
#: Shapes of tokens, each with a marker that it contains.
SHAPES: tuple[tuple[str, Shape], ...] = (
    ("sk-", _shape("api_key", "sk-", rf"{_WORD}{{16,}}+")),
    # The prefix of an API key is not a secret: it identifies the key, for example in the audit log.
    ("aok_", _shape("agentops_key", "aok_", rf"(?!(?:live|test)_[0-9A-Za-z]{{12}}(?!{_WORD})){_WORD}{{16,}}+")),
    (":AA", ("telegram_token", re.compile(rf"(?<=[0-9]:)AA{_WORD}{{28,}}+", re.ASCII))),
    ("eyJ", _shape("jwt", "eyJ", rf"{_WORD}{{8,}}+\.eyJ{_WORD}{{4,}}+(?:\.{_WORD}*+)?")),
    ("eyJ", _shape("jwt", "eyJ", rf"{_WORD}{{8,}}+\.{_WORD}*+\.{_WORD}{{16,}}+(?:\.{_WORD}*+){{0,2}}")),
    # The text before the marker is not masked: a stream cannot distinguish it from a word until the rest arrives.
    (".atlasv1.", ("terraform_token", re.compile(rf"(?<=[A-Za-z0-9]{{14}})\.atlasv1\.{_WORD}{{16,}}+", re.ASCII))),
    ("Q~", ("azure_client_secret", re.compile(r"(?<=[0-9])Q~(?:\.?[A-Za-z0-9_~-]){28,}", re.ASCII))),
    (_BEGIN, ("private_key", _KEY)),
)
KINDS = frozenset(kind for _, (kind, _) in SHAPES) | {form.kind for form in FORMATS}
#: The markers of SHAPES → an expression that matches the text after the marker of a token.
MARKERS = {
    "sk-": re.compile(rf"{_WORD}{{16}}", re.ASCII),
    "aok_": re.compile(rf"{_WORD}{{16}}", re.ASCII),
    ":AA": re.compile(rf"{_WORD}{{28}}", re.ASCII),
    "eyJ": re.compile(rf"{_WORD}{{8}}", re.ASCII),
    ".atlasv1.": re.compile(rf"{_WORD}{{16}}", re.ASCII),
    "Q~": re.compile(r"[A-Za-z0-9_.~-]{28}", re.ASCII),
    _BEGIN: re.compile("[A-Z]"),
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
    if secret_places.may_be_in_command(text, lower):
        spans += secret_places.find_in_commands(text, lower)
    if has_auth or secret_places.may_be_in_statement(lower):
        spans += secret_places.find_in_statements(text, lower)
    if secret_urls.may_be_in(text):
        spans += secret_urls.find(text)
    return spans


def unfinished(text: str, lower: str) -> int:
    """Return the position from which further text could complete a secret; else the length of the text."""
    begins = [secret_names.unfinished(text, lower), vendor_tokens.unfinished(text)]
    if "-" in text and (key := _OPEN_KEY.search(text)):
        begins.append(key.start())
    if secret_places.may_be_in_command(text, lower):
        begins.append(secret_places.unfinished_command(text, lower))
    if "auth" in lower or secret_places.may_be_in_statement(lower):
        begins.append(secret_places.unfinished_statement(text, lower))
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
    """Yield the tokens in `text`. At one position, a vendor's format takes precedence over the other shapes."""
    of_vendors, markers = vendor_tokens.find(text)
    yield from of_vendors.values()
    for marker, (kind, pattern) in SHAPES if markers else ():
        for match in pattern.finditer(text) if marker in markers else ():
            if match.start() not in of_vendors and _is_token(kind, match[0]):
                yield SecretSpan(match.start(), match.end(), match.start(), kind)


def _is_token(kind: str, token: str) -> bool:
    """Return whether the match of a shape is a token."""
    if kind == "private_key":
        # A key has more than its first and last line.
        return _LINE.search(token) is not None
    if kind != "api_key":
        return True
    # Packages and CSS classes are also named sk-…, but an API key contains digits among its letters.
    body = token[len("sk-") :][:_LOOK]
    is_long = len(body) >= 40 and body.lower() != body and DIGIT.search(body) is not None
    parts = re.split("[_-]", body)
    return is_long or any(len(part) >= 12 and DIGIT.search(part) and LETTER.search(part) for part in parts)


def _userinfo(text: str) -> Iterator[SecretSpan]:
    """Yield the passwords in URLs."""
    for at in each(text, "://"):
        match = _USERINFO.match(text, at + 3)
        if match and not TEMPLATE.match(match[1]):
            yield SecretSpan(*match.span(1), at, "url_password")


def _headers(text: str, lower: str) -> Iterator[SecretSpan]:
    """Yield the credentials after "Bearer", "Basic" and "Authorization"."""
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
    """Return whether a value after "Authorization:" is a credential, and not prose or a template."""
    if DIGIT.search(value):
        return not TEMPLATE.match(value)
    return value[1:] != value[1:].lower() and value != value.upper() and not TEMPLATE.match(value)


#: Kinds that are recognised by the text before the value: a name, a header, a command, a statement or an address.
BY_PLACE = frozenset(
    {*secret_names.KINDS, *secret_places.COMMAND_KINDS, *secret_places.STATEMENT_KINDS, *secret_urls.KINDS}
    | {"authorization", "basic", "bearer", "url_password", SECRET}
)
BUILT_IN_KINDS = BY_PLACE | KINDS
#: Kinds that no project may disable: an API key of this site gives access to it.
ALWAYS_MASKED = frozenset({"agentops_key"})
