"""Finds the copied history in a Codex rollout, and names the model calls of a rollout.

The rollout of a fork or of a sub-agent begins with the history of its parent. Codex writes the history again, with its
original timestamps or with the fork's, and nothing marks its end. These show the end: the creation time of the thread;
in newer versions, the time in each turn's ID; and pauses, because a model takes time, and a history is written at once.

A model call is named by its thread and by the total of tokens that the thread had used at that time. A copy repeats
both, and not all versions have response IDs. The total of a thread only grows, or restarts from zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from runs.external.event_input import is_identifier
from runs.external.foreign_payloads import count_of
from runs.external.importers.answer_events import event_id, time_or_none
from runs.external.importers.codex_lines import RolloutLine

#: The time between two lines from which on they were not written at once.
PAUSE = timedelta(milliseconds=500)
#: The events that begin a turn.
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
    """Return the origin of a rollout; None if it continues no thread. If so, only its first lines are read."""
    head: RolloutLine | None = None
    origin: ThreadOrigin | None = None
    history = _History()
    for number, line in enumerate(lines):
        if line.type == "session_meta":
            if head is None:
                head, origin = line, _named_in(line.payload)
                history.begin(line)
            elif number == 1 and line.text("id") not in ("", head.text("id")):
                # The copied history begins with the head of the other thread.
                origin = origin or ThreadOrigin(line.text("id"), is_parent=False)
                history.is_certain = True
        if number > 1 and origin is None:
            return None
        history.add(number, line)
    if origin is not None:
        origin.copied = history.length()
    return origin


def _named_in(meta: Mapping[str, Any]) -> ThreadOrigin | None:
    """Return the origin that the head of a rollout names."""
    source = meta.get("source")
    spawn = source.get("subagent") if isinstance(source, Mapping) else None
    spawn = spawn.get("thread_spawn") if isinstance(spawn, Mapping) else None
    spawned_by = spawn.get("parent_thread_id") if isinstance(spawn, Mapping) else None
    for value, is_parent in (
        (spawned_by, True),
        (meta.get("parent_thread_id"), True),
        (meta.get("forked_from_id"), meta.get("thread_source") == "subagent"),
    ):
        if is_identifier(value) and value != meta.get("id"):
            return ThreadOrigin(value, is_parent)
    return None


@dataclass
class _History:
    """The lines of a rollout, by number, that show where its copied history ends."""

    #: When the thread was created, according to its head.
    created_at: datetime | None = None
    #: The same time according to the thread's ID, in milliseconds since 1970.
    thread_ms: int | None = None
    #: Whether the file proves that a history exists.
    is_certain: bool = False
    _lines: int = 0
    #: The line that follows the last line older than the thread.
    _after_old: int = 0
    #: The first line of a turn that is younger than the thread, according to the turn's ID.
    _own_turn: int | None = None
    #: Whether the IDs of turns contain times.
    _has_turn_ids: bool = False
    #: The lines that begin turns.
    _starts: list[int] = field(default_factory=list)
    #: The first and the last line with tokens, and the first line after a pause.
    _first_count: int | None = None
    _last_count: int = -1
    _after_pause: int | None = None
    _before: datetime | None = None

    def begin(self, meta: RolloutLine) -> None:
        """Note the facts in the head of the rollout."""
        self.created_at = time_or_none(meta.payload.get("timestamp")) or meta.at
        self.thread_ms = _milliseconds_in(meta.text("id"))
        self.is_certain = bool(meta.text("forked_from_id"))

    def add(self, number: int, line: RolloutLine) -> None:
        """Note the facts in the next line."""
        self._lines = number + 1
        if line.type == "session_meta":
            self._before = line.at or self._before
            return
        if line.at is not None:
            if self.created_at is not None and line.at < self.created_at:
                self._after_old = number + 1
            if self._after_pause is None and self._before is not None and line.at - self._before >= PAUSE:
                self._after_pause = number
            self._before = line.at
        if line.type == "turn_context" or line.kind in _STARTS:
            self._starts.append(number)
            turn_ms = _milliseconds_in(line.text("turn_id"))
            if turn_ms is not None and self.thread_ms is not None:
                self._has_turn_ids = True
                if self._own_turn is None and turn_ms >= self.thread_ms:
                    self._own_turn = number
        elif line.kind == "token_count":
            self._first_count = number if self._first_count is None else self._first_count
            self._last_count = number

    def length(self) -> int:
        """Return the number of lines of the copied history; 0 without one."""
        if self._has_turn_ids:
            return self._lines if self._own_turn is None else self._own_turn
        if self._after_old:
            return self._after_old
        if len(self._starts) == 1:
            return self._starts[0]
        if self._after_pause is None:
            # All lines were written at once. A last turn without an answer has just begun, so it is not history.
            has_begun = bool(self._starts) and self._last_count < self._starts[-1]
            return self._begin_of(self._starts[-1]) if has_begun else self._lines
        before = [start for start in self._starts if start <= self._after_pause]
        later = [start for start in self._starts if self._first_count is not None and start > self._first_count]
        if self.is_certain and later and later[0] > self._after_pause:
            # A turn follows the pause, so the history itself was written slowly. If lines are wrongly taken for
            # history, their tokens still count, and only once.
            return self._begin_of(later[-1])
        return self._begin_of(before[-1]) if before else self._after_pause

    def _begin_of(self, start: int) -> int:
        """Return the first of the adjacent lines that begin the turn at line `start` together."""
        while start - 1 in self._starts:
            start -= 1
        return start


def _milliseconds_in(name: str) -> int | None:
    """Return the time in a UUID of version 7, in milliseconds since 1970; None for any other ID."""
    try:
        value = UUID(name)
    except ValueError:
        return None
    return value.int >> 80 if value.version == 7 else None  # the first 48 of 128 bits


_TOTALS = ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_output_tokens", "total_tokens")


class CallNames:
    """Names the model calls of a rollout in order: see the module."""

    def __init__(self, thread_ids: Sequence[str]) -> None:
        """`thread_ids`: the thread, and the thread with whose history it begins, if any."""
        self._thread_ids = thread_ids
        self._total: tuple[int, ...] = (0,) * len(_TOTALS)
        #: How often the total has restarted.
        self._resets = 0

    def next(self, info: Mapping[str, Any], *, is_copied: bool) -> tuple[str, ...]:
        """Return the names of the model call that the next count belongs to; none if the count has no tokens.

        `info`: the count. `is_copied`: the count is part of the copied history.
        """
        total = _counts(info.get("total_token_usage"))
        if total is None:
            last = _counts(info.get("last_token_usage"))
            if last is None:
                return ()
            total = tuple(map(sum, zip(self._total, last, strict=True)))
        if any(now < before for now, before in zip(total, self._total, strict=True)):
            self._resets += 1
        self._total = total
        place = ".".join(map(str, total)) + (f"/{self._resets}" if self._resets else "")
        threads = reversed(self._thread_ids) if is_copied else self._thread_ids[:1]
        return tuple(event_id(f"codex:{thread_id}:{place}") for thread_id in threads)


def _counts(usage: object) -> tuple[int, ...] | None:
    """Return the counts of a usage in the order of `_TOTALS`, with 0 for missing ones; None if none is valid."""
    counts = [count_of(usage.get(name)) for name in _TOTALS] if isinstance(usage, Mapping) else []
    return tuple(count or 0 for count in counts) if any(count is not None for count in counts) else None
