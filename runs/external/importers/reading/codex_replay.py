"""What a rollout of Codex has of another one: a fork and a sub-agent begin with the history of their parent.

The history is written again with its own timestamps, or with those of the fork. Nothing marks where it ends. Known are:
when the thread was made, and in newer versions when each turn was, by its ID; and that a model takes its time, while a
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

#: Without a pause of this length, lines are a history that is written again.
PAUSE = timedelta(milliseconds=500)
_STARTS = ("task_started", "turn_started")


@dataclass
class ThreadOrigin:
    """The thread that a rollout continues, and the part of the rollout that is its history."""

    thread_id: str
    #: Whether the thread has spawned this one. Otherwise, a person has forked it.
    is_parent: bool
    #: The number of the lines before the own part.
    copied: int = 0


def origin_of(lines: Iterable[RolloutLine]) -> ThreadOrigin | None:
    """Return what a rollout continues; None for one that continues no other. Reads the lines of no other one."""
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
    """The lines of a rollout, as far as they say where its history ends."""

    made_at: datetime | None = None
    thread_at: int | None = None
    #: Whether there is one for sure.
    is_certain: bool = False
    _lines: int = 0
    #: The line after the last one that is older than the thread.
    _after_old: int = 0
    #: The first line of a turn that is younger than the thread, by its ID; whether turns have such IDs.
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
        """Return the number of lines before the own part: 0 if there is no history."""
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
            # It was written slowly. What is taken for a part of it by mistake is counted all the same, but not twice.
            return self._begin_of(later[-1])
        return self._begin_of(before[-1]) if before else self._after_pause

    def _begin_of(self, start: int) -> int:
        """Return the first of the lines that begin a turn together."""
        while start - 1 in self._starts:
            start -= 1
        return start


def _time_of(name: str) -> int | None:
    """Return the milliseconds since 1970 of a UUID that has them; None for another ID."""
    try:
        value = UUID(name)
    except ValueError:
        return None
    return value.int >> 80 if value.version == 7 else None
