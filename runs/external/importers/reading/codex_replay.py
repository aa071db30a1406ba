"""Finds the copied history in a Codex rollout: a fork or a sub-agent begins with the history of its parent.

Codex writes the history again, with its original timestamps or with the fork's. Nothing marks its end. Evidence: the
thread's creation time; in newer versions, the time in each turn's ID; and pauses, because a model needs time while a
history is written at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from runs.external.importers.answer_events import time_or_none
from runs.external.importers.codex_lines import RolloutLine

#: Lines without a pause of this length are a copied history.
PAUSE = timedelta(milliseconds=500)
_STARTS = ("task_started", "turn_started")


@dataclass
class ThreadOrigin:
    """The thread that a rollout continues, and the length of its history in the rollout."""

    thread_id: str
    #: Whether the thread spawned this one. Otherwise, a person forked it.
    is_parent: bool
    #: The number of lines before the rollout's new part.
    copied: int = 0


def origin_of(lines: Iterable[RolloutLine]) -> ThreadOrigin | None:
    """Return the origin of a rollout; None if it continues no thread. Does not read the lines of other rollouts."""
    head: RolloutLine | None = None
    found: ThreadOrigin | None = None
    history = _History()
    for number, line in enumerate(lines):
        if line.type == "session_meta":
            if head is None:
                head, found = line, _named_in(line.payload)
                history.begin(line)
            elif number == 1 and line.text("id") not in ("", head.text("id")):
                found = found or ThreadOrigin(line.text("id"), is_parent=False)
                history.is_certain = True
        if number > 1 and found is None:
            return None
        history.add(number, line)
    if found is not None:
        found.copied = history.length()
    return found


def _named_in(meta: Mapping[str, Any]) -> ThreadOrigin | None:
    source = meta.get("source")
    spawn = source.get("subagent") if isinstance(source, Mapping) else None
    spawn = spawn.get("thread_spawn") if isinstance(spawn, Mapping) else None
    spawned_by = spawn.get("parent_thread_id") if isinstance(spawn, Mapping) else None
    for value, is_parent in (
        (spawned_by, True),
        (meta.get("parent_thread_id"), True),
        (meta.get("forked_from_id"), meta.get("thread_source") == "subagent"),
    ):
        if isinstance(value, str) and 1 <= len(value) <= 128 and value.isprintable() and value != meta.get("id"):
            return ThreadOrigin(value, is_parent)
    return None


@dataclass
class _History:
    """The lines of a rollout that show where its history ends."""

    made_at: datetime | None = None
    thread_at: int | None = None
    #: Whether a history certainly exists.
    is_certain: bool = False
    _lines: int = 0
    #: The line that follows the last line older than the thread.
    _after_old: int = 0
    #: The first line of a turn younger than the thread, by its ID; whether turns have such IDs.
    _own_turn: int | None = None
    _has_turn_ids: bool = False
    _starts: list[int] = field(default_factory=list)
    #: The first and the last line with tokens, and the first line after a pause.
    _first_count: int | None = None
    _last_count: int = -1
    _after_pause: int | None = None
    _before: datetime | None = None

    def begin(self, meta: RolloutLine) -> None:
        self.made_at = time_or_none(meta.payload.get("timestamp")) or meta.at
        self.thread_at = _time_of(meta.text("id"))
        self.is_certain = bool(meta.text("forked_from_id"))

    def add(self, number: int, line: RolloutLine) -> None:
        self._lines = number + 1
        if line.type == "session_meta":
            self._before = line.at or self._before
            return
        if line.at is not None:
            if self.made_at is not None and line.at < self.made_at:
                self._after_old = number + 1
            if self._after_pause is None and self._before is not None and line.at - self._before >= PAUSE:
                self._after_pause = number
            self._before = line.at
        if line.type == "turn_context" or line.kind in _STARTS:
            self._starts.append(number)
            turn_at = _time_of(line.text("turn_id"))
            if turn_at is not None and self.thread_at is not None:
                self._has_turn_ids = True
                if self._own_turn is None and turn_at >= self.thread_at:
                    self._own_turn = number
        elif line.kind == "token_count":
            self._first_count = number if self._first_count is None else self._first_count
            self._last_count = number

    def length(self) -> int:
        """Return the number of lines before the new part: 0 without a history."""
        if self._has_turn_ids:
            return self._lines if self._own_turn is None else self._own_turn
        if self._after_old:
            return self._after_old
        if len(self._starts) == 1:
            return self._starts[0]
        if self._after_pause is None:
            # A turn without an answer yet is not history.
            has_begun = bool(self._starts) and self._last_count < self._starts[-1]
            return self._begin_of(self._starts[-1]) if has_begun else self._lines
        before = [start for start in self._starts if start <= self._after_pause]
        later = [start for start in self._starts if self._first_count is not None and start > self._first_count]
        if self.is_certain and later and later[0] > self._after_pause:
            # It was written slowly. Lines wrongly treated as history are still counted, and only once.
            return self._begin_of(later[-1])
        return self._begin_of(before[-1]) if before else self._after_pause

    def _begin_of(self, start: int) -> int:
        """Return the first of the lines that begin a turn together."""
        while start - 1 in self._starts:
            start -= 1
        return start


def _time_of(name: str) -> int | None:
    """Return the time in a UUID, in milliseconds since 1970; None for an ID without a time."""
    try:
        value = UUID(name)
    except ValueError:
        return None
    return value.int >> 80 if value.version == 7 else None
