"""Rows for a coding agent: texts truncated, media replaced by placeholders, times relative to now."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from agentops.mcp_server import readable


@pytest.mark.parametrize(
    ("text", "ago"), [("24h", timedelta(hours=24)), ("30m", timedelta(minutes=30)), ("7d", timedelta(7))]
)
def test_relative_times_are_accepted(text: str, ago: timedelta) -> None:
    moment = readable.moment(text)

    assert moment is not None
    assert abs(datetime.now(UTC) - ago - datetime.fromisoformat(moment)) < timedelta(minutes=1)


@pytest.mark.parametrize("text", [None, "2026-11-20T00:00:00Z", "yesterday", "24", "h", "99999h", "-1h", "٣h"])
def test_other_texts_are_passed_to_the_api(text: str | None) -> None:
    assert readable.moment(text) == text


def test_message_has_only_the_content_of_its_parts() -> None:
    parts = [
        {
            "part_kind": "user-prompt",
            "content": ["Look:", {"kind": "binary", "media_type": "image/png", "data": "AAAA"}],
        },
        {"part_kind": "text", "content": "x" * 200},
        {"part_kind": "tool-call", "tool_name": "read", "args": {"path": "a"}, "tool_call_id": "c"},
        {"part_kind": "tool-return", "tool_name": "read", "content": [{"kind": "image-url"}], "tool_call_id": "c"},
        {"part_kind": "something-new", "data": "?"},
    ]
    row = {"id": "m", "position": 1, "role": "user", "step_number": 1, "created_at": "now", "rolled_back_at": "then"}
    shown = readable.message(row | {"content": {"parts": parts, "kind": "request"}}, 50)

    assert "finish_reason" not in shown
    cut = readable.message(row | {"role": "assistant", "finish_reason": "length", "content": None}, 50)
    assert cut["finish_reason"] == "length"
    assert shown["rolled_back"] is True
    assert shown["parts"] == [
        {"text": ["Look:", "[image/png]"]},
        {"text": f"{'x' * 50}… [150 more characters]"},
        {"tool_call": "read", "arguments": {"path": "a"}, "call_id": "c"},
        {"tool_result": "read", "output": ["[image-url]"], "call_id": "c"},
        {"kind": "something-new"},
    ]
