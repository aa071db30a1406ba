"""Detection of secrets by their position in a command, a header, a statement or a file of a program.

The first part is about options of commands, cookies and .netrc files. The second part, `STATEMENTS`, is about SQL,
settings of Docker and npm, htpasswd and openssl.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from typing import NamedTuple

from agentops.base.redaction.secret_names import DIGIT, PASSWORD, TEMPLATE, SecretSpan, after_escape, each

#: Characters before an option in which the name of the program is searched.
_COMMAND_LOOK_BACK = 256
# JSON nested four times has at most fifteen backslashes before a quote.
_MAYBE_QUOTE = r"\\{0,15}[\"']?"
_COOKIE_NAME = "[A-Za-z0-9!#$%&*+.^_`|~-]{1,64}+"
_COOKIE = re.compile(
    rf"{_MAYBE_QUOTE}\s{{0,2}}[:=,]\s{{0,3}}{_MAYBE_QUOTE}({_COOKIE_NAME}=[^\r\n\"'\\<>{{}}]{{0,4096}}+)"
)
_COOKIE_HEAD = re.compile(rf"{_MAYBE_QUOTE}\s{{0,2}}[:=,]\s{{0,3}}{_MAYBE_QUOTE}({_COOKIE_NAME})\Z")
_COOKIE_VALUE = re.compile(r"=([^;\s]{8,512})")
#: Characters that may follow the name of a header in JSON. "?" represents all characters that are not ASCII.
AFTER_HEADER = frozenset("\\\"'`:=, ?")
_NETRC = re.compile(r"login\s{1,8}\S{1,64}+\s{1,8}password\s{1,8}([^\s\"']*+)")
_VALUE = r"\\{0,15}[\"']?([^\s\"'\\|;&)]*+)"
_REST = r"[^\n|;]*\Z"


def _program(name: str) -> str:
    """Return a pattern for a name at the start of a word, or after an escape."""
    # The name comes first in the pattern, because the search is then faster.
    return rf"{name}(?:(?<!\w{name})|{after_escape(name)})"


_CURL = rf"{_program('curl')}\b{_REST}"
_DATABASE = rf"(?:{_program('mysql')}|{_program('mariadb')})[a-z_-]{{0,12}}\b{_REST}"
#: Patterns of a program, and of its option with a secret, and the kind of the secret.
_OPTIONS = (
    (
        _CURL,
        rf"(?:-u|-U|--user|--proxy-user)(?:\s{{1,2}}|=)?{_MAYBE_QUOTE}[^\s:\"'\\]{{0,64}}:{_VALUE}",
        "password",
    ),
    (
        _CURL,
        rf"(?:-b|--cookie)(?:\s{{1,2}}|=){_MAYBE_QUOTE}({_COOKIE_NAME}(?:=[^\r\n\"'\\<>{{}}]{{0,4096}}+)?)",
        "cookie",
    ),
    (_DATABASE, rf"-p(?![=-]){_VALUE}", "password"),
    (rf"{_program('sshpass')}\s{{0,4}}\Z", rf"-p\s{{0,2}}{_VALUE}", "password"),
    (rf"{_program('docker')}\s[^\n|;]{{0,32}}\blogin\b{_REST}", rf"-p\s{{1,2}}{_VALUE}", "password"),
    (rf"{_program('redis-cli')}\b{_REST}", rf"-a\s{{1,2}}{_VALUE}", "password"),
)
_COMMANDS = tuple((re.compile(program), re.compile(option), kind) for program, option, kind in _OPTIONS)
PROGRAMS = ("curl", "mysql", "mariadb", "sshpass", "docker", "redis-cli")
#: The first characters of the options, after a hyphen.
FIRSTS = frozenset("uUpab-")
#: The long options.
_LONG = ("user", "proxy-user", "cookie")


def may_be_in_command(text: str, lower: str) -> bool:
    """Return whether `find_in_commands` may find a secret. Faster than starting an empty iteration."""
    return " -" in text or "cookie" in lower or "login" in text


def find_in_commands(text: str, lower: str) -> Iterator[SecretSpan]:
    """Yield the secrets in commands, cookie headers and .netrc files."""
    for value, context, kind in _values(text, lower):
        begin, secret = value.start(1), value[1].rstrip()
        if _IS_SECRET[kind](secret):
            yield SecretSpan(begin, begin + len(secret), context, kind)


def unfinished_command(text: str, lower: str) -> int:
    """Return the position of a value that the end of the text truncates; else the length of the text."""
    size = len(text)
    return min((value.start(1) for value, _, _ in _values(text, lower) if value.end(1) == size), default=size)


def _values(text: str, lower: str) -> Iterator[tuple[re.Match[str], int, str]]:
    """Yield the matches of possible secrets (group 1), with the start of their evidence and their kind."""
    if " -" in text:
        yield from _option_spans(text)
    if "cookie" in lower:
        yield from _cookie_spans(text, lower)
    if "login" in text and "password" in text:
        for match in _NETRC.finditer(text):
            yield match, match.start(), "password"


def _cookie_spans(text: str, lower: str) -> Iterator[tuple[re.Match[str], int, str]]:
    """Yield the cookies after the names of headers, as in `_values`."""
    position = 0
    for at in each(lower, "cookie"):
        match = at >= position and (_COOKIE.match(text, at + 6) or _COOKIE_HEAD.match(text, at + 6))
        if match:
            yield match, at, "cookie"
            position = match.end()


def _option_spans(text: str) -> Iterator[tuple[re.Match[str], int, str]]:
    """Yield the values of options with a secret, as in `_values`."""
    for at in each(text, " -"):
        if text[at + 2 : at + 3] in FIRSTS and (text[at + 2] != "-" or text.startswith(_LONG, at + 3)):
            before = text[max(0, at - _COMMAND_LOOK_BACK) : at]
            for program, option, kind in _COMMANDS if any(name in before for name in PROGRAMS) else ():
                if (match := option.match(text, at + 1)) and program.search(before):
                    yield match, at, kind


def _is_password(value: str) -> bool:
    return len(value) > 3 and not TEMPLATE.match(value)


def _is_cookie(value: str) -> bool:
    values = _COOKIE_VALUE.findall(value)
    return any((DIGIT.search(held) or held.lower() != held) and not TEMPLATE.match(held) for held in values)


_IS_SECRET = {"password": _is_password, "cookie": _is_cookie}
COMMAND_KINDS = frozenset(_IS_SECRET)


_QUOTE = r"\\{0,15}[\"']"
_GAP = r"(?:\s|\\[nrt]){1,4}"
_QUOTED = rf"{_QUOTE}([^\"'\\\n]{{1,256}}+)"


class _Statement(NamedTuple):
    """A statement, or a line of a file, that contains a secret."""

    kind: str
    #: A word of the statement, in lower case.
    marker: str
    #: The text after the marker, with the secret as the last group.
    rest: re.Pattern[str]
    #: The text before the marker.
    before: re.Pattern[str] | None
    #: Whether the marker is case-insensitive, as in SQL.
    any_case: bool


def _statement(kind: str, marker: str, rest: str, before: str = "", *, any_case: bool = False) -> _Statement:
    flags = re.IGNORECASE if any_case else re.NOFLAG
    return _Statement(kind, marker, re.compile(rest, flags), re.compile(before, flags) if before else None, any_case)


_BASE64 = "([A-Za-z0-9+/]++={0,2})"
#: Characters before a marker that are searched.
_LOOK_BACK = 200
_FLAG = r"-[A-Za-z0-9]{1,12}\s{1,4}"
_FLAGS = rf"\s{{1,4}}(?=(?:{_FLAG}){{0,3}}-[A-Za-z0-9]{{0,8}}b)"
_ARGUMENT, _SECRET_ARGUMENT = r"[^\s-]\S{0,255}+\s{1,4}", r"[\"']?([^\s\"';|&]{1,256}+)"
STATEMENTS = (
    # CREATE USER … IDENTIFIED BY '…', ALTER ROLE … PASSWORD '…', SET PASSWORD FOR … = PASSWORD('…')
    _statement(
        PASSWORD,
        "identified",
        rf"(?:{_GAP}with{_GAP}\S{{1,64}}+)?{_GAP}(?:by|as)(?:{_GAP}password)?{_GAP}{_QUOTED}",
        rf"(?:user|role|to|exists){_GAP}(?!is\b|are\b|was\b|be\b)\S{{1,128}}+{_GAP}\Z",
        any_case=True,
    ),
    _statement(
        PASSWORD,
        "password",
        rf"(?:{_GAP}for{_GAP}[^\s=]{{1,128}}+\s{{0,4}}=\s{{0,4}}|\s?\(|{_GAP}){_QUOTED}",
        rf"(?:(?:create|alter){_GAP}(?:role|user|login|group)\b[^;]*|set{_GAP}(?:password\b[^;]*)?|encrypted{_GAP})\Z",
        any_case=True,
    ),
    _statement("basic", "auth", rf"{_QUOTE}\s{{0,4}}:\s{{0,4}}{_QUOTE}{_BASE64}", rf"{_QUOTE}_?\Z"),
    _statement("basic", "_auth", rf"\s{{0,2}}=\s{{0,2}}[\"']?{_BASE64}"),
    _statement(
        PASSWORD,
        "htpasswd",
        rf"{_FLAGS}(?=(?:{_FLAG}){{0,3}}-[A-Za-z0-9]{{0,8}}n)(?:{_FLAG}){{1,4}}{_ARGUMENT}{_SECRET_ARGUMENT}",
    ),
    _statement(PASSWORD, "htpasswd", rf"{_FLAGS}(?:{_FLAG}){{1,4}}{_ARGUMENT}{_ARGUMENT}{_SECRET_ARGUMENT}"),
    _statement(PASSWORD, " pass:", r"([^\s\"'\\;|&]{1,256}+)", r"-pass(?:in|out)?\s?\Z"),
)
#: Part of the markers → their statements. Most texts contain none of the parts, so few statements are searched for.
_BY_PART = {
    part: tuple(statement for statement in STATEMENTS if part in statement.marker)
    for part in ("pass", "auth", "identified")
}
STATEMENT_KINDS = frozenset(statement.kind for statement in STATEMENTS)
#: The case-sensitive markers.
MARKERS = tuple(dict.fromkeys(statement.marker for statement in STATEMENTS if not statement.any_case))


def may_be_in_statement(lower: str) -> bool:
    """Return whether the text may contain a marker without "auth". Faster than starting an empty iteration."""
    return "pass" in lower or "identified" in lower


def find_in_statements(text: str, lower: str) -> Iterator[SecretSpan]:
    """Yield the secrets in statements and files. `lower` is the text in lower case."""
    for statement, match, at in _matches(text, lower):
        group = match.lastindex or 0
        if _is_secret(statement.kind, match[group]):
            yield SecretSpan(*match.span(group), at, statement.kind)


def unfinished_statement(text: str, lower: str) -> int:
    """Return the position of a value that the end of the text truncates; else the length of the text."""
    size = len(text)
    return min(
        (match.start(match.lastindex or 0) for _, match, _ in _matches(text, lower) if match.end() == size),
        default=size,
    )


def may_follow(text: str, marker: str, end: int) -> bool:
    """Return whether a value may follow the marker that ends at `end`."""
    return any(statement.marker == marker and statement.rest.match(text, end) for statement in STATEMENTS)


def is_basic(value: str) -> bool:
    """Return whether a value is base64 of a printable "user:password"."""
    try:
        plain = base64.b64decode(value[:1024], validate=True).decode()
    except (binascii.Error, ValueError):
        return False
    return ":" in plain and plain.isprintable()


def _matches(text: str, lower: str) -> Iterator[tuple[_Statement, re.Match[str], int]]:
    """Yield the statements in a text, each with the match of its rest and the position of its marker."""
    for part, statements in _BY_PART.items():
        for statement in statements if part in lower else ():
            for at in each(lower if statement.any_case else text, statement.marker):
                match = statement.rest.match(text, at + len(statement.marker))
                if match and (statement.before is None or statement.before.search(text[max(0, at - _LOOK_BACK) : at])):
                    yield statement, match, at


def _is_secret(kind: str, value: str) -> bool:
    """Return whether a value in a statement looks like a secret of this kind."""
    if kind == "basic":
        return is_basic(value)
    return (
        len(value) > 3 and len(set(value)) > 1 and not TEMPLATE.match(value) and (kind == PASSWORD or len(value) >= 32)
    )
