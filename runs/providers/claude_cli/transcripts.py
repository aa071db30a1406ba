"""The program's own files: where the transcript of a session is, and which messages in it wait for an answer."""

from __future__ import annotations

import json
import os
from pathlib import Path
from uuid import UUID

#: The end of a transcript that is read.
TAIL_BYTES = 4 * 1024 * 1024


def path_of(config: Path, session_id: UUID) -> Path | None:
    """Return the transcript of a session below the program's directory; None if there is none.

    Sessions are in a directory for each working directory. The name of the file is the whole ID.
    """
    try:
        folders = sorted(os.scandir(config / "projects"), key=lambda entry: entry.name)
    except OSError:
        return None
    paths = (Path(folder.path) / f"{session_id}.jsonl" for folder in folders)
    return next((path for path in paths if path.is_file()), None)


def unanswered(path: Path) -> list[str]:
    """Return the texts of the user messages at the end of a transcript, which no answer follows, in their order."""
    texts: list[str] = []
    for line in _last_lines(path):
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # torn by the end of its program
        kind = entry.get("type") if isinstance(entry, dict) else None
        if kind == "assistant":
            texts.clear()
        elif kind == "user":
            content = (entry.get("message") or {}).get("content")
            texts += [content] if isinstance(content, str) else _texts(content)
    return texts


def _texts(content: object) -> list[str]:
    blocks = content if isinstance(content, list) else []
    return [str(block["text"]) for block in blocks if isinstance(block, dict) and block.get("type") == "text"]


def _last_lines(path: Path) -> list[bytes]:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - TAIL_BYTES, 0))
        lines = file.read().split(b"\n")
    return lines[1:] if size > TAIL_BYTES else lines
