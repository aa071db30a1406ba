"""Any return value or exception of a tool becomes a text or a known error.

May import runs.tools.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
from collections import OrderedDict, deque
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, StrEnum
from pathlib import PurePosixPath
from uuid import UUID

import pytest
from pydantic import BaseModel

from runs.tools.base import OutcomeUnknown, Tool, ToolDenied, ToolFailed, ToolResult
from runs.tools.output import MAX_OUTPUT, shorten_for_model


@dataclass
class Point:
    x: int
    y: int


class Model(BaseModel):
    at: datetime
    price: Decimal


class Colour(Enum):
    RED = "red"


class Shade(StrEnum):
    DARK = "dark"


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__

    def __getattr__(self, name: str):
        raise RuntimeError(f"no {name}")


class Deadly(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


class Root(BaseException):
    pass


def giving(value) -> Tool:
    return Tool(name="t", description="", parameters_schema={}, execute=lambda ctx, arguments: value)


def raising(error) -> Tool:
    def execute(ctx, arguments):
        raise error

    return Tool(name="t", description="", parameters_schema={}, execute=execute)


def circle() -> list:
    made: list = []
    made.append(made)
    return made


def deep() -> list:
    made: list = []
    for _ in range(100_000):
        made = [made]
    return made


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        ("", ""),
        (Shade.DARK, "dark"),
        (None, "null"),
        (True, "true"),
        (7, "7"),
        (0.5, "0.5"),
        (float("nan"), '"NaN"'),
        ({"b": 1, "a": [None, "ä"]}, '{"b": 1, "a": [null, "ä"]}'),
        ({"a": float("-inf")}, '{"a": "-Infinity"}'),
        ([1, "two"], '[1, "two"]'),
        ((1, 2), "[1, 2]"),
        ({"c", "a", "b"}, '["a", "b", "c"]'),
        (deque([1, 2]), "[1, 2]"),
        (OrderedDict(a=1), '{"a": 1}'),
        (Point(1, 2), '{"x": 1, "y": 2}'),
        ([Point(1, 2)], '[{"x": 1, "y": 2}]'),
        (
            Model(at=datetime(2024, 1, 2, tzinfo=UTC), price=Decimal("1.10")),
            '{"at": "2024-01-02T00:00:00Z", "price": "1.10"}',
        ),
        (Colour.RED, '"red"'),
        (Decimal("1.10"), "1.10"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (PurePosixPath("a/b"), "a/b"),
        ({"when": datetime(2024, 1, 2, tzinfo=UTC)}, '{"when": "2024-01-02T00:00:00+00:00"}'),
        (b"text\n", "text\n"),
        (bytearray("schön 🙂".encode()), "schön 🙂"),
        (b"almost all of this is text \xff, you see", "almost all of this is text \ufffd, you see"),
        ({"raw": b"abc"}, '{"raw": "abc"}'),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else type(value).__name__,
)
def test_any_value_becomes_text(ctx, value, text):
    assert giving(value).run(ctx, {}) == ToolResult(text)


def test_binary_output_becomes_a_note_with_size_and_hash(ctx):
    data = bytes(range(256)) * 10

    result = giving(data).run(ctx, {})

    assert result.output == f"[2560 bytes that are not text, sha256 {hashlib.sha256(data).hexdigest()}]"
    assert not result.is_error


@pytest.mark.parametrize(
    "value",
    [
        object(),
        Hostile(),
        Hostile,
        {"a": Hostile()},
        {(1, 2): 3},
        circle(),
        deep(),
        open,
        ValueError("x"),
        itertools.count(),
        {"endless": itertools.count()},
        (n for n in [1]),
        10**5000,
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_without_a_text_form_becomes_a_note_without_its_memory_address(ctx, value):
    result = giving(value).run(ctx, {})

    assert result.is_error
    assert result.output.startswith("[the tool returned a value of type ")
    assert " at 0x" not in result.output
    assert len(result.output) < 500


def test_a_generator_is_not_consumed(ctx):
    ran = []

    def numbers():
        ran.append(1)
        yield from itertools.count()

    assert "not an iterator" in giving(numbers()).run(ctx, {}).output
    assert not ran


def test_a_100_mb_string_is_truncated_with_size_and_hash(ctx):
    text = "ä" * 50_000_000

    result = giving(text).run(ctx, {})

    digest = hashlib.sha256(text.encode()).hexdigest()
    end = f"\n… [cut: {MAX_OUTPUT} of 50000000 characters kept, sha256 {digest}]"
    assert result.output.endswith(end)
    assert len(result.output) == MAX_OUTPUT + len(end)
    assert giving(ToolResult(text, is_error=True)).run(ctx, {}) == ToolResult(result.output, is_error=True)
    assert giving(ToolResult([text, 1])).run(ctx, {}).output == [result.output, 1]


def test_a_tool_result_is_returned_unchanged(ctx):
    media = ["see:", {"kind": "image-url", "url": "https://example.com/a.png"}]
    given = ToolResult(media, is_error=True, duration_ms=12)

    assert giving(given).run(ctx, {}) == given
    assert giving(ToolResult({"a": 1}, duration_ms=3)).run(ctx, {}) == ToolResult('{"a": 1}', duration_ms=3)


@pytest.mark.parametrize(
    ("error", "error_type", "message", "retryable"),
    [
        (ValueError("bad value"), "ValueError", "bad value", True),
        (KeyError("k"), "KeyError", "'k'", True),
        (TimeoutError(), "TimeoutError", "", True),
        (RecursionError("deep"), "RecursionError", "deep", True),
        (MemoryError(), "MemoryError", "", True),
        (SystemExit(2), "SystemExit", "2", False),
        (GeneratorExit(), "GeneratorExit", "", False),
        (asyncio.CancelledError(), "CancelledError", "", False),
        (Root("bottom"), "Root", "bottom", False),
        (Deadly(), "Deadly", "its message cannot be read", True),
        (ValueError("x" * 10_000), "ValueError", "x" * 1999 + "…", True),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else type(value).__name__,
)
def test_whatever_is_raised_becomes_a_hard_error(ctx, error, error_type, message, retryable):
    with pytest.raises(ToolFailed) as caught:
        raising(error).run(ctx, {})

    assert (caught.value.error_type, caught.value.message) == (error_type, message)
    assert caught.value.retryable is retryable
    assert str(caught.value) == (f"{error_type}: {message}" if message else error_type)


@pytest.mark.parametrize(
    "error",
    [ToolFailed("quota", "used up"), ToolDenied("path_denied", "no"), OutcomeUnknown("gone"), KeyboardInterrupt()],
    ids=lambda value: type(value).__name__,
)
def test_errors_that_a_tool_raises_explicitly_are_kept(ctx, error):
    with pytest.raises(type(error)) as caught:
        raising(error).run(ctx, {})

    assert caught.value is error


def test_short_output_is_not_truncated():
    assert shorten_for_model("x" * 8000) == ("x" * 8000, False)
    assert shorten_for_model("x" * 9000, None) == ("x" * 9000, False)


def test_truncated_output_reports_the_lengths():
    output, truncated = shorten_for_model("x" * 480_413)

    assert truncated
    assert output == "x" * 8000 + "\n… [cut: 8000 of 480413 characters shown]"


@pytest.mark.parametrize("emoji", ["🙂", "👩‍🚒", "🇩🇪", "é"])
@pytest.mark.parametrize("before", range(7995, 8002))
def test_truncation_keeps_an_emoji_at_the_limit_whole(emoji, before):
    """The output has whole characters only, and reports the missing length."""
    text = "x" * before + emoji + "y" * 100

    output, truncated = shorten_for_model(text)

    assert truncated
    assert output.startswith(text[:8000])
    assert "[cut: 8000 of " in output
    assert output.encode().decode() == output
    assert json.loads(json.dumps(output)) == output


def test_a_surrogate_pair_is_not_split():
    output, truncated = shorten_for_model("x" * 3 + "\ud83d\ude42" + "y", 4)

    assert (output, truncated) == ("xxx\n… [cut: 3 of 6 characters shown]", True)


def test_texts_in_a_list_are_truncated_separately_and_media_are_kept():
    media = {"kind": "image", "data": "A" * 50}

    output, truncated = shorten_for_model(["a" * 11, media, "b" * 10], 10)

    assert output == ["a" * 10 + "\n… [cut: 10 of 11 characters shown]", media, "b" * 10]
    assert truncated
    assert shorten_for_model([media, "b"], 10) == ([media, "b"], False)


def test_a_limit_of_zero_shows_only_the_marker():
    assert shorten_for_model("abc", 0) == ("\n… [cut: 0 of 3 characters shown]", True)
