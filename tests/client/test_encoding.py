"""Event values of any kind become JSON that a site accepts. Other values are refused without an effect."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from enum import Enum, IntEnum, StrEnum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from agentops.base.http import strict_json
from agentops.client.encoding import MAX_EVENT_BYTES, encode
from runs.external.event_input import MAX_EVENT_BYTES as ACCEPTED_BYTES
from runs.external.event_input import read_event


class Point(BaseModel):
    x: int


class Broken:
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Role(str, Enum):  # noqa: UP042 - as programs have it that are older than StrEnum
    USER = "user"


class Effort(StrEnum):
    HIGH = "high"


class Level(IntEnum):
    TOP = 3


def encoded(value: Any) -> Any:
    return json.loads(encode({"payload": value}))["payload"]


def test_values_without_a_json_form_become_texts() -> None:
    values = [math.nan, 2**70, -1, 1.5, b"\x00", datetime(2026, 1, 2, tzinfo=UTC), Point(x=1), Broken(), {1: (2,)}]

    assert encoded(values) == [
        *("nan", str(2**70), -1, 1.5, "b'\\x00'", "2026-01-02 00:00:00+00:00"),
        *({"x": 1}, "<Broken>", {"1": [2]}),
    ]


@pytest.mark.parametrize(
    "payload",
    [
        {"output": {f"row {number}": number for number in range(2_000)}},
        {"output": {"k" * 300: 1, "l" * 300: 2}},
        {"output": [2**63, 2**64 - 1, -(2**63), 2**63 - 1]},
        {"output": [1] * 60_000},
        {"output": [[number] for number in range(30_000)]},
    ],
    ids=["many keys", "long keys", "large integers", "many values", "many lists"],
)
def test_unreadable_values_are_dropped_or_become_texts(payload: dict[str, Any]) -> None:
    text = encode({"runId": "r", "type": "tool.end", "event_id": "e", "payload": {**payload, "call_id": "c"}})

    [event] = strict_json.parse(f'{{"events":[{text}]}}')["events"]  # type: ignore[call-overload, index]
    assert event["payload"]["call_id"] == "c"
    output = event["payload"]["output"]
    kept = output if isinstance(output, list) else [*output.values()]
    assert kept[:2] in ([0, 1], [1, 2], [str(2**63), str(2**64 - 1)], [1, 1], [[0], [1]])


def test_enum_members_are_encoded_as_their_values() -> None:
    values = [Role.USER, Effort.HIGH, Level.TOP, {Role.USER: Role.USER}]

    assert encoded(values) == json.loads(json.dumps(values)) == ["user", "high", 3, {"user": "user"}]


def test_cycles_and_deep_nesting_are_cut() -> None:
    cycle: list[Any] = []
    cycle += [cycle, {"again": cycle}]
    deep: Any = "end"
    for _ in range(1000):
        deep = [deep]

    assert encoded(cycle) == ["<list>", {"again": "<list>"}]
    assert "<list>" in json.dumps(encoded(deep))


@pytest.mark.parametrize(
    "make_output",
    [
        lambda: "é" * 5_000_000,
        lambda: [{"text": "x" * 3_000, "n": number} for number in range(1_000)],
        lambda: {str(number): number for number in range(500_000)},
    ],
    ids=["a text", "many texts", "many numbers"],
)
def test_long_values_are_cut_to_the_accepted_size(make_output: Callable[[], Any]) -> None:
    payload = {"call_id": "c", "output": make_output()}
    text = encode({"runId": "r", "type": "tool.end", "event_id": "e", "payload": payload})

    assert len(text) <= MAX_EVENT_BYTES < ACCEPTED_BYTES
    event = read_event(json.loads(text))
    assert event.payload.call_id == "c"  # type: ignore[attr-defined]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=50)
@given(JSON_VALUES)
def test_json_values_stay_unchanged(value: Any) -> None:
    def finite(one: Any) -> Any:
        if isinstance(one, float) and not math.isfinite(one):
            return str(one)
        if isinstance(one, int) and not isinstance(one, bool) and not abs(one) < 2**63:
            return str(one)
        if isinstance(one, list):
            return [finite(inner) for inner in one]
        return {name: finite(inner) for name, inner in one.items()} if isinstance(one, dict) else one

    assert encoded(value) == finite(value)
