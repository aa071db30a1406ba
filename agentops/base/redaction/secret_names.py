"""Detection of secrets by their names: `password=…`, `"api_key": "…"`, `--token …`, .env lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple


class SecretSpan(NamedTuple):
    """The range of a secret in a text. `context` is the start of the evidence, such as a name or a URL scheme."""

    begin: int
    end: int
    context: int
    kind: str


# After a strong name almost any value is a secret. After a weak name, the value must also look random.
STRONG = ("pass", "pwd")
WEAK = ("secret", "token", "key")
PASSWORD = "password"  # noqa: S105 (a kind of secret)
KINDS = frozenset({PASSWORD, *WEAK})
#: Minimum length of the value after a weak name. Shorter values are words, numbers and indexes.
MIN_LENGTH = {"secret": 8, "key": 8, "token": 12}

DIGIT = re.compile("[0-9]")
LETTER = re.compile("[A-Za-z]")
_SPACE = re.compile(r"\s")
# ${PW}, $PW, $1, {{ pw }}, <pw>, ****, %s, your-key, …: placeholders for a secret.
TEMPLATE = re.compile(
    r"\$(?:[{(]|[A-Z_][A-Z0-9_]{0,64}\Z|[a-z_]{1,64}\Z|[0-9]\Z)|[{<(\[]|\*\*|%[s(]|[Yy]our[_ -]|YOUR_|\.\.\."
)

#: Maximum characters of a name.
_MAX_NAME = 48
#: Characters before a weak name by which its kind is recognised, such as "continuation_".
_MAX_KIND = 14
#: Characters of a value with full stops that are checked.
_HEAD = 256
#: Characters of a value that are checked for variety.
_LOOK = 64
_NAME_CHARS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_STRONG_TAIL = re.compile(r"(?:words?|wd|phrase|code)?")
_KEY_KINDS = re.compile(r"(?:api|access|secret|private|encryption|signing|account|auth|master|shared|client)[_.-]?\Z")
_PAGING = re.compile(r"(?:page|next|continuation|cursor|sync|pad|eos|bos|unk|mask|stop|special|max)[_-]?\Z")

#: Characters that may follow a name with a value. Checked first, because the patterns below take longer.
_AFTER_NAME = frozenset("0123456789\\\"'`] \t=:%")
_ASSIGN = re.compile(r"[0-9]{0,2}\\{0,15}[\"'`]?\]?(\s{0,4}(?:=>|:=|==?|:|%3[Dd])\s{0,4})")
# In {"name": "password", "value": "…"} the name is a value itself.
_PAIR = re.compile(r"\\{0,15}[\"']\s{0,8},\s{0,8}\\{0,15}[\"'](?:value|Value)\\{0,15}[\"']\s{0,4}(:)\s{0,4}")
_FLAG = re.compile(r"(\s{1,2})(?!-)")
# A quoted value ("…", '…', \"…\") is in group 1, 2 or 3; the start of a bare one is in group 4. The end of the text
# closes a quote, because previews are truncated, and streams are checked before they end. Only the start of a bare
# value is matched, so that the time for a=b=c=d=… is linear.
_VALUE = re.compile(
    r"\"((?:[^\"\\\n]|\\[^\n]|\\\Z){1,512})(?:\"|\Z)"
    r"|'((?:[^'\\\n]|\\[^\n]|\\\Z){1,512})(?:'|\Z)"
    r"|\\{1,15}[\"']([^\"'\\\n]{1,512}+)(?:\\|\Z)"
    r"|([^\s\"'`&;,<>\\:=]{0,256}+(?:[:=]{1,2}[^\s\"'`&;,<>\\:=]{0,256}+){0,2})"
)
_BARE_WHOLE = re.compile(r"[^\s\"'`&;,<>\\]*+")
#: Characters at the end of a bare value that belong to the sentence or code around it.
_BARE_END = ")]}.:|"
#: The group of a bare value in _VALUE.
_BARE = 4

#: Values after a strong name that are no passwords.
_NO_PASSWORD = frozenset(
    (
        *("none", "null", "nil", "true", "false", "undefined", "str", "string", "text", "bool", "int", "bytes"),
        *("any", "optional", "required", "invalid", "password", "passwd", "pwd", "hidden", "redacted", "masked"),
        *("unset", "empty", "input", "field", "char", "varchar"),
    )
)
_SENTENCE = re.compile(
    r"\b(?:an?|and|are|at|be|is|must|not|of|or|please|the|this|too?|with|your|field|password|required)\b",
    re.I,
)
_WORDS = re.compile(r"[^\W\d_][^\W\d]{0,64}(?:[-/][^\W\d]{1,64}){0,8}")
_CALL = re.compile(r"\.[a-z]{1,16}\(")
_CODE = re.compile(r"[.A-Za-z_][\w.]{0,128}[(\[]|[A-Za-z_]\w{0,64}(?:\.[A-Za-z_]\w{0,64}){1,8}\Z", re.ASCII)
_SNAKE = re.compile(r"[A-Za-z]{2,20}[0-9]{0,2}(?:_[A-Za-z]{1,20}[0-9]{0,2}){1,10}\Z", re.ASCII)
_PATH = re.compile(
    r"[~.]{1,2}/|[~.]?[a-z0-9_.-]{0,64}/[a-z0-9_./-]{1,256}\Z"
    r"|/(?:[\w.-]{1,64}/){1,8}[\w.-]{0,64}\Z|[a-z]{2,10}://",
    re.ASCII,
)


def lower_case(text: str) -> str:
    """Return the text in lower case, with the same positions: characters outside ASCII become "?"."""
    return text.lower() if text.isascii() else text.encode("ascii", "replace").decode("ascii").lower()


def after_escape(text: str) -> str:
    """Return a pattern that matches at the end of `text` if an escape such as \\n, %3D or \\u0022 precedes the text."""
    digit = "[0-9A-Fa-f]"
    return rf"(?<=\\[nrt]{text})|(?<=%{digit}{digit}{text})|(?<=\\u{digit}{digit}{digit}{digit}{text})"


def each(text: str, word: str) -> Iterator[int]:
    """Yield the positions of `word` in `text`."""
    at = text.find(word)
    while at >= 0:
        yield at
        at = text.find(word, at + len(word))


def find(text: str, lower: str) -> Iterator[SecretSpan]:
    """Yield the secrets after names such as `password`. `lower` is `lower_case(text)`."""
    for word in STRONG:
        if word in lower:  # much faster than starting an empty iteration
            yield from _secrets_after(text, lower, word, PASSWORD)
    for word in WEAK:
        if word in lower:
            yield from _secrets_after(text, lower, word, word)


def name_positions(lower: str) -> Iterator[int]:
    """Yield positions of names in JSON, at least one for each secret of `find` and `kind_of_member`.

    `lower`: the JSON text in lower case. See `json_values.marker_positions`.
    """
    for word in (*STRONG, *WEAK):
        kind = PASSWORD if word in STRONG else word
        for at in each(lower, word):
            end = _end(kind, lower, at + len(word))
            # "pass" alone is a verb in prose, but a name as a key in JSON.
            if lower[end : end + 1] in _AFTER_NAME and (lower[at - 1 : at] == '"' or _is_name(kind, lower, at, end)):
                yield at


def unfinished(text: str, lower: str) -> int:
    """Return the position of a value that the end of the text truncates; else the length of the text."""
    first = len(text)
    for word in (*STRONG, *WEAK):
        kind = PASSWORD if word in STRONG else word
        for at in each(lower, word) if word in lower else ():
            end = _end(kind, lower, at + len(word))
            if lower[end : end + 1] in _AFTER_NAME and _is_name(kind, lower, at, end):
                first = min(first, _unfinished_value(text, at, end))
    return first


def _unfinished_value(text: str, at: int, end: int) -> int:
    """Return the position of the value after the name `at..end`, if the end of the text truncates it."""
    separator = _separator(text, at, end)
    match = separator and _VALUE.match(text, separator.end())
    if not match or match.lastindex is None:
        return len(text)
    begin = match.start(match.lastindex)
    bare = _BARE_WHOLE.match(text, begin) if match.lastindex == _BARE else None
    return begin if len(text) in (match.end(), bare and bare.end()) else len(text)


def kind_of_member(name: str, value: str) -> str | None:
    """Return the kind of secret that the key of a value in a JSON object indicates, or None."""
    word = _word_of(name[-_MAX_NAME:])
    if word is None:
        return None
    if word == PASSWORD:
        return word if _is_password(value, quoted=True, tight=True) else None
    return word if _is_random(word, value, quoted=True) else None


@lru_cache(maxsize=4096)
def _word_of(name: str) -> str | None:
    """Return the kind of secret that the end of a key indicates, or None. Cached, because keys repeat."""
    lower = lower_case(name).rstrip("0123456789")
    for word in STRONG:
        at = lower.rfind(word)
        end = _strong_end(lower, at + len(word))
        if at >= 0 and end == len(lower) and (lower == word or _is_strong_name(lower, at, end)):
            return PASSWORD
    if lower.endswith(("keys", "key-data")):
        lower = lower.removesuffix("s").removesuffix("-data")
    for word in WEAK:
        if lower.endswith(word) and _is_weak_name(word, lower[: -len(word)][-_MAX_KIND:]):
            return word
    return None


def _secrets_after(text: str, lower: str, word: str, kind: str) -> Iterator[SecretSpan]:
    """Yield the secrets after names that contain `word`. The search continues after the end of each secret."""
    position = 0
    for at in each(lower, word):
        end = _end(kind, lower, at + len(word))
        if at >= position and lower[end : end + 1] in _AFTER_NAME and _is_name(kind, lower, at, end):
            span = _value(text, at, end, kind)
            if span:
                yield span
                position = span.end


def _is_name(kind: str, lower: str, at: int, end: int) -> bool:
    """Return whether the word `at..end` is part of a name of a secret."""
    if kind == PASSWORD:
        return _is_strong_name(lower, at, end)
    return _is_weak_name(kind, lower[max(0, at - _MAX_KIND) : at])


def _end(kind: str, lower: str, at: int) -> int:
    """Return the end of the name whose word ends at `at`, such as that of DB_PASSWORD after "pass"."""
    if kind == PASSWORD:
        return _strong_end(lower, at)
    if kind != "key":
        return at
    if lower.startswith("-data", at):  # of a kubeconfig
        return at + len("-data")
    return at + lower.startswith("s", at)


def _strong_end(lower: str, at: int) -> int:
    match = _STRONG_TAIL.match(lower, at)
    return match.end() if match else at


def _is_strong_name(lower: str, at: int, end: int) -> bool:
    """Return whether a strong word is part of a name: "pass" alone is a verb, DB_PASS is a name.

    "pwd" can also be the working directory, but its value then looks like a path.
    """
    return lower.startswith("pwd", at) or end > at + 4 or (at > 0 and lower[at - 1] in "_-")


def _is_weak_name(word: str, before: str) -> bool:
    if word == "key":
        return _KEY_KINDS.search(before) is not None
    return word != "token" or _PAGING.search(before) is None


def _value(text: str, at: int, end: int, kind: str) -> SecretSpan | None:
    """Return the value after the name with the word `at..end`, or None if it does not look like a secret."""
    separator = _separator(text, at, end)
    match = separator and _VALUE.match(text, separator.end())
    if not separator or not match or match.lastindex is None:
        return None
    begin, quoted = match.start(match.lastindex), match.lastindex < _BARE
    value = match[match.lastindex] if quoted else match[_BARE].rstrip(_BARE_END)
    if kind != PASSWORD:
        is_secret = _is_random(kind, value, quoted=quoted)
    elif not quoted and _is_argument(value, text, begin + len(value)):
        is_secret = False
    else:
        is_secret = _is_password(value, quoted=quoted, tight=separator[1].upper() in ("=", "==", "%3D"))
    if not is_secret:
        return None
    whole = _BARE_WHOLE.match(text, begin)
    if not quoted and whole:
        value = whole[0].rstrip(_BARE_END)
    return SecretSpan(begin, begin + len(value), _name_start(text, at), kind)


def _separator(text: str, at: int, end: int) -> re.Match[str] | None:
    """Return the match of the text between the name with the word `at..end` and its value, or None."""
    separator = _ASSIGN.match(text, end) or _PAIR.match(text, end)
    if separator is None and text.startswith("--", _name_start(text, at)):
        separator = _FLAG.match(text, end)
    return separator


def _name_start(text: str, at: int) -> int:
    """Return the start of the name that contains the word at `at`: for DB_PASSWORD, the position of the D."""
    head = text[max(0, at - _MAX_NAME) : at]
    return at - len(head) + len(head.rstrip(_NAME_CHARS))


def _is_argument(value: str, text: str, end: int) -> bool:
    """Return whether the value is the name of a variable, as in login(password=pw)."""
    return text[end : end + 1] in (")", ",") and not DIGIT.search(value)


def _is_password(value: str, *, quoted: bool, tight: bool) -> bool:
    """Return whether a value can be a password, and not a template, code, a type or prose.

    `tight`: the value follows an equals sign, as in `a=b`, but not in `a: b`.
    """
    if len(value) < 4 or len(set(value[:_LOOK])) < 2 or TEMPLATE.match(value) or value.lower() in _NO_PASSWORD:
        return False
    if quoted:
        is_sentence = " " in value and _SENTENCE.search(value)
        return value[0] not in " ,)+:}]" and not is_sentence and not _CALL.match(value)
    if _CODE.match(value) or _PATH.match(value):
        return False
    return tight or (len(value) >= 6 and not _WORDS.fullmatch(value))


def _is_random(word: str, value: str, *, quoted: bool) -> bool:
    """Return whether a value looks random: varied letters and digits, and neither a template, a path nor code."""
    if len(value) < MIN_LENGTH[word] or not DIGIT.search(value) or not LETTER.search(value):
        return False
    if len(set(value[:_LOOK])) < 6 or _SPACE.search(value):
        return False
    if TEMPLATE.match(value) or _PATH.match(value) or _CALL.match(value):
        return False
    return quoted or _has_random_part(value) or not (_CODE.match(value) or _SNAKE.match(value))


def _has_random_part(value: str) -> bool:
    """Return whether a value with full stops has a part that is no identifier of code, such as a Discord token."""
    parts = value[:_HEAD].split(".") if "." in value else ()
    return any(
        len(part) >= 18 and len(DIGIT.findall(part)) >= 3 and part.lower() != part and part.upper() != part
        for part in parts
    )
