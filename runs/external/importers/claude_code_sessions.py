"""Sessions of Claude Code: the JSONL files of its folder `projects`, and the session JSON of claude.ai/code.

All lines of the conversation are kept in the order of the file, also those that were rewound. Lines of sub-agents
become runs of their own: lines with `isSidechain`, and the `agent_progress` lines of newer versions.

A file may grow, and end in the middle of an answer. What it has of that answer is imported; the rest follows with a
longer version of the file, as another answer of the run, with the tokens that it adds.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePath, PureWindowsPath
from typing import Any

from runs.external.importers.answer_events import event_id, identifier_or_none, time_or_none
from runs.external.importers.base import ImportedRun, ImportFile, Item, NothingToImport, Reader
from runs.external.importers.claude_conversation import ClaudeConversation, ConversationLine, has_result
from runs.lifecycle.title_limits import MAX_LABEL, MAX_TITLE
from runs.providers.messages import canonical
from runs.statuses import RunStatus

AGENT = "claude-code"
_MESSAGES = ("user", "assistant")
#: What only these files have, among the formats of lines with a type.
_OWN_TYPES = ("summary", "file-history-snapshot", "queue-operation", "progress")
MAX_SESSION_ID = 128
#: Lines in memory at a time: those of an answer are not far from each other.
KEPT_LINES = 64
_OF_SUB_AGENT = ("prompt", "subagent_type", "description")


@dataclass(eq=False)
class SubAgent:
    """The lines of a sub-agent, and the call of its parent, if it is known."""

    key: str
    lines: list[ConversationLine] = field(default_factory=list)
    call_id: str = ""


class ClaudeCodeImporter:
    """Sessions of Claude Code."""

    name = "claude-code"
    title = "Claude Code session (JSONL, or JSON of claude.ai/code)"

    def detect(self, file: ImportFile) -> bool:
        document = file.whole()
        if isinstance(document, Mapping) and "loglines" in document:
            return isinstance(document["loglines"], list)
        lines = [line for line in file.first_lines() if isinstance(line, Mapping)]
        return any("type" in line and ("sessionId" in line or line["type"] in _OWN_TYPES) for line in lines)

    def read(self, file: ImportFile) -> Iterator[Item]:
        session = _Session(file, *_lines(file))
        yield from session.items()


def _lines(file: ImportFile) -> tuple[list[ConversationLine], set[ConversationLine]]:
    """Return the lines, without repeated ones, and those of sub-agents.

    All must be objects before any message is looked at.
    """
    document = file.whole()
    if isinstance(document, Mapping) and "loglines" in document:
        if not isinstance(document["loglines"], list):
            raise file.refuse("not a list", pointer="/loglines")
        places: Iterable[tuple[Any, int | None, str, Reader | None]] = (
            (value, None, f"/loglines/{index}", None) for index, value in enumerate(document["loglines"])
        )
    else:
        places = ((value, number, "", reader) for number, value, reader in file.lines_and_readers())
    lines: dict[str, ConversationLine] = {}
    recent: deque[ConversationLine] = deque(maxlen=KEPT_LINES)
    for index, (value, number, pointer, reader) in enumerate(places):
        if not isinstance(value, Mapping):
            raise file.refuse("not a JSON object", line=number, pointer=pointer)
        uuid = value.get("uuid")
        line_id = uuid if isinstance(uuid, str) and uuid else str(number or index)
        if line_id not in lines:
            at = time_or_none(value.get("timestamp"))
            lines[line_id] = ConversationLine(
                file, value, line_id, number, pointer, at=at, reader=reader, recent=recent
            )
    of_sub_agents = set()
    for line in lines.values():
        if line.kind in _MESSAGES:
            line.check_message()
        if _is_of_sub_agent(line):
            of_sub_agents.add(line)
    return list(lines.values()), of_sub_agents


class _Session:
    """The runs of a file: the session, and its sub-agents."""

    def __init__(
        self, file: ImportFile, lines: Sequence[ConversationLine], of_sub_agents: Container[ConversationLine]
    ) -> None:
        self.file = file
        self.lines = lines
        self.by_uuid = {line.line_id: line for line in lines}
        self._of_sub_agents = [line for line in lines if line in of_sub_agents]
        self.main = [line for line in lines if line not in of_sub_agents]
        self.session_id = self._session_id()
        self.run_ref = f"claude-code:{self.session_id}"
        self.sub_agents = self._sub_agents()
        if not any(line.kind in _MESSAGES for line in self.main) and not self.sub_agents:
            raise NothingToImport(file.name, "no user or assistant lines")

    def items(self) -> Iterator[Item]:
        if any(line.kind in _MESSAGES for line in self.main):
            yield self._head()
            yield from ClaudeConversation(self.run_ref, self.main).events()
        for sub_agent in self.sub_agents:
            head = self._head_of(sub_agent)
            yield head
            yield from ClaudeConversation(head.run_ref, sub_agent.lines).events()

    def _head(self) -> ImportedRun:
        return ImportedRun(
            run_ref=self.run_ref,
            agent=AGENT,
            model=_model(self.main),
            title=self._title(),
            session_id=self.session_id,
            created_at=next((line.at for line in self.main if line.at), None),
            labels=self._labels(),
        )

    def _head_of(self, sub_agent: SubAgent) -> ImportedRun:
        request = self._calls.get(sub_agent.call_id, {})
        kind = request.get("subagent_type")
        description = request.get("description")
        is_done = bool(sub_agent.call_id) and has_result(self.main, sub_agent.call_id)
        return ImportedRun(
            run_ref=f"{self.run_ref}:{sub_agent.key}",
            agent=kind if isinstance(kind, str) and kind else AGENT,
            model=_model(sub_agent.lines),
            title=description[:MAX_TITLE] if isinstance(description, str) else "",
            session_id=self.session_id,
            created_at=next((line.at for line in sub_agent.lines if line.at), None),
            parent_ref=self.run_ref,
            parent_call_id=sub_agent.call_id,
            labels=self._labels(),
            ended=RunStatus.COMPLETED if is_done else None,
        )

    def _session_id(self) -> str:
        named = (line.data.get("sessionId") for line in self.lines)
        session_id = next((name for name in named if isinstance(name, str) and name), "")
        if session_id.isprintable() and 1 <= len(session_id) <= MAX_SESSION_ID:
            return session_id
        # A file without one is known by its first line, which stays the same while it grows.
        first = canonical(self.lines[0].data) if self.lines else ""
        return hashlib.sha256((session_id or first).encode(errors="replace")).hexdigest()[:32]

    def _title(self) -> str:
        """Return the summary of this session, or its first prompt. Files also hold summaries of other sessions."""
        for line in reversed(self.main):
            if line.kind != "summary":
                continue
            summary = line.data.get("summary")
            if isinstance(summary, str) and str(line.data.get("leafUuid")) in self.by_uuid:
                return summary[:MAX_TITLE]
        for line in self.main:
            text = line.text.strip()
            if text and not line.data.get("isMeta") and not text.startswith("<"):
                return text.splitlines()[0][:MAX_TITLE]
        return ""

    def _labels(self) -> list[str]:
        labels = []
        for name, label in (("cwd", "folder"), ("gitBranch", "branch")):
            values = (line.data.get(name) for line in self.lines)
            value = next((value for value in values if isinstance(value, str) and value), "")
            if name == "cwd":
                value = PureWindowsPath(value).name if "\\" in value else PurePath(value).name
            if value:
                labels.append(f"{label}:{value}"[:MAX_LABEL])
        return labels

    @cached_property
    def _calls(self) -> dict[str, Mapping[str, Any]]:
        """The arguments of the session's calls that say something about a sub-agent, for files with sub-agents."""
        blocks = (block for line in self.main for block in line.calls)
        return {
            block["id"]: {name: block["input"][name] for name in _OF_SUB_AGENT if name in block["input"]}
            for block in blocks
            if isinstance(block.get("input"), Mapping)
        }

    # --- Sub-agents -----------------------------------------------------------------------------------------------

    def _sub_agents(self) -> list[SubAgent]:
        found: dict[str, SubAgent] = {}
        seen: set[tuple[str, str]] = set()
        for line in self._of_sub_agents:
            inner = _inner_line(line)
            key, call_id = self._owner(line)
            sub_agent = found.setdefault(key, SubAgent(key))
            sub_agent.call_id = sub_agent.call_id or call_id
            if (key, inner.line_id) not in seen:
                seen.add((key, inner.line_id))
                sub_agent.lines.append(inner)
        unused = {call_id: request.get("prompt") for call_id, request in self._calls.items()} if found else {}
        for sub_agent in found.values():
            unused.pop(sub_agent.call_id, None)
        for sub_agent in found.values():
            if not sub_agent.call_id:
                prompt = next((line.text for line in sub_agent.lines if line.text), None)
                sub_agent.call_id = next((call for call, asked in unused.items() if asked == prompt and prompt), "")
                unused.pop(sub_agent.call_id, None)
        return [sub_agent for sub_agent in found.values() if any(line.kind in _MESSAGES for line in sub_agent.lines)]

    def _owner(self, line: ConversationLine) -> tuple[str, str]:
        """Return the key of the sub-agent of a line, and the call of its parent, if the line names it."""
        data = line.data.get("data")
        if line.kind == "progress" and isinstance(data, Mapping):
            call_id = identifier_or_none(line.data.get("parentToolUseID")) or ""
            return event_id(str(data.get("agentId") or call_id or line.line_id)), call_id
        agent_id = line.data.get("agentId")
        if isinstance(agent_id, str) and agent_id:
            return event_id(agent_id), ""
        seen = {line.line_id}
        while (parent := self.by_uuid.get(str(line.data.get("parentUuid")))) is not None:
            if parent.line_id in seen or not parent.data.get("isSidechain"):
                break
            seen.add(parent.line_id)
            line = parent
        return event_id(line.line_id), ""


def _is_of_sub_agent(line: ConversationLine) -> bool:
    if line.kind != "progress":
        return bool(line.data.get("isSidechain"))
    data = line.data.get("data")
    if not isinstance(data, Mapping) or data.get("type") != "agent_progress":
        return False
    return isinstance(data.get("message"), Mapping)


def _inner_line(line: ConversationLine) -> ConversationLine:
    """Return the line of a sub-agent that a line of its parent reports."""
    if line.kind != "progress":
        return line
    data = line.data["data"]["message"]
    uuid = data.get("uuid")
    line_id = uuid if isinstance(uuid, str) and uuid else line.line_id
    inner = ConversationLine(
        line.file,
        data,
        line_id,
        line.number,
        line.pointer,
        at=time_or_none(data.get("timestamp")) or line.at,
        reader=lambda: line.data["data"]["message"],
        recent=line.recent,
    )
    if inner.kind in _MESSAGES:
        inner.check_message()
    return inner


def _model(lines: Sequence[ConversationLine]) -> str:
    return next((line.model for line in lines if line.model), "")
