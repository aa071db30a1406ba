"""Strict JSON: the one parser for whatever comes from outside, by the API, the command line or a worker.

The standard parser alone takes NaN and infinity, keeps the last of two equal
keys, and goes as deep as the interpreter's stack.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

MIB = 1024 * 1024
BOM = "\ufeff"
#: Digits that Python turns into a number at all (sys.int_info.default_max_str_digits).
MAX_LITERAL = 4_300
NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
#: Half of a surrogate pair, written as an escape; the text around it has no escaped backslash in it.
LONE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)
#: The keys and indexes that lead to a value from the top.
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Limits:
    """How much is taken; each is the largest that still is."""

    depth: int = 64
    nodes: int = 50_000
    keys: int = 1_000
    key: int = 256
    string: int = 200_000
    #: What every database, and most programs, can hold exactly.
    integer: float = 2**63 - 1
    #: Whether halves of surrogate pairs may stand in it, for the redactor to replace.
    lone_surrogates: bool = True


#: Of a request's body, and of a definition.
BODY = Limits()
#: Of recordings: they come from whoever has the machine, and hold whole sessions.
FILE = Limits(
    nodes=5_000_000, keys=100_000, key=16_384, string=16 * MIB, integer=math.inf, lone_surrogates=False
)  # fmt: skip


class NotJson(ValueError):
    """What was given is no JSON, or more of it than is taken; with a code and the HTTP status that fits it."""

    def __init__(self, code: str, status: int, text: str, **data: Any) -> None:
        super().__init__(text)
        self.code = code
        self.status = status
        #: `line` and `column`, or the `pointer` of what is at fault.
        self.data = data


def parse(data: bytes | str, limits: Limits = BODY) -> Any:
    """The value; raises `NotJson`. Takes time by the length of `data` alone, and little where it is refused."""
    raw = data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass")
    text = _decoded(raw) if isinstance(data, bytes) else data
    if text.startswith(BOM):
        raise NotJson("invalid_json", 400, "begins with a byte order mark", line=1, column=1)
    has_long_strings = _look_over(raw, limits)
    try:
        value = json.loads(
            text,
            parse_float=_float,
            parse_int=partial(_int, limits),
            parse_constant=_constant,
            object_pairs_hook=partial(_object, limits),
        )
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise NotJson("invalid_json", 400, f"{error.msg}: {place}", line=error.lineno, column=error.colno) from None
    if has_long_strings:
        _check_strings(value, limits)
    return value


def pointer(path: Iterable[str | int]) -> str:
    """The JSON pointer of RFC 6901."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        _refuse_at(raw, error.start, "invalid_utf8", "no UTF-8")


def _look_over(raw: bytes, limits: Limits) -> bool:
    """Refuse what is too much before any of it is parsed; whether some string may be too long.

    Strings end at a quote that no backslash escapes. Up to the first mistake in it, the parser sees the same
    strings and brackets as this does, so it never goes deeper than was counted here.
    """
    plain = raw.replace(rb"\\", b"__").replace(rb"\"", b"__") if b"\\" in raw else raw
    # Each string is a value or a value's key.
    if plain.count(b'"') > 4 * limits.nodes:
        raise _too_complex(limits)
    parts = plain.split(b'"')
    skeleton = b'"'.join(parts[::2]).translate(None, b" \t\r\n")
    _check_depth(skeleton, limits)
    inside = sum(map(skeleton.count, (b",", b"[", b"{"))) - skeleton.count(b"[]") - skeleton.count(b"{}")
    if inside + 1 > limits.nodes:
        raise _too_complex(limits)
    lone = None if limits.lone_surrogates else LONE.search(plain)
    if lone:
        _refuse_at(raw, lone.start(), "invalid_json", "half of a surrogate pair")
    return max(map(len, parts[1::2]), default=0) > limits.string


def _check_depth(skeleton: bytes, limits: Limits) -> None:
    depth = 0
    # So many brackets are too much at any depth.
    for bracket in skeleton.translate(None, NOT_BRACKETS)[: 2 * limits.nodes + 2]:
        depth += 1 if bracket in b"[{" else -1
        if depth > limits.depth:
            raise NotJson("json_too_deep", 400, f"nested too deeply: more than {limits.depth} levels")


def _object(limits: Limits, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > limits.keys:
        raise NotJson("json_too_complex", 413, f"an object has more than {limits.keys} keys")
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise NotJson("duplicate_key", 400, f"the key {twice[:64]!r} stands there twice")
    if made and max(map(len, made)) > limits.key:
        raise NotJson("key_too_long", 413, f"a key has more than {limits.key} characters")
    return made


def _int(limits: Limits, literal: str) -> int:
    if len(literal) > MAX_LITERAL:
        raise NotJson("number_out_of_range", 400, f"a number has more than {MAX_LITERAL} digits")
    number = int(literal)
    if abs(number) > limits.integer:
        raise NotJson("number_out_of_range", 422, f"the number {literal[:64]} is out of range: write it as text")
    return number


def _float(literal: str) -> float:
    if len(literal) > MAX_LITERAL:
        raise NotJson("number_out_of_range", 400, f"a number has more than {MAX_LITERAL} digits")
    number = float(literal)
    if math.isinf(number):
        _constant(literal)
    # -0.0 is kept by one database and not by the other.
    return number or 0.0


def _constant(literal: str) -> NoReturn:
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


def _refuse_at(raw: bytes, position: int, code: str, what: str) -> NoReturn:
    line = raw.count(b"\n", 0, position) + 1
    column = len(raw[raw.rfind(b"\n", 0, position) + 1 : position].decode()) + 1
    raise NotJson(code, 400, f"{what}: line {line}, column {column}", line=line, column=column)
