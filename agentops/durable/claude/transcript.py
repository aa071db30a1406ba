"""The transcript of a session: the entries that the journal has, and the copy from which a program continues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from agentops.durable.answers import Call
from agentops.durable.claude.outcomes import ToolOutcome

Entry = dict[str, Any]
#: Entries by the path of their sub-agent; the session itself has the path "".
Entries = dict[str, list[Entry]]
#: The members of an entry that hold for the entries after it.
_COMMON = ("userType", "entrypoint", "cwd", "version", "gitBranch")


@dataclass(frozen=True)
class Continuation:
    """Additions to the journal's entries with which a program continues a turn."""

    #: The outcomes of calls of the last answer, by the ID of the call.
    outcomes: Mapping[str, ToolOutcome]
    #: Messages of people.
    texts: Sequence[Any] = ()
    #: A call that the program executes first.
    deferred: Call | None = None

    @property
    def is_needed(self) -> bool:
        """Whether the program continues a turn, instead of waiting for a message."""
        return bool(self.outcomes or self.texts or self.deferred)


class ClaudeJournal:
    """The entries of a session that the journal has."""

    def __init__(self) -> None:
        self._entries: Entries = {}

    @property
    def is_empty(self) -> bool:
        """Whether the session has not begun."""
        return not self._entries.get("")

    def add(self, entries: Mapping[str, Iterable[Mapping[str, Any]]]) -> None:
        """Append entries."""
        for path, added in entries.items():
            self._entries.setdefault(path, []).extend(dict(entry) for entry in added)

    def added_for(self, continuation: Continuation) -> list[Entry]:
        """Return the entries that the program would have written if it had not ended."""
        added: list[Entry] = []
        requests = self._requests()
        for call_id, outcome in continuation.outcomes.items():
            if (request := requests.get(call_id)) is not None:
                added.append(_result(request, call_id, outcome))
        if (call := continuation.deferred) is not None and call.id in requests:
            added.append(_deferred(requests[call.id], call))
        for text in continuation.texts:
            added.append(_after([*self._entries[""], *added][-1], "user", message={"role": "user", "content": text}))
        return added

    def copy(self, session_id: str, added: Iterable[Entry]) -> Entries:
        """Return all entries under the ID of a session. `added`: further entries of the session itself."""
        entries = {**self._entries, "": [*self._entries.get("", ()), *added]}
        return {path: [{**entry, **_renamed(entry, session_id)} for entry in rows] for path, rows in entries.items()}

    def _requests(self) -> dict[str, Entry]:
        """Return the entries of the answers by the IDs of the calls that they request."""
        requests: dict[str, Entry] = {}
        for entry in self._entries.get("", ()):
            if entry.get("type") == "assistant":
                requests |= {str(block["id"]): entry for block in _blocks(entry) if block.get("type") == "tool_use"}
        return requests


def _blocks(entry: Entry) -> list[dict[str, Any]]:
    content = (entry.get("message") or {}).get("content")
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _renamed(entry: Entry, session_id: str) -> dict[str, str]:
    return {"sessionId": session_id} if "sessionId" in entry else {}


def _after(parent: Entry, kind: str, **members: Any) -> Entry:
    """Return a new entry after another one."""
    common = {name: parent[name] for name in _COMMON if name in parent}
    return {
        "parentUuid": parent.get("uuid"),
        "isSidechain": False,
        "type": kind,
        "uuid": str(uuid4()),
        "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "sessionId": parent.get("sessionId"),
        **common,
        **members,
    }


def _result(request: Entry, call_id: str, outcome: ToolOutcome) -> Entry:
    """Return the entry with the result of a call. `request`: the entry of the answer with the call."""
    block = {"type": "tool_result", "tool_use_id": call_id, "content": outcome.content, "is_error": outcome.is_error}
    message = {"role": "user", "content": [block]}
    return _after(request, "user", message=message, toolUseResult=outcome.content)


def _deferred(request: Entry, call: Call) -> Entry:
    """Return the entry that makes the program execute a call: as if a hook had deferred it."""
    attachment = {
        "type": "hook_deferred_tool",
        "toolUseID": call.id,
        "toolName": call.name,
        "toolInput": dict(call.arguments),
        "hookName": "agentops",
        "hookEvent": "PreToolUse",
        "permissionMode": "default",
    }
    return _after(request, "attachment", attachment=attachment)
