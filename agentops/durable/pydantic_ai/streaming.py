"""Text of model responses on the run's page while a model writes it."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.messages import AgentStreamEvent, PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.tools import RunContext

from agentops.durable.positions import current_step
from agentops.durable.run import current_run


def showing_text(handler: EventStreamHandler[Any] | None) -> EventStreamHandler[Any]:
    """Return a handler that shows text of the model in a durable run, and passes all events to `handler`."""

    async def handle(ctx: RunContext[Any], events: AsyncIterable[AgentStreamEvent]) -> None:
        shown = _shown(events)
        if handler is not None:
            await handler(ctx, shown)
        async for _ in shown:
            pass

    return handle


async def _shown(events: AsyncIterable[AgentStreamEvent]) -> AsyncIterator[AgentStreamEvent]:
    run = current_run.get() if current_step.get() else None
    async for event in events:
        if run is not None and (text := _text_of(event)):
            run.stream(text)
        yield event


def _text_of(event: AgentStreamEvent) -> str:
    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
        return event.part.content
    if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
        return event.delta.content_delta
    return ""


def can_stream(model: object) -> bool:
    """Return whether a model can stream: all can, except a `FunctionModel` without a `stream_function`."""
    while isinstance(model, WrapperModel):
        model = model.wrapped
    return not (isinstance(model, FunctionModel) and model.stream_function is None)
