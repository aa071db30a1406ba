"""Detection of secrets in URLs: webhook addresses, links that give access to this site, and signatures in queries."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from agentops.base.redaction.secret_names import DIGIT, LETTER, SecretSpan, each


class _Address(NamedTuple):
    """The addresses of a kind of secret."""

    kind: str
    #: A text that all these addresses contain.
    marker: str
    #: The text after the marker, with the secret as group 1.
    rest: re.Pattern[str]
    #: The minimum length of the secret.
    least: int


def _address(kind: str, marker: str, rest: str, least: int) -> _Address:
    """Compile an address. In `rest`, `~` represents a slash."""
    return _Address(kind, marker, re.compile(rest.replace("~", _SLASH), re.ASCII), least)


# Each level of JSON may escape slashes. The end of the text may truncate an escape.
_SLASH = r"(?:\\{0,7}/|\\{1,7}\Z)"
_PERCENT = r"%[0-9A-Fa-f]{2}|%[0-9A-Fa-f]?\Z"
_WORD = "[A-Za-z0-9_-]"
_VALUE = rf"((?:[A-Za-z0-9+_-]|{_PERCENT}|~){{1,1024}}={{0,2}})"
_SITE_LINK = re.compile(r"[A-Za-z0-9_.-]{16,}+(?:(?::|%3[Aa])[A-Za-z0-9_-]+){1,2}")
ADDRESSES = (
    _address("slack_webhook", "slack.com", "~(?:services|workflows|triggers)~((?:[A-Za-z0-9+_-]|~){0,200})", 24),
    _address("discord_webhook", "/webhooks", rf"~[0-9]{{15,20}}~({_WORD}*+)", 40),
    _address("teams_webhook", "office.com", rf"~webhook(?:b2)?~((?:{_WORD}|@|{_PERCENT}|~){{0,400}})", 64),
    _address("zapier_webhook", "hooks.zapier.com", rf"~hooks~catch~((?:{_WORD}|~){{0,64}})", 8),
    _address("ifttt_key", "maker.ifttt.com", rf"~trigger~{_WORD}{{1,64}}(?:~json)?~with~key~({_WORD}*+)", 20),
    # Azure's shared access signatures. The & before them may be escaped for JSON (\u0026) or HTML (&amp;).
    _address("url_signature", "sig=", rf"(?<=[?&;6]sig=){_VALUE}", 40),
    _address("url_signature", "-Signature=", _VALUE, 40),
    # Links of this site: data, a time and a signature, with colons between them.
    *(
        _address("agentops_link", page, rf"~((?:{_WORD}|[.:]|{_PERCENT}){{1,500}})", 50)
        for page in ("/invitations", "/approvals", "/shared")
    ),
)
KINDS = frozenset(address.kind for address in ADDRESSES)
MARKERS = tuple(dict.fromkeys(address.marker for address in ADDRESSES))


# Each pattern begins with one character, which makes its search fast.
_GATES = (
    re.compile(r"/(?:webhook|services|workflows|triggers?|hooks|invitations|approvals|shared)"),
    re.compile(r"=(?:(?<=sig=)|(?<=-Signature=))"),
)


def may_be_in(text: str) -> bool:
    """Return whether the text may contain a secret of an address. Fast, because most texts contain none."""
    return _GATES[0].search(text) is not None or _GATES[1].search(text) is not None


def find(text: str) -> Iterator[SecretSpan]:
    """Yield the secrets in addresses."""
    for address in ADDRESSES:
        if address.marker in text:
            for match, at in _matches(address, text):
                if _is_secret(address, match[1]):
                    yield SecretSpan(*match.span(1), at, address.kind)


def unfinished(text: str) -> int:
    """Return the position of a secret that the end of the text truncates; else the length of the text."""
    size = len(text)
    return min(
        (
            match.start(1)
            for address in ADDRESSES
            if address.marker in text
            for match, _ in _matches(address, text)
            if match.end() == size
        ),
        default=size,
    )


def may_follow(text: str, marker: str, end: int) -> bool:
    """Return whether a secret may follow the marker that ends at `end`."""
    return any(address.marker == marker and address.rest.match(text, end) for address in ADDRESSES)


def _is_secret(address: _Address, value: str) -> bool:
    if address.kind == "agentops_link" and not _SITE_LINK.match(value):
        return False
    return len(value) >= address.least and DIGIT.search(value) is not None and LETTER.search(value) is not None


def _matches(address: _Address, text: str) -> Iterator[tuple[re.Match[str], int]]:
    for at in each(text, address.marker):
        if match := address.rest.match(text, at + len(address.marker)):
            yield match, at
