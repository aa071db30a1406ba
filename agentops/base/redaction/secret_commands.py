"""Detection of secrets by their position in a command, a header or a .netrc file."""

from __future__ import annotations

import re
from collections.abc import Iterator

from agentops.base.redaction.secret_names import DIGIT, TEMPLATE, SecretSpan, each

_LOOK_BACK = 256
# JSON nested four times has at most fifteen backslashes before a quote.
_QUOTE = r"\\{0,15}[\"']?"
_COOKIE_NAME = "[A-Za-z0-9!#$%&*+.^_`|~-]{1,64}+"
_COOKIE = re.compile(rf"{_QUOTE}\s{{0,2}}[:=,]\s{{0,3}}{_QUOTE}({_COOKIE_NAME}=[^\r\n\"'\\<>{{}}]{{0,4096}}+)")
_COOKIE_HEAD = re.compile(rf"{_QUOTE}\s{{0,2}}[:=,]\s{{0,3}}{_QUOTE}({_COOKIE_NAME})\Z")
_COOKIE_VALUE = re.compile(r"=([^;\s]{8,512})")
#: Characters that may follow the name of a header in JSON, where "?" represents all non-ASCII characters.
AFTER_HEADER = frozenset("\\\"'`:=, ?")
_NETRC = re.compile(r"login\s{1,8}\S{1,64}+\s{1,8}password\s{1,8}([^\s\"']*+)")
_VALUE = r"\\{0,15}[\"']?([^\s\"'\\|;&)]*+)"
_HEX = "[0-9A-Fa-f]"
_REST = r"[^\n|;]*\Z"


def _program(name: str) -> str:
    """Return a pattern for a name at the start of a word, or after an escape such as \\n, %0A or \\u2192."""
    escape = rf"(?<=\\[nrt]{name})|(?<=%{_HEX}{_HEX}{name})|(?<=\\u{_HEX}{_HEX}{_HEX}{_HEX}{name})"
    # The name comes first in the pattern, because the search is then faster.
    return rf"{name}(?:(?<!\w{name})|{escape})"


_CURL = rf"{_program('curl')}\b{_REST}"
_DATABASE = rf"(?:{_program('mysql')}|{_program('mariadb')})[a-z_-]{{0,12}}\b{_REST}"
#: Programs that take a secret after a short option, with the pattern of the option and the kind of the secret.
_OPTIONS = (
    (
        _CURL,
        rf"(?:-u|-U|--user|--proxy-user)(?:\s{{1,2}}|=)?{_QUOTE}[^\s:\"'\\]{{0,64}}:{_VALUE}",
        "password",
    ),
    (
        _CURL,
        rf"(?:-b|--cookie)(?:\s{{1,2}}|=){_QUOTE}({_COOKIE_NAME}(?:=[^\r\n\"'\\<>{{}}]{{0,4096}}+)?)",
        "cookie",
    ),
    (_DATABASE, rf"-p(?![=-]){_VALUE}", "password"),
    (rf"{_program('sshpass')}\s{{0,4}}\Z", rf"-p\s{{0,2}}{_VALUE}", "password"),
    (rf"{_program('docker')}\s[^\n|;]{{0,32}}\blogin\b{_REST}", rf"-p\s{{1,2}}{_VALUE}", "password"),
    (rf"{_program('redis-cli')}\b{_REST}", rf"-a\s{{1,2}}{_VALUE}", "password"),
)
_COMMANDS = tuple((re.compile(program), re.compile(option), kind) for program, option, kind in _OPTIONS)
PROGRAMS = ("curl", "mysql", "mariadb", "sshpass", "docker", "redis-cli")
FIRSTS = frozenset("uUpab-")
_LONG = ("user", "proxy-user", "cookie")


def may_be_in(text: str, lower: str) -> bool:
    """Return whether the text may contain such a secret. Faster than starting an empty iteration."""
    return " -" in text or "cookie" in lower or "login" in text


def find(text: str, lower: str) -> Iterator[SecretSpan]:
    """Yield the secrets in commands, cookie headers and .netrc files."""
    for value, context, kind in _values(text, lower):
        begin, secret = value.start(1), value[1].rstrip()
        if _IS_SECRET[kind](secret):
            yield SecretSpan(begin, begin + len(secret), context, kind)


def unfinished(text: str, lower: str) -> int:
    """Return the position of a value that the end of the text truncates, or the length of the text."""
    size = len(text)
    return min((value.start(1) for value, _, _ in _values(text, lower) if value.end(1) == size), default=size)


def _values(text: str, lower: str) -> Iterator[tuple[re.Match[str], int, str]]:
    """Yield the candidate values, with the start of their evidence and their kind."""
    if " -" in text:
        yield from _option_spans(text)
    if "cookie" in lower:
        yield from _cookie_spans(text, lower)
    if "login" in text and "password" in text:
        for match in _NETRC.finditer(text):
            yield match, match.start(), "password"


def _cookie_spans(text: str, lower: str) -> Iterator[tuple[re.Match[str], int, str]]:
    position = 0
    for at in each(lower, "cookie"):
        match = at >= position and (_COOKIE.match(text, at + 6) or _COOKIE_HEAD.match(text, at + 6))
        if match:
            yield match, at, "cookie"
            position = match.end()


def _option_spans(text: str) -> Iterator[tuple[re.Match[str], int, str]]:
    for at in each(text, " -"):
        if text[at + 2 : at + 3] in FIRSTS and (text[at + 2] != "-" or text.startswith(_LONG, at + 3)):
            before = text[max(0, at - _LOOK_BACK) : at]
            for program, option, kind in _COMMANDS if any(name in before for name in PROGRAMS) else ():
                if (match := option.match(text, at + 1)) and program.search(before):
                    yield match, at, kind


def _is_password(value: str) -> bool:
    return len(value) > 3 and not TEMPLATE.match(value)


def _is_cookie(value: str) -> bool:
    values = _COOKIE_VALUE.findall(value)
    return any((DIGIT.search(held) or held.lower() != held) and not TEMPLATE.match(held) for held in values)


_IS_SECRET = {"password": _is_password, "cookie": _is_cookie}
KINDS = frozenset(_IS_SECRET)
