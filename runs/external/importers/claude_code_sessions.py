"""Sessions of Claude Code: the JSONL files of its folder `projects`, and the session JSON of claude.ai/code.

All lines of the conversation are imported in file order, including lines that the user has rewound. The lines of
sub-agents become separate runs: lines with `isSidechain`, and the `agent_progress` lines of newer versions. Next to the
file of a sub-agent, Claude Code writes `agent-….meta.json`, with the sub-agent's type and call.

A file may grow, and may end in the middle of an answer. Then the existing part of the answer is imported. The rest
follows with a longer version of the file, as another answer, which counts only the additional tokens.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from agentops.base.http.strict_json import NotJson
from runs.external.contents import text_or_empty
from runs.external.event_input import is_identifier
from runs.external.importers.answer_events import UNNAMED_AGENT, SpawnedAgent, event_id, identifier_or_none
from runs.external.importers.base import (
    ImportedRun,
    ImportFile,
    ImportRefused,
    Item,
    NothingToImport,
    folder_labels,
    open_regular,
    read_json,
    usable_folder,
)
from runs.external.importers.claude_conversation import MESSAGES, ClaudeConversation, ConversationLine
from runs.external.importers.claude_session_lines import SessionLines, SubAgent, read_sessions
from runs.lifecycle.title_limits import MAX_TITLE
from runs.providers.messages import canonical
from runs.statuses import RunStatus

AGENT = UNNAMED_AGENT
#: Line types that only these files have, among all formats with typed lines.
_OWN_TYPES = ("summary", "file-history-snapshot", "queue-operation", "progress", "custom-title", "ai-title")


class ClaudeCodeImporter:
    name = "claude-code"
    title = "Claude Code session (JSONL, or JSON of claude.ai/code)"

    def detect(self, file: ImportFile) -> bool:
        document = file.whole()
        if isinstance(document, Mapping) and "loglines" in document:
            return isinstance(document["loglines"], list)
        # A document can have objects on separate lines that are not lines of a session.
        values = [document] if isinstance(document, Mapping) else file.first_lines()
        lines = [value for value in values if isinstance(value, Mapping)]
        return any("type" in line and ("sessionId" in line or line["type"] in _OWN_TYPES) for line in lines)

    def read(self, file: ImportFile) -> Iterator[Item]:
        sessions = [session for session in map(_Session, read_sessions(file)) if session.has_content]
        if not sessions:
            raise NothingToImport(file.name, "no user or assistant lines")
        for session in sessions:
            yield from session.items()


class _Session:
    """The runs of a session and its sub-agents."""

    def __init__(self, lines: SessionLines) -> None:
        self._lines = lines
        self._main = lines.main
        self._has_messages = any(line.kind in MESSAGES for line in self._main)
        self._sub_agents = lines.sub_agents()
        self.has_content = self._has_messages or bool(self._sub_agents)
        if not self.has_content:
            return
        self._session_id = _session_id(self._lines)
        self._run_ref = f"claude-code:{self._session_id}"
        self._labels = folder_labels(lines.folder, lines.branch)
        self._folder = usable_folder(lines.folder)

    def items(self) -> Iterator[Item]:
        agents = dict(self._agents())
        if self._has_messages:
            yield self._head()
            yield from ClaudeConversation(self._run_ref, self._main, agents=agents, has_call_names=True).events()
        for sub_agent in self._sub_agents:
            head = self._head_of(sub_agent)
            yield head
            conversation = ClaudeConversation(head.run_ref, sub_agent.lines, agents=agents, has_call_names=True)
            yield from conversation.events()

    def _agents(self) -> Iterator[tuple[str, SpawnedAgent]]:
        """Yield the sub-agents by the ID of the call that spawned them. Their lines may be in other files."""
        for call_id, agent_id in self._lines.agent_ids.items():
            key = event_id(agent_id)
            kind = text_or_empty(self._lines.requests.get(call_id, {}).get("subagent_type"))
            is_in_background = call_id in self._lines.in_background
            agent = SpawnedAgent(
                run_ref=f"{self._run_ref}:{key}", key=key, agent=kind, is_in_background=is_in_background
            )
            yield call_id, agent

    def _head(self) -> ImportedRun:
        return ImportedRun(
            run_ref=self._run_ref,
            agent=AGENT,
            model=_model(self._main),
            title=_title(self._lines),
            session_id=self._session_id,
            created_at=_first_time(self._main),
            labels=self._labels,
            folder=self._folder,
            forked_ref=self._forked_ref(),
        )

    def _forked_ref(self) -> str:
        """Return the reference of the session that the last copied line names: the nearest ancestor; empty without."""
        names = [line.copied_from for line in self._main if line.copied_from]
        return f"claude-code:{_usable_id(names[-1])}" if names else ""

    def _head_of(self, sub_agent: SubAgent) -> ImportedRun:
        """Return the head of a sub-agent's run, from its call or else from its description."""
        about = about_agent(self._lines.file, sub_agent.key)
        call_id = sub_agent.call_id or about.call_id
        request = self._lines.requests.get(call_id, {})
        kind, description = request.get("subagent_type"), request.get("description")
        title = description if isinstance(description, str) else about.title
        has_ended = call_id in self._lines.ended_calls and call_id not in self._lines.in_background
        return ImportedRun(
            run_ref=f"{self._run_ref}:{sub_agent.key}",
            agent=kind if isinstance(kind, str) and kind else about.agent or AGENT,
            model=_model(sub_agent.lines),
            title=title[:MAX_TITLE],
            session_id=self._session_id,
            created_at=_first_time(sub_agent.lines),
            parent_ref=f"{self._run_ref}:{sub_agent.parent}" if sub_agent.parent else self._run_ref,
            parent_call_id=call_id,
            labels=self._labels,
            folder=self._folder,
            ended=RunStatus.COMPLETED if has_ended else None,
        )


def _session_id(lines: SessionLines) -> str:
    if lines.session_id:
        return _usable_id(lines.session_id)
    # A file without a session ID is identified by its first line, which does not change while the file grows.
    return _digest(canonical(next(iter(lines.by_uuid.values())).data))


def _usable_id(session_id: str) -> str:
    """Return a session ID, or a digest of an ID that cannot be stored."""
    return session_id if is_identifier(session_id) else _digest(session_id)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]


def _title(lines: SessionLines) -> str:
    """Return the title of the session, or else its last summary, or its first prompt."""
    # A file can also have the summaries of other sessions.
    own = (summary for summary, leaf in reversed(lines.summaries) if leaf in lines.by_uuid)
    return lines.title or next(own, lines.prompt[:MAX_TITLE])


def _model(lines: Sequence[ConversationLine]) -> str:
    return next((line.model for line in lines if line.model), "")


def _first_time(lines: Sequence[ConversationLine]) -> datetime | None:
    return next((line.at for line in lines if line.at), None)


#: The name of a sub-agent's file begins with `PREFIX`; the name of its description ends with `ENDING`.
PREFIX, ENDING = "agent-", ".meta.json"
#: Maximum bytes of a description.
MAX_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """The type of a sub-agent, a title of its task, and the call that spawned it; empty where unknown."""

    agent: str = ""
    title: str = ""
    call_id: str = ""


def is_about_agent(path: Path) -> bool:
    """Return whether a file is the description of a sub-agent, whose session is in another file."""
    return path.name.endswith(ENDING)


def file_of_agent(path: Path) -> Path:
    """Return the session file of the sub-agent that a description belongs to."""
    return path.with_name(path.name.removesuffix(ENDING) + ".jsonl")


def about_agent(file: ImportFile, key: str) -> AgentFacts:
    """Return the facts in the description next to `file`, if `file` is of the sub-agent `key`; otherwise none."""
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
    return AgentFacts(
        agent=identifier_or_none(value.get("agentType")) or "",
        title=text_or_empty(value.get("description")),
        call_id=identifier_or_none(value.get("toolUseId")) or "",
    )
