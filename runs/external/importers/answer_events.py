"""The events of an answer and of its calls, as the importers of transcripts write them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from pydantic_ai.messages import FinishReason, ModelResponse, ModelResponsePart, ToolCallPart, ToolReturnPart
from pydantic_ai.messages import UserContent as Media
from pydantic_ai.usage import RequestUsage

from runs.conversation.call_ids import MAX_CALL_ID
from runs.external.event_input import MAX_IDENTIFIER, IncomingEvent, RejectedEvent, read_time
from runs.external.importers.base import GrowingEvent
from runs.providers.messages import request
from timeline.events.llm import LlmTurnEnd, LlmTurnStart
from timeline.events.tool import ToolEnd, ToolStart

#: Tokens of one answer, so that no sum of them exceeds its column.
MAX_TOKENS = 10**12
_COUNTS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")


@dataclass(frozen=True, kw_only=True)
class AnswerPiece:
    """A part of an answer that its program has written at once."""

    parts: Sequence[ModelResponsePart]
    #: The usage of the whole answer, as this piece reports it. None: as the piece before.
    usage: RequestUsage | None = None
    at: datetime | None = None
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, kw_only=True)
class ImportedAnswer:
    """An answer of a transcript: one model call, whose usage is counted once."""

    run_ref: str
    #: The same in all versions of the file.
    answer_id: str
    pieces: Sequence[AnswerPiece]
    model: str = ""
    provider: str = ""
    #: When the model was asked.
    asked_at: datetime | None = None

    def events(self) -> Iterator[IncomingEvent]:
        """Yield the start and the end of the turn, and the start of each call."""
        begin = LlmTurnStart(model=self.model or None)
        begin_id = event_id(f"turn:{self.answer_id}")
        at = self.asked_at or self.pieces[0].at
        yield IncomingEvent(self.run_ref, begin.event_type, begin, event_id=begin_id, ts=at)
        whole = self._end(0)
        yield GrowingEvent(
            run_ref=whole.run_ref,
            type=whole.type,
            payload=whole.payload,
            event_id=whole.event_id,
            ts=whole.ts,
            message=whole.message,
            begin_id=begin_id,
            shorter_ids=[self._event_id(count) for count in range(1, len(self.pieces))],
            rest=self._end,
        )
        for piece in self.pieces:
            for part in piece.parts:
                if isinstance(part, ToolCallPart):
                    start = ToolStart(call_id=part.tool_call_id, tool_name=part.tool_name)
                    start_id = event_id(f"start:{part.tool_call_id}")
                    yield IncomingEvent(self.run_ref, start.event_type, start, event_id=start_id, ts=piece.at)

    def _end(self, after: int) -> IncomingEvent:
        """Return the end of the turn, without the first `after` pieces."""
        pieces = self.pieces[after:]
        parts = [part for piece in pieces for part in piece.parts]
        # The time of the first call, so that no call starts before it was requested.
        calls = (piece.at for piece in pieces if any(isinstance(part, ToolCallPart) for part in piece.parts))
        at = next(calls, pieces[-1].at)
        response = ModelResponse(
            parts=parts,
            usage=_difference(self._usage(len(self.pieces)), self._usage(after)),
            model_name=self.model or None,
            provider_name=self.provider or None,
            finish_reason=next((piece.finish_reason for piece in reversed(pieces) if piece.finish_reason), None),
        )
        if at is not None:
            response.timestamp = at
        took = milliseconds(self.asked_at, pieces[-1].at) if after == 0 else None
        end = LlmTurnEnd(model=self.model or None, finish_reason=response.finish_reason, duration_ms=took)
        event_id_ = self._event_id(len(self.pieces))
        return IncomingEvent(self.run_ref, end.event_type, end, event_id=event_id_, ts=at, message=response)

    def _event_id(self, count: int) -> str:
        return event_id(f"answer:{self.answer_id}:{count}")

    def _usage(self, count: int) -> RequestUsage:
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

    def event(self) -> IncomingEvent:
        """Return the end of the call."""
        end = ToolEnd(
            call_id=self.call_id,
            tool_name=self.tool_name,
            status="error" if self.is_error else "completed",
            duration_ms=milliseconds(self.started_at, self.at),
        )
        message = request(ToolReturnPart(self.tool_name, self.output, self.call_id))
        end_id = event_id(f"end:{self.call_id}")
        return IncomingEvent(self.run_ref, end.event_type, end, event_id=end_id, ts=self.at, message=message)


def event_id(text: str) -> str:
    """Return an ID that fits its column: the text, or its digest."""
    fits = len(text) <= MAX_IDENTIFIER and text.isprintable()
    return text if fits else hashlib.sha256(text.encode(errors="replace")).hexdigest()


def identifier_or_none(value: object) -> str | None:
    """Return the ID of a call, or the name of a tool or model; None for what cannot be one."""
    return value if isinstance(value, str) and 1 <= len(value) <= MAX_CALL_ID and value.isprintable() else None


def bad_count(usage: Mapping[str, Any]) -> str | None:
    """Return the name of a number of a usage that counts no tokens; None if all do."""
    counts = {name: value for name, value in usage.items() if isinstance(value, int | float)}
    return next((name for name, value in counts.items() if not 0 <= value <= MAX_TOKENS), None)


def time_or_none(value: object) -> datetime | None:
    """Return a time in UTC, or None for what is none."""
    try:
        return read_time(value)
    except RejectedEvent:
        return None


def milliseconds(since: datetime | None, until: datetime | None) -> int | None:
    """Return the time between two moments; None if one is unknown."""
    if since is None or until is None:
        return None
    return max(0, round((until - since).total_seconds() * 1000))


def _difference(usage: RequestUsage, before: RequestUsage) -> RequestUsage:
    counts = {name: max(getattr(usage, name) - getattr(before, name), 0) for name in _COUNTS}
    reasoning = max(usage.output_reasoning_tokens - before.output_reasoning_tokens, 0)
    return RequestUsage(**counts, output_reasoning_tokens=reasoning)


def finish_reason_of(value: object) -> FinishReason | None:
    """Return why the model has stopped, by the words of Anthropic."""
    return cast("FinishReason | None", _FINISH_REASONS.get(value)) if isinstance(value, str) else None


_FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_call",
    "max_tokens": "length",
    "refusal": "content_filter",
}
