"""Reads `agent-….meta.json`, which Claude Code writes next to the file of a sub-agent, with its type and its call."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from agentops.base.http.strict_json import NotJson
from runs.external.importers.answer_events import event_id, identifier_or_none
from runs.external.importers.base import ImportFile, ImportRefused, open_regular, read_json

PREFIX, ENDING = "agent-", ".meta.json"
MAX_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """The name of a sub-agent, its task, and the call that spawned it; empty where unknown."""

    agent: str = ""
    title: str = ""
    call_id: str = ""


def is_about_agent(path: Path) -> bool:
    """Return whether a file is only the description of a sub-agent. The session is in another file."""
    return path.name.endswith(ENDING)


def file_of_agent(path: Path) -> Path:
    """Return the file of the sub-agent that a file describes."""
    return path.with_name(path.name.removesuffix(ENDING) + ".jsonl")


def about_agent(file: ImportFile, key: str) -> AgentFacts:
    """Return the facts in the description next to a sub-agent's file."""
    path = file.path
    if path is None or event_id(path.stem.removeprefix(PREFIX)) != key:
        return AgentFacts()
    try:
        descriptor = open_regular(path.with_name(path.stem + ENDING))
        try:
            value = read_json(os.read(descriptor, MAX_BYTES))
        finally:
            os.close(descriptor)
    except (OSError, ImportRefused, NotJson):
        return AgentFacts()
    if not isinstance(value, dict):
        return AgentFacts()
    title = value.get("description")
    return AgentFacts(
        agent=identifier_or_none(value.get("agentType")) or "",
        title=title if isinstance(title, str) else "",
        call_id=identifier_or_none(value.get("toolUseId")) or "",
    )
