"""An answer of the program's model as a stream: it arrives in deltas, and then again as a whole, one line per block."""

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
from runs.providers.claude_cli import blocks
from runs.providers.claude_cli.call_requests import Message
from runs.providers.claude_cli.failures import SessionFailed
from runs.providers.claude_cli.program_session import ProgramSession
from runs.providers.price_tiers import details_of

#: A key in the details of an answer: the program has reported the result of the turn, and waits for a message.
TURN_ENDED = "turn_ended"
_NO_PARAMETERS = ModelRequestParameters()
#: The types of deltas that are streamed.
_DELTAS = {
    "text_delta": ("text", TextPart, TextPartDelta),
    "thinking_delta": ("thinking", ThinkingPart, ThinkingPartDelta),
}


class CliAnswer(StreamedResponse):
    """The next answer of a session."""

    def __init__(self, session: ProgramSession, model: str) -> None:
        super().__init__(_NO_PARAMETERS)
        self._session = session
        self._model = model
        self._timestamp = database_clock.now()
        self._message_id: str | None = None
        self._parts: list[ModelResponsePart] = []
        #: The indexes of blocks whose text has arrived in deltas.
        self._streamed: set[int] = set()
        self._counts: dict[str, Any] = {}
        self._stop_reason: str | None = None
        #: Whether the API is still writing this answer.
        self._is_open = False
        self._is_whole = False
        self._reported: dict[str, Any] = {}

    def __aiter__(self) -> AsyncIterator[ModelResponseStreamEvent]:
        # The base class adds part end and result events, which agentops does not use.
        if self._event_iterator is None:
            self._event_iterator = self._get_event_iterator()
        return self._event_iterator

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        while not self._is_whole:
            try:
                message = await self._session.next_message()
            except SessionFailed:
                if self._has_calls and not self._is_open:
                    return  # the calls are known, and also that they have no result
                raise
            for event in self._take(message):
                yield event
            if message["type"] == "result" and await self._session.begins_next_turn():
                del self._reported[TURN_ENDED]

    def _take(self, message: Message) -> Iterator[ModelResponseStreamEvent]:
        """Process the next message of the session. Yields the events of its text."""
        match message["type"]:
            case "stream_event":
                yield from self._of_the_api(message.get("event") or {})
            case "assistant" if not self._is_mine(message):
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
            # The program waits for an answer, or runs its tools. An answer without calls is complete with the turn's
            # result.
            self._is_whole = self._is_whole or self._stop_reason is not None or bool(self._session.asking)

    @property
    def _has_calls(self) -> bool:
        return any(isinstance(part, ToolCallPart) for part in self._parts)

    def _of_the_api(self, event: Message) -> Iterator[ModelResponseStreamEvent]:
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

    def _is_mine(self, message: Message) -> bool:
        message_id = str(message["message"].get("id") or message.get("uuid"))
        if self._message_id is None:
            self._message_id = message_id
        return message_id == self._message_id

    def _add_blocks(self, message: Message) -> Iterator[ModelResponseStreamEvent]:
        """Add the blocks of a line. Blocks that did not arrive in deltas are streamed now."""
        body = message["message"]
        self._model = str(body.get("model") or self._model)
        self._counts |= {name: count for name, count in (body.get("usage") or {}).items() if name not in self._counts}
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
        self._session.raise_failure(result)
        reported = {name: result[name] for name in ("total_cost_usd", "structured_output") if result.get(name)}
        if by_model := blocks.model_usage(result.get("modelUsage")):
            reported["model_usage"] = by_model
        self._reported = {TURN_ENDED: True, **reported}
        if not self._parts and isinstance(result.get("result"), str):
            self._parts.append(TextPart(result["result"]))

    def get(self) -> ModelResponse:
        return ModelResponse(
            parts=list(self._parts),
            usage=self.usage,
            model_name=self._model,
            timestamp=self._timestamp,
            provider_name=blocks.PROVIDER,
            provider_response_id=self._message_id,
            provider_details={**details_of(self._counts), **self._reported} or None,
            finish_reason="tool_call" if self._has_calls else "stop",
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
