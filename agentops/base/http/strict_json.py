"""Strict JSON: the parser for the input of the API, the command line and workers.

Python's own parser accepts NaN and infinity, keeps the last of duplicate keys, and recurses until the stack overflows.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

import orjson

from agentops.base.refusals import Refusal

MIB = 1024 * 1024
BOM = "\ufeff"
#: Maximum digits that Python converts to a number (sys.int_info.default_max_str_digits).
MAX_LITERAL = 4_300
NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
#: An escaped unpaired surrogate, in a text whose escaped backslashes were replaced.
LONE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)
#: Translates all digits to zeros.
_TO_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_CONTAINERS = frozenset({dict, list})
_SPACES = b" \t\r\n"
#: All parsers read integers from -_SAFE to _SAFE as the same number.
_SAFE = 2**53
#: The keys and indexes from the root to a value.
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Limits:
    """The largest input that is accepted."""

    #: Maximum nesting of objects and lists.
    depth: int = 64
    #: Maximum number of values.
    nodes: int = 50_000
    #: Maximum number of keys of an object.
    keys: int = 1_000
    #: Maximum characters of a key.
    key: int = 256
    #: Maximum characters of a text.
    string: int = 200_000
    #: The largest integer. Every database, and most programs, can store up to 2**63 - 1 exactly.
    integer: float = 2**63 - 1
    #: Whether unpaired surrogates are accepted. The redactor replaces them.
    lone_surrogates: bool = True
    #: Whether NaN and infinity, which Python's own writer outputs, are accepted and read as null.
    non_finite: bool = False


#: Limits of request bodies and agent definitions.
BODY = Limits()
#: Limits of fixtures, which contain whole sessions and come from the operator.
FILE = Limits(nodes=5_000_000, keys=100_000, key=16_384, string=16 * MIB, integer=math.inf, lone_surrogates=False)
#: Limits of imported files. Programs write unpaired surrogates where they truncate a text, and NaN.
IMPORTED = replace(FILE, lone_surrogates=True, non_finite=True)


class NotJson(Refusal, ValueError):
    """The input is not JSON, or exceeds a limit. `data` has `line` and `column`, or the `pointer` to the value."""

    def __init__(self, code: str, status: int, text: str, **data: Any) -> None:
        super().__init__(text, code=code, status=status, **data)


def parse(data: bytes | str, limits: Limits = BODY) -> Any:
    """Return the value of a JSON text, in time that is linear in its length. Raises `NotJson`."""
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
    """Return whether a JSON text contains an escaped unpaired surrogate."""
    return (b"\\ud" in raw or b"\\uD" in raw) and LONE.search(raw.replace(rb"\\", b"__")) is not None


def pointer(path: Iterable[str | int]) -> str:
    """Return an RFC 6901 JSON pointer."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)


def _parse_quickly(raw: bytes, limits: Limits) -> Any:
    """Return the value; None if the text needs the slower check, because it is `null`, unusual or invalid."""
    # The sum is an upper bound of the number of values, because characters inside strings are counted too.
    if len(raw) > limits.nodes <= sum(map(raw.count, (b",", b"[", b"{"))):
        return None
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    properties = _properties_of(value, limits, has_long_strings=len(raw) > limits.string)
    if properties is None:
        return None
    key_count, has_floats = properties
    plain = _without_escapes(raw)
    # The value lacks duplicate keys. A string that begins with a colon is counted too, and causes the slower check.
    if plain.translate(None, _SPACES).count(b'":') != key_count:
        return None
    is_rare = has_floats and _has_rare_number(_skeleton(plain.split(b'"')))
    return None if is_rare else value


def _has_rare_number(skeleton: bytes) -> bool:
    """Return whether parsers may read a number differently: with an exponent, 19 or more digits, or a negative zero.

    A regular expression would take longer than parsing the document.
    """
    zeros = skeleton.translate(_TO_ZEROS)
    return b"-0" in skeleton or b"0e" in zeros or b"0E" in zeros or b"0" * 19 in zeros


def _properties_of(value: Any, limits: Limits, *, has_long_strings: bool) -> tuple[int, bool] | None:
    """Return the number of keys in all objects of a value, and whether it has floats.

    Return None if the value exceeds a limit, or if it has integers that parsers may read differently.
    """
    key_count, depth, keys, has_floats, members = 0, 0, set[str](), False, [value]
    # One level of nesting after the other.
    while members:
        types = set(map(type, members))
        if (int in types and not _are_safe(members)) or (has_long_strings and _has_long_string(members, limits)):
            return None
        has_floats = has_floats or float in types
        containers = [item for item in members if type(item) in _CONTAINERS] if types & _CONTAINERS else []
        depth += bool(containers)
        members = []
        for item in containers:
            if type(item) is dict:
                if len(item) > limits.keys:
                    return None
                key_count += len(item)
                keys.update(item)
                members.extend(item.values())
            else:
                members.extend(item)
    if depth > limits.depth or max(map(len, keys), default=0) > limits.key:
        return None
    return key_count, has_floats


def _are_safe(members: list[Any]) -> bool:
    """Return whether all parsers read all integers in `members` as the same numbers."""
    return all(-_SAFE <= item <= _SAFE for item in members if type(item) is int)


def _has_long_string(members: list[Any], limits: Limits) -> bool:
    return any(len(item) > limits.string for item in members if type(item) is str)


def _parse_closely(text: str, limits: Limits) -> Any:
    """Return the value, with all limits checked except those of depth, values and texts. Raises `NotJson`."""
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
    """Check the limits of depth and values before parsing. Return whether some text may be too long.

    Up to its first error, the parser sees the same strings and brackets, so it does not go deeper than counted here.
    """
    plain = _without_escapes(raw)
    # A string has two quotes, and is a value or the key of one.
    if plain.count(b'"') > 4 * limits.nodes:
        raise _too_complex(limits)
    parts = plain.split(b'"')
    skeleton = _skeleton(parts)
    _check_depth(skeleton, limits)
    members = sum(map(skeleton.count, (b",", b"[", b"{"))) - skeleton.count(b"[]") - skeleton.count(b"{}")
    if members + 1 > limits.nodes:
        raise _too_complex(limits)
    # Most documents have no surrogates, and the expression takes half as long as parsing the document.
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
    """Raise `NotJson` if the brackets of a text are nested too deeply."""
    depth = 0
    # With more brackets, there are too many values.
    for bracket in skeleton.translate(None, NOT_BRACKETS)[: 2 * limits.nodes + 2]:
        depth += 1 if bracket in b"[{" else -1
        if depth > limits.depth:
            raise NotJson("json_too_deep", 400, f"nested too deeply: more than {limits.depth} levels")


def _object(limits: Limits, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object from its members. Raises `NotJson` for duplicate or long keys, or too many."""
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
    """Return an integer. Raises `NotJson` if it is out of range."""
    if len(literal) > MAX_LITERAL:
        raise NotJson("number_out_of_range", 400, f"a number has more than {MAX_LITERAL} digits")
    number = int(literal)
    if abs(number) > limits.integer:
        raise NotJson("number_out_of_range", 422, f"the number {literal[:64]} is out of range: write it as text")
    return number


def _float(limits: Limits, literal: str) -> float | None:
    """Return a finite number; None for infinity if that is accepted. Raises `NotJson` otherwise."""
    if len(literal) > MAX_LITERAL:
        raise NotJson("number_out_of_range", 400, f"a number has more than {MAX_LITERAL} digits")
    number = float(literal)
    if math.isinf(number):
        _constant(limits, literal)
        return None
    # -0.0 becomes 0.0, because only one of the databases keeps the sign.
    return number or 0.0


def _constant(limits: Limits, literal: str) -> None:
    """Return None for NaN or infinity. Raises `NotJson` if they are not accepted."""
    if limits.non_finite:
        return
    raise NotJson("non_finite_number", 400, f"{literal[:64]} is not a finite number")


def _check_strings(value: Any, limits: Limits) -> None:
    """Raise `NotJson` if a text in the value is too long."""
    todo: list[tuple[Any, Path]] = [(value, ())]
    while todo:
        item, path = todo.pop()
        if isinstance(item, str) and len(item) > limits.string:
            problem = f"a text has more than {limits.string} characters"
            raise NotJson("string_too_long", 413, problem, pointer=pointer(path))
        if isinstance(item, dict):
            todo += [(member, (*path, key)) for key, member in item.items()]
        elif isinstance(item, list):
            todo += [(member, (*path, index)) for index, member in enumerate(item)]


def _too_complex(limits: Limits) -> NotJson:
    return NotJson("json_too_complex", 413, f"more than {limits.nodes} values")


def _refuse_at(raw: bytes, position: int, code: str, problem: str) -> NoReturn:
    line = raw.count(b"\n", 0, position) + 1
    column = len(raw[raw.rfind(b"\n", 0, position) + 1 : position].decode()) + 1
    raise NotJson(code, 400, f"{problem}: line {line}, column {column}", line=line, column=column)
