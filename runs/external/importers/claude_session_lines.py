"""Reads the lines of Claude Code sessions, and the facts about their runs that are needed before the first event.

One pass reads all lines without keeping their contents. The contents are read again when the events are created.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePath
from sys import intern
from typing import Any

from runs.external import contents
from runs.external.importers.answer_events import event_id, identifier_or_none, time_or_none
from runs.external.importers.base import ImportFile, ImportRefused, Reader
from runs.external.importers.claude_conversation import MESSAGES, ConversationLine
from runs.lifecycle.title_limits import MAX_TITLE

#: Lines whose contents are kept in memory. The lines of one answer are close to each other.
KEPT_LINES = 64
#: The arguments of a call that describe the sub-agent it spawns.
_AGENT_ARGUMENTS = ("prompt", "subagent_type", "description")
#: The arguments among them that only calls for sub-agents have.
_ONLY_AGENT_ARGUMENTS = ("prompt", "subagent_type")
#: The types of lines with a title, and the field of the title. The first type has precedence.
TITLES = {"custom-title": "customTitle", "ai-title": "aiTitle"}
#: The status of a result whose sub-agent works in the background.
_LAUNCHED = "async_launched"
_AGENT_ID = re.compile(r"\bagentId: ?([\w-]{1,64})")


@dataclass(eq=False)
class SubAgent:
    """The lines of a sub-agent, and the call of its parent, if known."""

    key: str
    lines: list[ConversationLine] = field(default_factory=list)
    call_id: str = ""
    #: The key of the sub-agent that requested the call; empty if the session requested it.
    parent: str = ""


class SessionLines:
    """The lines of a session without repeats, and the facts about the session that they contain."""

    def __init__(self, file: ImportFile) -> None:
        self.file = file
        #: All lines by their ID, in file order.
        self.by_uuid: dict[str, ConversationLine] = {}
        #: The lines of the session itself, without sub-agents.
        self.main: list[ConversationLine] = []
        #: The ID of the session, as in its lines. If they have several IDs, the file name may select one.
        self.session_id = ""
        #: The working directory and the Git branch, each from the first line that has it.
        self.folder = self.branch = ""
        #: The first line of the first prompt in the lines of each session.
        self._prompts: dict[str, str] = {}
        #: Summaries, each with the ID of the last line of the conversation that it describes.
        self.summaries: list[tuple[str, str]] = []
        #: The newest title of each type, by session.
        self._titles: dict[str, dict[str, str]] = {}
        #: By the ID of a call: its arguments that describe the sub-agent it spawns.
        self.requests: dict[str, Mapping[str, Any]] = {}
        #: The calls that have a result.
        self.ended_calls: set[str] = set()
        #: The ID of the sub-agent that a call spawned, from the result of the call.
        self.agent_ids: dict[str, str] = {}
        #: The calls whose sub-agents keep working after the result.
        self.in_background: set[str] = set()
        #: The lines of sub-agents.
        self._of_sub_agents: list[ConversationLine] = []
        #: By the ID of each line of a sub-agent: the ID of the preceding line of its conversation.
        self._parents: dict[str, str] = {}
        #: By the ID of a line of a sub-agent: the ID of the first line of its conversation. `_first_of` fills it.
        self._firsts: dict[str, str] = {}

    @property
    def prompt(self) -> str:
        """Return the first line of the session's first prompt, or else of the first copied prompt."""
        return self._prompts.get(self.session_id) or next(filter(None, self._prompts.values()), "")

    def add(self, line: ConversationLine) -> None:
        """Add the next line, unless it is a repeat. Raises `ImportRefused` if its message is invalid."""
        if line.line_id in self.by_uuid:
            return
        if line.kind in MESSAGES:
            line.check_message()
        self.by_uuid[line.line_id] = line
        self.folder = self.folder or _text(line, "cwd")
        self.branch = self.branch or _text(line, "gitBranch")
        if line.data.get("isSidechain"):
            self._parents[line.line_id] = str(line.data.get("parentUuid"))
        self._note_calls(line)
        if _is_of_sub_agent(line):
            self._of_sub_agents.append(line)
        else:
            self.main.append(line)
            self._note_title_and_prompt(line)

    def mark_copied(self) -> None:
        """Set `copied_from` of the first lines that the program copied from another session in order to continue it.

        A copied line has the ID of the other session, or names it in `forkedFrom`.
        """
        for line in self.main:
            origin = line.forked_from or line.session_id
            if origin == self.session_id:
                if line.kind in (*MESSAGES, "system"):
                    return
                continue  # the program's notes about the new session may come before the copied lines
            line.copied_from = origin

    def sub_agents(self) -> list[SubAgent]:
        """Return the sub-agents of the session that have messages, parents before children."""
        by_key: dict[str, SubAgent] = {}
        seen: set[tuple[str, str]] = set()
        for line in self._of_sub_agents:
            try:
                inner = _inner_line(line)
            except ImportRefused as refusal:
                self.file.leave_out(refusal)
                continue
            key, call_id = self._owner(line)
            sub_agent = by_key.setdefault(key, SubAgent(key))
            sub_agent.call_id = sub_agent.call_id or call_id
            if (key, inner.line_id) not in seen:
                seen.add((key, inner.line_id))
                sub_agent.lines.append(inner)
        sub_agents = [one for one in by_key.values() if any(line.kind in MESSAGES for line in one.lines)]
        self._find_calls(sub_agents)
        return _parents_first(sub_agents)

    @property
    def title(self) -> str:
        """Return the title that a person gave to the session, or else the program's title; empty without either."""
        titles = self._titles.get(self.session_id, {})
        return next((titles[kind] for kind in TITLES if kind in titles), "")

    def _note_title_and_prompt(self, line: ConversationLine) -> None:
        """Note the title, the summary or the first prompt in a line that is of no sub-agent.

        A text that starts with "<" is no prompt: the program writes commands and notices as tags.
        """
        if line.kind in TITLES and not line.forked_from:
            title = " ".join(_text(line, TITLES[line.kind]).split())[:MAX_TITLE]
            if title:
                self._titles.setdefault(line.session_id, {})[line.kind] = title
        if line.kind == "summary" and (summary := _text(line, "summary")):
            self.summaries.append((summary[:MAX_TITLE], str(line.data.get("leafUuid"))))
        session_id = line.forked_from or line.session_id
        if not self._prompts.get(session_id) and not line.data.get("isMeta"):
            text = line.text.strip()
            self._prompts[session_id] = "" if text.startswith("<") else text.partition("\n")[0]

    def _note_calls(self, line: ConversationLine) -> None:
        """Note the facts about sub-agents in the calls and results of a line."""
        for block in line.calls:
            request = block.get("input")
            if isinstance(request, Mapping) and any(name in request for name in _ONLY_AGENT_ARGUMENTS):
                self.requests[block["id"]] = {name: request[name] for name in _AGENT_ARGUMENTS if name in request}
        results = line.results
        about = line.data.get("toolUseResult") if len(results) == 1 else None
        for block in results:
            call_id = block["tool_use_id"]
            self.ended_calls.add(call_id)
            agent_id = _agent_id(about, block) if call_id in self.requests else ""
            if agent_id:
                self.agent_ids[call_id] = agent_id
            if isinstance(about, Mapping) and (about.get("isAsync") is True or about.get("status") == _LAUNCHED):
                self.in_background.add(call_id)

    def _owner(self, line: ConversationLine) -> tuple[str, str]:
        """Return the key of the line's sub-agent, and the ID of the call that spawned it, if the line names that."""
        data = line.data.get("data")
        if line.kind == "progress" and isinstance(data, Mapping):
            call_id = identifier_or_none(line.data.get("parentToolUseID")) or ""
            return event_id(str(data.get("agentId") or call_id or line.line_id)), call_id
        if agent_id := _text(line, "agentId"):
            return event_id(agent_id), ""
        return event_id(self._first_of(line.line_id)), ""

    def _first_of(self, line_id: str) -> str:
        """Return the ID of the first line of a line's conversation. Visits each line once in all calls together."""
        path, first = [], line_id
        while first not in self._firsts:
            self._firsts[first] = first  # breaks a cycle
            path.append(first)
            parent = self._parents[first]
            first = parent if parent in self._parents else first
        first = self._firsts[first]
        self._firsts.update((below, first) for below in path)
        return first

    def _find_calls(self, sub_agents: Iterable[SubAgent]) -> None:
        """Set the calls of sub-agents whose lines do not name them: found by the results, or else by the prompts."""
        by_agent = {event_id(agent_id): call_id for call_id, agent_id in self.agent_ids.items()}
        for sub_agent in sub_agents:
            sub_agent.call_id = sub_agent.call_id or by_agent.get(sub_agent.key, "")
        named = {sub_agent.call_id for sub_agent in sub_agents}
        unused: dict[object, deque[str]] = {}
        for call_id, request in self.requests.items():
            prompt = request.get("prompt")
            if call_id not in named and isinstance(prompt, str) and prompt:
                unused.setdefault(prompt, deque()).append(call_id)
        for sub_agent in sub_agents:
            if not sub_agent.call_id:
                prompt = next((line.text for line in sub_agent.lines if line.text), None)
                if calls := unused.get(prompt):
                    sub_agent.call_id = calls.popleft()


def read_sessions(file: ImportFile) -> list[SessionLines]:
    """Read the whole file, and return its sessions. Raises `ImportRefused`.

    A file has the session that its name names; lines of other sessions at its beginning are copies. If it names none
    of several sessions, each session is returned separately.
    """
    lines = SessionLines(file)
    session_ids = _read(file, lines)
    name = PurePath(file.name).stem
    if name in session_ids or len(session_ids) < 2 or not lines.main:
        lines.session_id = name if name in session_ids else next(iter(session_ids), "")
        lines.mark_copied()
        return [lines]
    sessions = {session_id: SessionLines(file) for session_id in session_ids}
    for line in lines.by_uuid.values():
        sessions[line.session_id].add(line)
    for session_id, session in sessions.items():
        session.session_id = session_id
    return list(sessions.values())


def _read(file: ImportFile, lines: SessionLines) -> list[str]:
    """Add all lines of a file to `lines`, and return the IDs of their sessions.

    A line without a session ID belongs to the session of the line before it.
    """
    recent: deque[ConversationLine] = deque(maxlen=KEPT_LINES)
    session_ids: dict[str, None] = {}
    without_id: list[ConversationLine] = []
    session_id = ""
    for place in _places(file):
        try:
            line = _line(file, place, recent)
            session_id = intern(_text(line, "sessionId")) or session_id
            line.session_id = session_id
            lines.add(line)
        except ImportRefused as refusal:
            file.leave_out(refusal)
            continue
        if session_id:
            session_ids[session_id] = None
        else:
            without_id.append(line)
    for line in without_id:
        line.session_id = next(iter(session_ids), "")
    return list(session_ids)


@dataclass(frozen=True, slots=True)
class _Place:
    """A value and its place in the file."""

    value: Any
    #: Identical in all versions of the file.
    name: str
    line: int | None = None
    pointer: str = ""
    read: Reader | None = None


def _places(file: ImportFile) -> Iterator[_Place]:
    """Yield the lines of a session file, or of the session JSON of claude.ai/code."""
    document = file.whole()
    if not isinstance(document, Mapping) or "loglines" not in document:
        yield from (_Place(record.value, record.name, record.line, read=record.read) for record in file.records())
        return
    if not isinstance(document["loglines"], list):
        raise file.refuse("not a list", pointer="/loglines")
    for index, value in enumerate(document["loglines"]):
        yield _Place(value, str(index), pointer=f"/loglines/{index}")


def _line(file: ImportFile, place: _Place, recent: deque[ConversationLine]) -> ConversationLine:
    """Return the line at a place. Raises `ImportRefused` if the value is not an object."""
    value = place.value
    if not isinstance(value, Mapping):
        raise file.refuse("not a JSON object", line=place.line, pointer=place.pointer)
    uuid = value.get("uuid")
    line_id, at = uuid if isinstance(uuid, str) and uuid else place.name, time_or_none(value.get("timestamp"))
    return ConversationLine(file, value, line_id, place.line, place.pointer, at=at, reader=place.read, recent=recent)


def _text(line: ConversationLine, name: str) -> str:
    return contents.text_or_empty(line.data.get(name))


def _parents_first(sub_agents: Sequence[SubAgent]) -> list[SubAgent]:
    """Set the parent of each sub-agent that another one spawned. Return them with parents before children."""
    owners = {call_id: one for one in sub_agents for line in one.lines for call_id, _ in line.call_names}
    for one in sub_agents:
        owner = owners.get(one.call_id)
        one.parent = owner.key if owner is not None and owner is not one else ""
    ordered: dict[str, SubAgent] = {}
    waiting = list(sub_agents)
    while waiting:
        # If none is ready, the rest is a cycle.
        ready = [one for one in waiting if not one.parent or one.parent in ordered] or waiting
        ordered |= {one.key: one for one in ready}
        waiting = [one for one in waiting if one.key not in ordered]
    return list(ordered.values())


def _agent_id(about: object, block: Mapping[str, Any]) -> str:
    """Return the ID of the sub-agent that a result names, in its metadata or in its text."""
    if isinstance(about, Mapping) and isinstance(about.get("agentId"), str):
        return str(about["agentId"])
    match = _AGENT_ID.search(contents.text_content(block.get("content")))
    return match[1] if match else ""


def _is_of_sub_agent(line: ConversationLine) -> bool:
    """Return whether a sub-agent wrote the line or, in a `progress` line, its content."""
    if line.kind != "progress":
        return bool(line.data.get("isSidechain"))
    data = line.data.get("data")
    if not isinstance(data, Mapping) or data.get("type") != "agent_progress":
        return False
    return isinstance(data.get("message"), Mapping)


def _inner_line(line: ConversationLine) -> ConversationLine:
    """Return the sub-agent's line that a `progress` line of its parent contains; any other line unchanged."""
    if line.kind != "progress":
        return line
    data = line.data["data"]["message"]
    uuid = data.get("uuid")
    line_id = uuid if isinstance(uuid, str) and uuid else line.line_id
    at = time_or_none(data.get("timestamp")) or line.at
    reader = partial(_inner_data, line)
    inner = ConversationLine(
        line.file, data, line_id, line.number, line.pointer, at=at, reader=reader, recent=line.recent
    )
    if inner.kind in MESSAGES:
        inner.check_message()
    return inner


def _inner_data(line: ConversationLine) -> Any:
    return line.data["data"]["message"]
