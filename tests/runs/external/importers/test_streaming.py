"""Line-based files are read from disk on demand: memory does not grow with their contents."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runs.external.importers import stored_lines
from runs.external.importers.base import ImportFile, ImportRefused
from runs.external.importers.formats import find
from runs.external.importers.stored_lines import StoredBytes

#: The text of each message, which no code may keep in memory.
LONG = "A long story. " * 2_000
MESSAGES = 600


def claude_code(number: int) -> dict[str, Any]:
    role = ("user", "assistant")[number % 2]
    message = {"role": role, "id": f"msg_{number}", "content": [{"type": "text", "text": LONG}]}
    at = f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z"
    return {"type": role, "uuid": f"u{number}", "sessionId": "s", "timestamp": at, "message": message}


def agent_sdk(number: int) -> dict[str, Any]:
    line = claude_code(number)
    return {name: line[name] for name in ("type", "uuid", "message")} | {"session_id": "s", "parent_tool_use_id": None}


def codex(number: int) -> dict[str, Any]:
    if not number:
        return {"type": "session_meta", "payload": {"id": "s"}}
    role, kind = ("user", "input_text") if number % 2 else ("assistant", "output_text")
    payload = {"type": "message", "role": role, "content": [{"type": kind, "text": LONG}]}
    return {"type": "response_item", "payload": payload}


@pytest.mark.parametrize(
    ("name", "line"), [("claude-code", claude_code), ("codex", codex), ("claude-agent-sdk", agent_sdk)]
)
def test_memory_does_not_grow_with_the_contents_of_lines(
    tmp_path: Path, name: str, line: Callable[[int], dict[str, Any]]
) -> None:
    path = tmp_path / "session.jsonl"
    path.write_text("".join(json.dumps(line(number)) + "\n" for number in range(MESSAGES)))
    tracemalloc.start()
    try:
        file = ImportFile.open(path)
        importer = find(file)
        events = sum(1 for _ in importer.read(file))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert (importer.name, events >= MESSAGES) == (name, True)
    assert path.stat().st_size > 16_000_000
    # The 64 lines kept take a quarter of that.
    assert peak < 6_000_000


@pytest.mark.parametrize("block", [1, 7, 1024])
@pytest.mark.parametrize("content", [b"", b"\n", b'{"a": 1}', b' {"a": 1} \r\n\n\n[2]\n3', b"[1]\n\n"])
def test_lines_are_the_same_for_every_block_size_and_can_be_read_again(
    content: bytes, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_lines, "BLOCK", block)
    stored = StoredBytes.in_memory(content)

    found = list(stored.lines())

    numbered = enumerate(content.split(b"\n"), start=1)
    assert [(place.number, line) for place, line in found] == [
        (number, line.strip()) for number, line in numbered if line.strip()
    ]
    assert [stored.line(place) for place, _ in found] == [line for _, line in found]


def test_a_file_changed_during_reading_is_refused_but_a_growing_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    lines = [json.dumps(claude_code(number)) + "\n" for number in range(100)]

    def items(change: Callable[[], object]) -> Iterator[object]:
        path.write_text("".join(lines))
        file = ImportFile.open(path)
        read = find(file).read(file)
        yield next(read)
        change()
        yield from read

    def grow() -> None:
        with path.open("a") as target:
            target.write(lines[0].replace("u0", "u100") + "{")

    assert len(list(items(lambda: None))) == len(list(items(grow)))
    with pytest.raises(ImportRefused, match=r"session\.jsonl:1: the file has changed while it was read"):
        list(items(lambda: path.write_text("".join(reversed(lines)))))


def test_the_descriptor_of_a_file_is_closed_with_it(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    path.write_text("[1]\n")
    before = set(os.listdir("/dev/fd"))
    file = ImportFile.open(path)

    assert list(file.lines()) == [(1, [1])]
    del file
    assert set(os.listdir("/dev/fd")) == before
