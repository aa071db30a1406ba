"""The events that importers of session files create: of answers, of their calls, and of the sub-agents they spawn."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from pydantic_ai.messages import (
    FinishReason,
    ModelResponse,
    ModelResponsePart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.messages import UserContent as Media
from pydantic_ai.usage import RequestUsage

from agentops.base import database_clock
from runs.agents.prices import MAX_TOKENS
from runs.conversation.call_ids import MAX_CALL_ID
from runs.external.event_input import MAX_IDENTIFIER, IncomingEvent, RejectedEvent, read_time
from runs.external.importers.base import GrowingEvent
from runs.providers.messages import request
from timeline.events.llm import LlmTurnEnd, LlmTurnStart, MessageAdded
from timeline.events.tool import ToolEnd, ToolStart
from timeline.events.work import ChildRunCompleted, ChildRunStarted

#: The counts of a usage.
_COUNTS = (
    *("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "cache_write_1h_tokens"),
    *("output_reasoning_tokens", "web_searches"),
)


@dataclass(frozen=True, kw_only=True)
class AnswerPiece:
    """A part of an answer that its program writes at once."""

    parts: Sequence[ModelResponsePart]
    #: The usage of the answer up to this piece. None: unchanged since the previous piece.
    usage: RequestUsage | None = None
    #: The service tier in `usage` (runs.providers.price_tiers).
    tier: Mapping[str, str] = field(default_factory=dict)
    at: datetime | None = None
    finish_reason: FinishReason | None = None


#: How often the answers of a run have requested each call ID so far. Programs reuse some IDs.
RequestedCalls = Counter[str]


@dataclass(frozen=True, kw_only=True)
class ImportedAnswer:
    """An answer of a transcript: one model call, whose usage is counted once."""

    run_ref: str
    #: Identical in all versions of the file.
    answer_id: str
    pieces: Sequence[AnswerPiece]
    #: The suffix of the IDs of its end events, if an older version of the importer split answers differently. The
    #: events that the older version stored are complete.
    id_suffix: str = ""
    #: The usage of the whole answer, if the program adds it at any later time. None: the pieces have the usage.
    late_usage: RequestUsage | None = None
    model: str = ""
    provider: str = ""
    #: When the request was sent to the model.
    requested_at: datetime | None = None
    #: The requested calls of the run so far. `events` adds the calls of this answer.
    requested: RequestedCalls = field(default_factory=Counter)
    #: See `IncomingEvent.call_names`.
    call_names: tuple[str, ...] = ()
    is_copied: bool = False

    def events(self) -> Iterator[IncomingEvent]:
        """Yield the events of the answer: the start and the end of its turn, and the start of each call."""
        return replace(self, pieces=list(_with_each_call_once(self.pieces)))._events()

    def _events(self) -> Iterator[IncomingEvent]:
        begin = LlmTurnStart(model=self.model or None)
        begin_id = event_id(f"turn:{self.answer_id}")
        yield IncomingEvent.of(self.run_ref, begin, begin_id, self.requested_at or self.pieces[0].at)
        whole = self._end(0, False)
        shorter = self._shorter_states()
        yield GrowingEvent(
            run_ref=whole.run_ref,
            type=whole.type,
            payload=whole.payload,
            event_id=whole.event_id,
            ts=whole.ts,
            message=whole.message,
            begin_id=begin_id,
            shorter_ids=[self._event_id(*state) for state in shorter],
            rest=lambda count: self._end(*shorter[count - 1]),
            call_names=whole.call_names,
            is_copied=whole.is_copied,
        )
        for piece in self.pieces:
            for part in piece.parts:
                if isinstance(part, ToolCallPart):
                    self.requested[part.tool_call_id] += 1
                    start = ToolStart(call_id=part.tool_call_id, tool_name=part.tool_name)
                    start_id = _call_event_id("start", part.tool_call_id, self.requested)
                    yield IncomingEvent.of(self.run_ref, start, start_id, piece.at)

    def _shorter_states(self) -> list[tuple[int, bool]]:
        """Return the states that the answer can have had in earlier versions of the file.

        A state is the number of its pieces, and whether it had its late usage.
        """
        count = len(self.pieces)
        if self.late_usage is None:
            return [(number, False) for number in range(1, count)]
        # Without the late usage, an answer with all its pieces is a shorter state, too.
        return [(number, False) for number in range(1, count + 1)] + [(number, True) for number in range(1, count)]

    def _end(self, skipped: int, without_late_usage: bool) -> IncomingEvent:
        """Return the end of the turn, without the first `skipped` pieces and, optionally, without its late usage."""
        pieces = self.pieces[skipped:]
        parts = [part for piece in pieces for part in piece.parts]
        # The time of the first call, so that no call starts before the answer requested it.
        calls = (piece.at for piece in pieces if any(isinstance(part, ToolCallPart) for part in piece.parts))
        last_at = pieces[-1].at if pieces else self.pieces[-1].at
        at = next(calls, last_at)
        response = ModelResponse(
            parts=parts,
            usage=self._usage_after(skipped, without_late_usage),
            model_name=self.model or None,
            provider_name=self.provider or None,
            provider_details=next((dict(piece.tier) for piece in reversed(self.pieces) if piece.tier), None),
            finish_reason=next((piece.finish_reason for piece in reversed(pieces) if piece.finish_reason), None),
        )
        if at is not None:
            response.timestamp = at
        took = milliseconds(self.requested_at, last_at) if skipped == 0 else None
        end = LlmTurnEnd(
            model=self.model or None,
            finish_reason=response.finish_reason,
            duration_ms=took,
            continues=skipped > 0 or None,
        )
        end_id = self._event_id(len(self.pieces), self.late_usage is not None)
        names, is_copied = self.call_names, self.is_copied
        return IncomingEvent.of(self.run_ref, end, end_id, at, message=response, call_names=names, is_copied=is_copied)

    def _event_id(self, count: int, with_late_usage: bool) -> str:
        """Return the ID of the end of the turn in a file that has `count` pieces of the answer."""
        return event_id(f"answer:{self.answer_id}:{count}{':usage' if with_late_usage else ''}{self.id_suffix}")

    def _usage_after(self, count: int, without_late_usage: bool) -> RequestUsage:
        """Return the usage of the pieces after the first `count`."""
        if self.late_usage is not None:
            return RequestUsage() if without_late_usage else self.late_usage
        return _difference(self._usage_until(len(self.pieces)), self._usage_until(count))

    def _usage_until(self, count: int) -> RequestUsage:
        """Return the usage that the first `count` pieces report."""
        reported = (piece.usage for piece in reversed(self.pieces[:count]) if piece.usage is not None)
        return next(reported, RequestUsage())


@dataclass(frozen=True, kw_only=True)
class ImportedResult:
    """The result of a call."""

    run_ref: str
    call_id: str
    tool_name: str
    output: str | list[Media]
    is_error: bool = False
    at: datetime | None = None
    started_at: datetime | None = None
    #: The requested calls of the run so far.
    requested: RequestedCalls = field(default_factory=Counter)
    is_copied: bool = False

    def event(self) -> IncomingEvent:
        """Return the end of the call."""
        end = ToolEnd(
            call_id=self.call_id,
            tool_name=self.tool_name,
            status="error" if self.is_error else "completed",
            duration_ms=milliseconds(self.started_at, self.at),
        )
        message = request(ToolReturnPart(self.tool_name, self.output, self.call_id))
        end_id = _call_event_id("end", self.call_id, self.requested)
        return IncomingEvent.of(self.run_ref, end, end_id, self.at, message=message, is_copied=self.is_copied)


def user_message(
    run_ref: str, event_id: str, content: str | list[Media], at: datetime | None, *, is_copied: bool = False
) -> IncomingEvent:
    """Return the event of a user message."""
    part = UserPromptPart(content)
    part.timestamp = at or part.timestamp
    message = request(part)
    return IncomingEvent.of(run_ref, MessageAdded(role="user"), event_id, at, message=message, is_copied=is_copied)


def event_id(text: str) -> str:
    """Return an event ID that fits its column: the text, or a digest of the text."""
    fits = len(text) <= MAX_IDENTIFIER and text.isprintable()
    return text if fits else hashlib.sha256(text.encode(errors="replace")).hexdigest()


def _call_event_id(kind: str, call_id: str, requested: RequestedCalls) -> str:
    """Return the ID of an event of the newest call with this call ID. If the call ID was reused, it has a number."""
    number = requested[call_id]
    return event_id(f"{kind}:{call_id}{f':{number}' if number > 1 else ''}")


def _with_each_call_once(pieces: Sequence[AnswerPiece]) -> Iterator[AnswerPiece]:
    """Yield the pieces without repeated calls. Some programs write a line twice, and with it a call."""
    known: set[str] = set()
    for piece in pieces:
        parts: list[ModelResponsePart] = []
        for part in piece.parts:
            if not isinstance(part, ToolCallPart):
                parts.append(part)
            elif part.tool_call_id not in known:
                known.add(part.tool_call_id)
                parts.append(part)
        yield piece if len(parts) == len(piece.parts) else replace(piece, parts=parts)


def identifier_or_none(value: object) -> str | None:
    """Return a value that is valid as a call ID and as the name of a tool or model; None for any other value."""
    return value if isinstance(value, str) and 1 <= len(value) <= MAX_CALL_ID and value.isprintable() else None


def bad_count(usage: Mapping[str, Any]) -> str | None:
    """Return the name of the first number in a usage object that cannot be a token count; None if all can be."""
    counts = {name: value for name, value in usage.items() if isinstance(value, int | float)}
    return next((name for name, value in counts.items() if not 0 <= value <= MAX_TOKENS), None)


def time_or_none(value: object) -> datetime | None:
    """Return a time in UTC; None for an invalid value."""
    try:
        return read_time(value)
    except RejectedEvent:
        return None


def milliseconds(since: datetime | None, until: datetime | None) -> int | None:
    """Return the time between two moments, in milliseconds; None if one is unknown."""
    if since is None or until is None:
        return None
    return database_clock.milliseconds_between(since, until)


def _difference(usage: RequestUsage, before: RequestUsage) -> RequestUsage:
    """Return each count of `usage` minus the same count of `before`, at least 0."""
    counts: dict[str, Any] = {name: max(getattr(usage, name, 0) - getattr(before, name, 0), 0) for name in _COUNTS}
    return RequestUsage(**{name: count for name, count in counts.items() if count})


#: The tools that spawn sub-agents.
SPAWNING_TOOLS = ("Agent", "Task")
#: The name of a Claude Code agent whose file does not name it.
UNNAMED_AGENT = "claude-code"
#: The kinds of events about a sub-agent in the run that spawned it.
SPAWN_START, SPAWN_END = "child", "child-end"


def spawn_event_id(kind: str, key: str) -> str:
    """Return the ID of an event about a sub-agent. `key`: see `SpawnedAgent`; it is enough to find the event."""
    return event_id(f"{kind}:{key}")


@dataclass(frozen=True, kw_only=True)
class SpawnedAgent:
    """A sub-agent, as the run that requested it describes it."""

    run_ref: str
    #: The suffix of `run_ref`, made of the sub-agent's ID.
    key: str
    agent: str = ""
    #: Whether it keeps working after the result of its call.
    is_in_background: bool = False

    def events(self, run_ref: str, call_id: str, at: datetime | None, *, has_failed: bool) -> Iterator[IncomingEvent]:
        """Yield the events of the run `run_ref` when the call has its result: the sub-agent's start and, unless it
        works in the background, its end.
        """
        agent = self.agent or None
        started = ChildRunStarted(run_id=self.run_ref, agent=agent, call_id=call_id)
        yield IncomingEvent.of(run_ref, started, spawn_event_id(SPAWN_START, self.key), at)
        if not self.is_in_background:
            status = "failed" if has_failed else "completed"
            ended = ChildRunCompleted(run_id=self.run_ref, agent=agent, call_id=call_id, status=status)
            yield IncomingEvent.of(run_ref, ended, spawn_event_id(SPAWN_END, self.key), at)
