"""The program's own files: the path of a session's transcript, and the unanswered messages in it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from uuid import UUID

#: Maximum bytes that are read, from the end of a transcript.
TAIL_BYTES = 4 * 1024 * 1024


def path_of(config: Path, session_id: UUID) -> Path | None:
    """Return the transcript of a session below the program's directory; None without one.

    Sessions are stored in one directory for each working directory. The file name is the whole ID.
    """
    try:
        folders = sorted(os.scandir(config / "projects"), key=lambda entry: entry.name)
    except OSError:
        return None
    paths = (Path(folder.path) / f"{session_id}.jsonl" for folder in folders)
    return next((path for path in paths if path.is_file()), None)


def unanswered(path: Path) -> list[str]:
    """Return the pieces of the user messages at the end of a transcript that have no answer, in order."""
    found: list[str] = []
    for line in _last_lines(path):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue  # cut off at the end of its program, or nested too deeply
        match entry:
            case {"type": "assistant"}:
                found.clear()
            case {"type": "user", "message": {"content": content}}:
                found += pieces(content)
            # A message sent during a turn.
            case {"type": "attachment", "attachment": {"type": "queued_command", "prompt": prompt}}:
                found += pieces(prompt)
    return found


def pieces(content: object) -> list[str]:
    """Return the content of a user message as texts: media as JSON, without results of calls."""
    if isinstance(content, str):
        return [content]
    items = [block for block in (content if isinstance(content, list) else []) if isinstance(block, dict)]
    return [
        str(block.get("text")) if block.get("type") == "text" else json.dumps(block, sort_keys=True)
        for block in items
        if block.get("type") != "tool_result"
    ]


def _last_lines(path: Path) -> list[bytes]:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - TAIL_BYTES, 0))
        lines = file.read().split(b"\n")
    return lines[1:] if size > TAIL_BYTES else lines
