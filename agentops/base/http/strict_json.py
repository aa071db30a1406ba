"""Strict JSON: the parser for all input, from the API, the command line and workers.

The standard parser accepts NaN and infinity, keeps the last of duplicate keys, and recurses until the stack overflows.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, NoReturn

import orjson

from agentops.base.refusals import Refusal

MIB = 1024 * 1024
BOM = "\ufeff"
#: Digits that Python converts to a number (sys.int_info.default_max_str_digits).
MAX_LITERAL = 4_300
NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
#: An escaped unpaired surrogate, in text without escaped backslashes.
LONE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)
#: Translates all digits to zeros.
_TO_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_CONTAINERS = frozenset({dict, list})
_SPACES = b" \t\r\n"
#: Integers from the negative of this to this are parsed the same by all parsers.
_SAFE = 2**53
#: The keys and indexes from the root to a value.
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Limits:
    """The largest input that is accepted."""

    depth: int = 64
    nodes: int = 50_000
    keys: int = 1_000
    key: int = 256
    string: int = 200_000
    #: Integers that every database, and most programs, can store exactly.
    integer: float = 2**63 - 1
    #: Whether lone surrogates are accepted, for the redactor to replace.
    lone_surrogates: bool = True
    #: Whether NaN and infinity, which Python's own writer outputs, are read as null.
    non_finite: bool = False


#: Limits of request bodies and agent definitions.
BODY = Limits()
#: Limits of recordings, which contain whole sessions and come from the operator.
FILE = Limits(
    nodes=5_000_000, keys=100_000, key=16_384, string=16 * MIB, integer=math.inf, lone_surrogates=False
)  # fmt: skip
#: Limits of imported files: programs write half a pair where they truncate a text, and invalid numbers such as NaN.
IMPORTED = replace(FILE, lone_surrogates=True, non_finite=True)


class NotJson(Refusal, ValueError):
    """Not JSON, or beyond a limit. `data` has `line` and `column`, or the `pointer` to the invalid value."""

    def __init__(self, code: str, status: int, text: str, **data: Any) -> None:
        super().__init__(text, code=code, status=status, **data)


def parse(data: bytes | str, limits: Limits = BODY) -> Any:
    """Return the value. Raises `NotJson`. Time is linear in the length of `data`."""
    raw = data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass")
    value = _parse_quickly(raw, limits)
    if value is not None:
        return value
    text = _decode(raw) if isinstance(data, bytes) else data
    if text.startswith(BOM):
        raise NotJson("invalid_json", 400, "begins with a byte order mark", line=1, column=1)
    has_long_strings = _check_raw(raw, limits)
    value = _parse_closely(text, limits)
    if has_long_strings:
        _check_strings(value, limits)
    return value


def has_lone_surrogate(raw: bytes) -> bool:
    """Return whether a JSON text has an escaped half of a surrogate pair."""
    return (b"\\ud" in raw or b"\\uD" in raw) and LONE.search(raw.replace(rb"\\", b"__")) is not None


def pointer(path: Iterable[str | int]) -> str:
    """Return an RFC 6901 JSON pointer."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)


def _parse_quickly(raw: bytes, limits: Limits) -> Any:
    """Return the value, or None if the text needs the slower check, because it is unusual or invalid."""
    # An upper bound of the number of values: characters inside strings are counted too.
    if len(raw) > limits.nodes <= sum(map(raw.count, (b",", b"[", b"{"))):
        return None
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    found = _look_at(value, limits, has_long_strings=len(raw) > limits.string)
    if found is None:
        return None
    plain = _without_escapes(raw)
    # Of duplicate keys, one is lost. A string that begins with a colon is counted too, and causes the slower check.
    if plain.translate(None, _SPACES).count(b'":') != found.keys:
        return None
    is_rare = found.has_floats and _has_rare_number(_skeleton(plain.split(b'"')))
    return None if is_rare else value


def _has_rare_number(skeleton: bytes) -> bool:
    """Return whether parsers read a number differently: a negative zero, an exponent, or more digits than 64 bits hold.

    A regular expression would take longer than parsing the document.
    """
    zeros = skeleton.translate(_TO_ZEROS)
    return b"-0" in skeleton or b"0e" in zeros or b"0E" in zeros or b"0" * 19 in zeros


class _Found(NamedTuple):
    """Properties of a parsed value."""

    #: The number of keys in all objects.
    keys: int
    has_floats: bool


def _look_at(value: Any, limits: Limits, *, has_long_strings: bool) -> _Found | None:
    """Return the properties of a value, or None if it exceeds a limit, or might."""
    number, depth, keys, has_floats, members = 0, 0, set[str](), False, [value]
    while members:
        types = set(map(type, members))
        if (int in types and not _are_safe(members)) or (has_long_strings and _has_long_string(members, limits)):
            return None
        has_floats = has_floats or float in types
        level = [item for item in members if type(item) in _CONTAINERS] if types & _CONTAINERS else []
        depth += bool(level)
        members = []
        for item in level:
            if type(item) is dict:
                number += len(item)
                keys.update(item)
                members.extend(item.values())
            else:
                members.extend(item)
        if max(map(len, level), default=0) > limits.keys and any(
            len(i) > limits.keys for i in level if type(i) is dict
        ):
            return None
    if depth > limits.depth or max(map(len, keys), default=0) > limits.key:
        return None
    return _Found(number, has_floats)


def _are_safe(members: list[Any]) -> bool:
    """Return whether all parsers read all integers the same."""
    return all(-_SAFE <= item <= _SAFE for item in members if type(item) is int)


def _has_long_string(members: list[Any], limits: Limits) -> bool:
    return any(len(item) > limits.string for item in members if type(item) is str)


def _parse_closely(text: str, limits: Limits) -> Any:
    try:
        return json.loads(
            text,
            parse_float=partial(_float, limits),
            parse_int=partial(_int, limits),
            parse_constant=partial(_constant, limits),
            object_pairs_hook=partial(_object, limits),
        )
    except json.JSONDecodeError as error:
        position = f"line {error.lineno}, column {error.colno}"
        raise NotJson("invalid_json", 400, f"{error.msg}: {position}", line=error.lineno, column=error.colno) from None


def _decode(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        _refuse_at(raw, error.start, "invalid_utf8", "no UTF-8")


def _check_raw(raw: bytes, limits: Limits) -> bool:
    """Check the limits before parsing. Return whether some string may be too long.

    Strings end at an unescaped quote. Up to the first error, the parser sees the same strings and brackets, so it
    never goes deeper than counted here.
    """
    plain = _without_escapes(raw)
    # Each string is a value or the key of one.
    if plain.count(b'"') > 4 * limits.nodes:
        raise _too_complex(limits)
    parts = plain.split(b'"')
    skeleton = _skeleton(parts)
    _check_depth(skeleton, limits)
    inside = sum(map(skeleton.count, (b",", b"[", b"{"))) - skeleton.count(b"[]") - skeleton.count(b"{}")
    if inside + 1 > limits.nodes:
        raise _too_complex(limits)
    # The expression alone would take half as long as parsing a document, and most have no surrogates.
    has_surrogates = not limits.lone_surrogates and (b"\\ud" in plain or b"\\uD" in plain)
    if has_surrogates and (lone := LONE.search(plain)):
        _refuse_at(raw, lone.start(), "invalid_json", "an unpaired surrogate")
    return len(raw) > limits.string and max(map(len, parts[1::2]), default=0) > limits.string


def _without_escapes(raw: bytes) -> bytes:
    """Return the text with escaped quotes and backslashes replaced, so that each quote begins or ends a string."""
    return raw.replace(rb"\\", b"__").replace(rb"\"", b"__") if b"\\" in raw else raw


def _skeleton(parts: list[bytes]) -> bytes:
    """Return the text without spaces, with each string reduced to a quote. `parts`: the text, split at its quotes."""
    return b'"'.join(parts[::2]).translate(None, _SPACES)


def _check_depth(skeleton: bytes, limits: Limits) -> None:
    depth = 0
    # More brackets than this exceed the limit on values at any depth.
    for bracket in skeleton.translate(None, NOT_BRACKETS)[: 2 * limits.nodes + 2]:
        depth += 1 if bracket in b"[{" else -1
        if depth > limits.depth:
            raise NotJson("json_too_deep", 400, f"nested too deeply: more than {limits.depth} levels")


def _object(limits: Limits, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > limits.keys:
        raise NotJson("json_too_complex", 413, f"an object has more than {limits.keys} keys")
    value = dict(pairs)
    if len(value) < len(pairs):
        keys: set[str] = set()
        duplicate = next(key for key, _ in pairs if key in keys or keys.add(key))  # type: ignore[func-returns-value]
        raise NotJson("duplicate_key", 400, f"duplicate key {duplicate[:64]!r}")
    if value and max(map(len, value)) > limits.key:
        raise NotJson("key_too_long", 413, f"a key has more than {limits.key} characters")
    return value


def _int(limits: Limits, literal: str) -> int:
    if len(literal) > MAX_LITERAL:
        raise NotJson("number_out_of_range", 400, f"a number has more than {MAX_LITERAL} digits")
    number = int(literal)
    if abs(number) > limits.integer:
        raise NotJson("number_out_of_range", 422, f"the number {literal[:64]} is out of range: write it as text")
    return number


def _float(limits: Limits, literal: str) -> float | None:
    if len(literal) > MAX_LITERAL:
        raise NotJson("number_out_of_range", 400, f"a number has more than {MAX_LITERAL} digits")
    number = float(literal)
    if math.isinf(number):
        _constant(limits, literal)
        return None
    # One database keeps -0.0, the other does not.
    return number or 0.0


def _constant(limits: Limits, literal: str) -> None:
    if limits.non_finite:
        return
    raise NotJson("non_finite_number", 400, f"{literal[:64]} is not a finite number")


def _check_strings(value: Any, limits: Limits) -> None:
    for path, text in _strings(value):
        if len(text) > limits.string:
            problem = f"a text has more than {limits.string} characters"
            raise NotJson("string_too_long", 413, problem, pointer=pointer(path))


def _strings(value: Any) -> Iterator[tuple[Path, str]]:
    todo: list[tuple[Any, Path]] = [(value, ())]
    while todo:
        item, path = todo.pop()
        if isinstance(item, str):
            yield path, item
        elif isinstance(item, dict):
            todo += [(member, (*path, key)) for key, member in item.items()]
        elif isinstance(item, list):
            todo += [(member, (*path, index)) for index, member in enumerate(item)]


def _too_complex(limits: Limits) -> NotJson:
    return NotJson("json_too_complex", 413, f"more than {limits.nodes} values")


def _refuse_at(raw: bytes, position: int, code: str, problem: str) -> NoReturn:
    line = raw.count(b"\n", 0, position) + 1
    column = len(raw[raw.rfind(b"\n", 0, position) + 1 : position].decode()) + 1
    raise NotJson(code, 400, f"{problem}: line {line}, column {column}", line=line, column=column)
