"""The last lines of a Claude Code transcript: which messages wait for an answer."""

from __future__ import annotations

import json
from pathlib import Path

from runs.providers.claude_cli import blocks


def test_an_unreadable_line_hides_no_message(tmp_path: Path) -> None:
    """The program may die in the middle of a line, and a model may nest arguments to any depth."""
    answer = {"type": "assistant", "message": {"content": []}}
    said = [{"type": "user", "message": {"content": text}} for text in ("First.", "Second.")]
    deep = '{"type": "user", "message": {"content": ' + "[" * 20_000 + "]" * 20_000 + "}}"
    lines = [json.dumps(answer), json.dumps(said[0]), deep, json.dumps(said[1]), '{"type": "user", "mess']
    path = tmp_path / "session.jsonl"
    path.write_text("\n".join(lines))
    assert blocks.unanswered_pieces(path) == ["First.", "Second."]
