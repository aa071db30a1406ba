"""Sessions of Claude Code: the JSONL files of its folder `projects`, and the session JSON of claude.ai/code.

All lines of the conversation are kept in file order, including rewound lines. Lines of sub-agents become separate runs:
lines with `isSidechain`, and the `agent_progress` lines of newer versions.

A file may grow, and may end in the middle of an answer. The existing part of the answer is imported. The rest follows
with a longer version of the file, as another answer of the run with only the additional tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import PurePath, PureWindowsPath

from runs.external.importers.answer_events import event_id
from runs.external.importers.base import ImportedRun, ImportFile, Item, NothingToImport
from runs.external.importers.claude_conversation import MESSAGES, ClaudeConversation, ConversationLine
from runs.external.importers.reading.claude_agent_files import about_agent
from runs.external.importers.reading.claude_session_lines import SessionLines, SubAgent, read_sessions
from runs.external.importers.spawned_agents import UNNAMED, SpawnedAgent
from runs.lifecycle.title_limits import MAX_LABEL, MAX_TITLE
from runs.providers.messages import canonical
from runs.statuses import RunStatus

AGENT = UNNAMED
#: Line types that only these files have, among all formats with typed lines.
_OWN_TYPES = ("summary", "file-history-snapshot", "queue-operation", "progress", "custom-title", "ai-title")
MAX_SESSION_ID = 128


class ClaudeCodeImporter:
    """Sessions of Claude Code."""

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
        self._labels = _labels(self._lines)

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
        """Yield the sub-agents that calls spawned. Their lines may be in separate files."""
        for call_id, agent_id in self._lines.agent_ids.items():
            key = event_id(agent_id)
            kind = self._lines.requests.get(call_id, {}).get("subagent_type")
            yield (
                call_id,
                SpawnedAgent(
                    run_ref=f"{self._run_ref}:{key}",
                    key=key,
                    agent=kind if isinstance(kind, str) else "",
                    is_in_background=call_id in self._lines.in_background,
                ),
            )

    def _head(self) -> ImportedRun:
        return ImportedRun(
            run_ref=self._run_ref,
            agent=AGENT,
            model=_model(self._main),
            title=_title(self._lines),
            session_id=self._session_id,
            created_at=_first_time(self._main),
            labels=self._labels,
            forked_ref=self._forked_ref(),
        )

    def _forked_ref(self) -> str:
        """Return the session that the last copied line names, which is the nearest ancestor."""
        names = [line.copied_from for line in self._main if line.copied_from]
        return f"claude-code:{_usable_id(names[-1])}" if names else ""

    def _head_of(self, sub_agent: SubAgent) -> ImportedRun:
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
            ended=RunStatus.COMPLETED if has_ended else None,
        )


def _session_id(lines: SessionLines) -> str:
    session_id = lines.session_id
    if session_id:
        return _usable_id(session_id)
    # A file without a session ID is identified by its first line, which does not change while the file grows.
    first = canonical(next(iter(lines.by_uuid.values())).data)
    return _digest(first)


def _usable_id(session_id: str) -> str:
    return session_id if session_id.isprintable() and len(session_id) <= MAX_SESSION_ID else _digest(session_id)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]


def _title(lines: SessionLines) -> str:
    """Return the title of this session, its summary, or its first prompt.

    The file can also have other sessions' titles.
    """
    own = (summary for summary, leaf in reversed(lines.summaries) if leaf in lines.by_uuid)
    return lines.title or next(own, lines.prompt[:MAX_TITLE])


def _labels(lines: SessionLines) -> list[str]:
    folder = lines.folder
    folder = PureWindowsPath(folder).name if "\\" in folder else PurePath(folder).name
    values = {"folder": folder, "branch": lines.branch}
    return [f"{label}:{value}"[:MAX_LABEL] for label, value in values.items() if value]


def _model(lines: Sequence[ConversationLine]) -> str:
    return next((line.model for line in lines if line.model), "")


def _first_time(lines: Sequence[ConversationLine]) -> datetime | None:
    return next((line.at for line in lines if line.at), None)
