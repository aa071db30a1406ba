"""The folders in which agent programs keep their sessions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from runs.external.importers.reading.claude_agent_files import is_about_agent

#: The extensions of session files.
_SUFFIXES = (".jsonl", ".json")
#: Files of `/chat save` of Gemini CLI: copies of chats that also have separate files.
_SAVED_CHATS = "checkpoint-*.json"


def session_folders(environ: Mapping[str, str], home: Path) -> list[Path]:
    """Return the folders of Claude Code, Codex CLI and Gemini CLI, whether they exist or not."""
    return [
        Path(environ.get("CLAUDE_CONFIG_DIR") or home / ".claude") / "projects",
        Path(environ.get("CODEX_HOME") or home / ".codex") / "sessions",
        home / ".gemini" / "tmp",
    ]


def may_be_session(path: Path) -> bool:
    """Return whether a path has the name of a session file."""
    return path.suffix in _SUFFIXES and not path.match(_SAVED_CHATS) and not is_about_agent(path)


def session_files(folders: list[Path], since: float) -> Iterator[Path]:
    """Yield the session files below the folders that have changed since a time, in seconds since 1970."""
    for folder in folders:
        for path in [folder] if folder.is_file() else _files_below(folder):
            try:
                if may_be_session(path) and path.is_file() and path.stat().st_mtime >= since:
                    yield path
            except OSError:
                continue


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder. Not with `rglob`, which fails if a folder is deleted concurrently."""
    for parent, _, names in os.walk(folder):
        yield from (Path(parent, name) for name in names)
