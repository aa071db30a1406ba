"""Texts without secrets, as agents read and write them: this repository, and texts of other projects.

agent_texts.jsonl has a line for each source file: its URL, its licence, and lines of its texts. May import: the
standard library.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

FOREIGN = Path(__file__).parent / "agent_texts.jsonl"
#: Shorter lines contain no secret, and would only add to the count.
_LEAST = 20
_OWN = ("docs/**/*.md", "agentops/**/*.py", "runs/**/*.py", "timeline/**/*.py", "static/**/*.js", "*.lock", "*.toml")


def own_texts() -> Iterator[str]:
    """Yield the lines of this repository's documentation, code, scripts and lock files."""
    for pattern in _OWN:
        for path in sorted(ROOT.glob(pattern)):
            yield from _long(path.read_text(encoding="utf-8").split("\n"))


def foreign_texts() -> Iterator[str]:
    """Yield lines of transcripts of other projects' agents."""
    for line in FOREIGN.read_text(encoding="utf-8").splitlines():
        yield from json.loads(line)["texts"]


def recorded_texts(directory: Path) -> Iterator[str]:
    """Yield the texts in JSON files below a directory."""
    for path in sorted(directory.rglob("*.json*")):
        text = path.read_text(errors="replace")
        for document in text.splitlines() if path.suffix == ".jsonl" else [text]:
            try:
                yield from _long(_strings(json.loads(document)))
            except ValueError:
                continue


def _strings(document: Any) -> Iterator[str]:
    todo = [document]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, list):
            todo.extend(item)
        elif isinstance(item, dict):
            todo.extend(item.values())


def _long(texts: Iterator[str] | list[str]) -> Iterator[str]:
    return (text for text in texts if len(text) > _LEAST)
