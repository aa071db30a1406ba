"""Mutates JSON at one place, so that most inputs get past the parser. In a file of JSON lines, it mutates one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

Mutate = Callable[[bytes, int], bytes]
#: How often raw bytes are mutated instead of a JSON value.
BYTES_SHARE = 0.1
LINES_SHARE = 0.1
VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1.5, 1e308, -0.0, 2**31, 2**63, 10**30, 1_700_000_000, 1_700_000_000_000),
    *("", " ", "x", "\u0000", "a\ud800", "\u202e", "é" * 300, "n" * 5000, "~1/~0", "null", "1e5", "[]", "{}", "-"),
    *("2026-01-01T00:00:00Z", "0000-00-00", "9999-12-31T23:59:59+23:59", "1970-01-01T00:00:00.123456789Z"),
    *("sk-ant-api03-" + "A" * 95, "Bearer abcdefghijklmnop", "password=hunter2", "data:image/png;base64,AAAA"),
    *([], {}, [[]], [{}], [None], [1, "x"], {"a": 1}, {"type": "text"}, {"": ""}, {"type": "tool_use"}),
]


def mutated(data: bytes, max_size: int, seed: int, mutate: Mutate) -> bytes:
    """Return a mutated copy of at most `max_size` bytes. `mutate` changes raw bytes."""
    dice = Random(seed)
    lines = data.split(b"\n")
    number = dice.randrange(len(lines))
    if dice.random() < BYTES_SHARE:
        return mutate(data, max_size)
    if len(lines) > 1 and dice.random() < LINES_SHARE:
        return b"\n".join(_moved(lines, number, dice))[:max_size]
    try:
        value = json.loads(lines[number])
    except (ValueError, RecursionError):
        return mutate(data, max_size)
    lines[number] = json.dumps(_changed(value, dice)).encode()
    return b"\n".join(lines)[:max_size]


def _moved(lines: list[bytes], number: int, dice: Random) -> list[bytes]:
    line = lines.pop(number)
    for _ in range(dice.randrange(3)):
        lines.insert(dice.randrange(len(lines) + 1), line)
    return lines


def _changed(value: Any, dice: Random) -> Any:
    """Change one place. Deep places are more likely."""
    if isinstance(value, dict) and value and dice.random() < 0.85:
        name = dice.choice(list(value))
        match dice.randrange(12):
            case 0:
                del value[name]
            case 1:
                value[dice.choice([*value, "type", "id", "content", name.upper(), ""])] = value.pop(name)
            case 2:
                value[name] = value[dice.choice(list(value))]
            case _:
                value[name] = _changed(value[name], dice)
        return value
    if isinstance(value, list) and value and dice.random() < 0.85:
        index = dice.randrange(len(value))
        match dice.randrange(8):
            case 0:
                del value[index]
            case 1:
                value.insert(index, value[dice.randrange(len(value))])
            case 2:
                value.reverse()
            case _:
                value[index] = _changed(value[index], dice)
        return value
    return _other(value, dice)


def _other(value: Any, dice: Random) -> Any:
    match dice.randrange(4):
        case 0 if isinstance(value, str):
            return value[: dice.randrange(len(value) + 1)]
        case 1 if isinstance(value, int | float):
            return -value
        case 2:
            return dice.choice([[value], {"type": value}, {"content": value}, [value, value]])
    return dice.choice(VALUES)
