"""An answer of Claude Code's model as a stream. It arrives in deltas, and then again in whole blocks, one per line."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from typing import Any

from pydantic_ai.messages import (
    ModelResponse,
    ModelResponsePart,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
)
from pydantic_ai.models import ModelRequestParameters, StreamedResponse
from pydantic_ai.usage import RequestUsage

from agentops.base import database_clock
from runs.providers import finish_reasons
from runs.providers.claude_cli import blocks
from runs.providers.claude_cli.program_messages import Message, SessionFailed
from runs.providers.claude_cli.program_session import ProgramSession
from runs.providers.price_tiers import details_of

#: The key in the details of an answer that says that the turn has ended, and the program waits for a message.
TURN_ENDED = "turn_ended"
_NO_PARAMETERS = ModelRequestParameters()
#: The field with the text, and the classes of the part and of its delta, by the type of a delta that is streamed.
_DELTAS = {
    "text_delta": ("text", TextPart, TextPartDelta),
    "thinking_delta": ("thinking", ThinkingPart, ThinkingPartDelta),
}


class CliAnswer(StreamedResponse):
    """The stream of the next answer of a session."""

    def __init__(self, session: ProgramSession, model: str) -> None:
        super().__init__(_NO_PARAMETERS)
        self._session = session
        self._model = model
        self._timestamp = database_clock.now()
        self._message_id: str | None = None
        self._parts: list[ModelResponsePart] = []
        #: The indexes of blocks whose text has arrived in deltas.
        self._streamed: set[int] = set()
        #: The tokens, by the names of the API.
        self._counts: dict[str, Any] = {}
        self._stop_reason: str | None = None
        #: The stop reason in the lines of the answer, which have one only if it did not arrive in deltas.
        self._stop_reason_of_lines: str | None = None
        #: Whether the API is still writing this answer.
        self._is_open = False
        #: Whether the answer is complete.
        self._is_whole = False
        #: Details from the `result` message of the turn.
        self._reported: dict[str, Any] = {}

    def __aiter__(self) -> AsyncIterator[ModelResponseStreamEvent]:
        # The base class would add events for the ends of parts and for the result, which agentops does not use.
        if self._event_iterator is None:
            self._event_iterator = self._get_event_iterator()
        return self._event_iterator

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        while not self._is_whole:
            try:
                message = await self._session.next_message()
            except SessionFailed:
                if self._has_calls and not self._is_open:
                    return  # the calls are complete; their results are missing
                raise
            for event in self._take(message):
                yield event
            if message["type"] == "result" and await self._session.begins_next_turn():
                # The program does not wait for a message: it continues with one that was sent during the turn.
                del self._reported[TURN_ENDED]

    def _take(self, message: Message) -> Iterator[ModelResponseStreamEvent]:
        """Process the next message of the session, and yield the events that it adds to the stream."""
        match message["type"]:
            case "stream_event":
                yield from self._take_api_event(message.get("event") or {})
            case "assistant" if not self._is_part(message):
                self._session.put_back(message)
                self._is_whole = True
            case "assistant":
                yield from self._add_blocks(message)
            case "user":
                self._is_whole = bool(self._session.take_results(message) and self._parts)
            case "result":
                self._end_turn(message)
                self._is_whole = True
        if self._has_calls and not self._is_open:
            # The program now waits for permission, or runs its tools. (An answer without calls is complete when the
            # turn's result arrives.)
            self._is_whole = self._is_whole or self._stop_reason is not None or bool(self._session.asking)

    @property
    def _has_calls(self) -> bool:
        return any(isinstance(part, ToolCallPart) for part in self._parts)

    def _take_api_event(self, event: Message) -> Iterator[ModelResponseStreamEvent]:
        match event.get("type"):
            case "message_start":
                self._is_open = True
            case "message_delta":
                self._counts |= event.get("usage") or {}
                self._stop_reason = (event.get("delta") or {}).get("stop_reason") or self._stop_reason
            case "message_stop":
                self._is_open = False
            case "content_block_delta":
                yield from self._delta(event)

    def _delta(self, event: Message) -> Iterator[ModelResponseStreamEvent]:
        delta, index = event.get("delta") or {}, event.get("index")
        known = _DELTAS.get(str(delta.get("type")))
        if known is None or not isinstance(index, int):
            return
        name, part, part_delta = known
        text = delta.get(name)
        if not isinstance(text, str) or not text:
            return
        if index in self._streamed:
            yield PartDeltaEvent(index=index, delta=part_delta(content_delta=text))
        else:
            self._streamed.add(index)
            yield PartStartEvent(index=index, part=part(text))

    def _is_part(self, message: Message) -> bool:
        """Return whether a line belongs to this answer. The first line gives the answer its ID."""
        message_id = str(message["message"].get("id") or message.get("uuid"))
        if self._message_id is None:
            self._message_id = message_id
        return message_id == self._message_id

    def _add_blocks(self, message: Message) -> Iterator[ModelResponseStreamEvent]:
        """Add the blocks of a line, and yield events for blocks that did not arrive in deltas."""
        body = message["message"]
        self._model = str(body.get("model") or self._model)
        self._counts |= {name: count for name, count in (body.get("usage") or {}).items() if name not in self._counts}
        self._stop_reason_of_lines = body.get("stop_reason") or self._stop_reason_of_lines
        if isinstance(message.get("error"), str):
            self._session.named_error = message["error"]
        for block in body.get("content") or []:
            part, index = blocks.part_of(block), len(self._parts)
            self._parts.append(part)
            if isinstance(part, ToolCallPart):
                self._session.add_calls([part.tool_call_id])
            elif index not in self._streamed:
                yield PartStartEvent(index=index, part=part)

    def _end_turn(self, result: Message) -> None:
        """Keep the details in the `result` message of the turn. Raises `SessionFailed` if the turn has failed."""
        self._session.raise_failure(result)
        reported = {name: result[name] for name in ("total_cost_usd", "structured_output") if result.get(name)}
        if by_model := blocks.model_usage(result.get("modelUsage")):
            reported["model_usage"] = by_model
        self._reported = {TURN_ENDED: True, **reported}
        if not self._parts and isinstance(result.get("result"), str):
            self._parts.append(TextPart(result["result"]))

    def get(self) -> ModelResponse:
        stop_reason = self._stop_reason or self._stop_reason_of_lines
        reported = {"finish_reason": stop_reason} if stop_reason else {}
        return ModelResponse(
            parts=list(self._parts),
            usage=self.usage,
            model_name=self._model,
            timestamp=self._timestamp,
            provider_name=blocks.PROVIDER,
            provider_response_id=self._message_id,
            provider_details={**details_of(self._counts), **reported, **self._reported} or None,
            finish_reason=finish_reasons.named(stop_reason) or ("tool_call" if self._has_calls else "stop"),
        )

    async def close_stream(self) -> None:
        """Do nothing: the session continues."""

    @property
    def usage(self) -> RequestUsage:
        return blocks.usage_of(self._counts)

    @property
    def model_name(self) -> str:
        return self._model

    @property
    def provider_name(self) -> str | None:
        return blocks.PROVIDER

    @property
    def provider_url(self) -> str | None:
        return None

    @property
    def timestamp(self) -> datetime:
        return self._timestamp
