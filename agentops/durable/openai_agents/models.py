"""Models whose calls are steps of the durable run of their context. Elsewhere they are the models that they wrap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agents import FunctionTool, Handoff, Model, ModelProvider, ModelResponse
from openai.types.responses import Response, ResponseCompletedEvent, ResponseUsage

from agentops.durable.answers import Answer, Call, Effect
from agentops.durable.openai_agents import call_ids, effects, responses
from agentops.durable.openai_agents.execution import Execution, active

#: Events of a stream with a piece of text, and with a finished output item.
_TEXT, _ITEM_DONE = "response.output_text.delta", "response.output_item.done"
#: Events at the end of a stream, with the response.
_LAST = frozenset({"response.completed", "response.incomplete", "response.failed"})


class DurableProvider(ModelProvider):
    """Finds models by name, and wraps them."""

    def __init__(self, inner: ModelProvider) -> None:
        self.inner = inner

    def get_model(self, model_name: str | None) -> Model:
        """Return the model with this name."""
        return durable_model(self.inner.get_model(model_name), name=model_name)

    async def aclose(self) -> None:
        """Release the resources of the wrapped provider."""
        await self.inner.aclose()


def durable_model(model: Model, *, name: str | None = None) -> DurableModel:
    """Return a model whose calls are steps. `name`: by which a provider has found it."""
    return model if isinstance(model, DurableModel) else DurableModel(model, name)


@dataclass(frozen=True)
class _Request:
    """The arguments of a model call."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def input(self) -> Any:
        return self.kwargs["input"] if "input" in self.kwargs else self.args[1]

    @property
    def tools(self) -> Sequence[Any]:
        return list(self.kwargs["tools"] if "tools" in self.kwargs else self.args[3])

    @property
    def handoffs(self) -> Sequence[Handoff[Any, Any]]:
        return list(self.kwargs["handoffs"] if "handoffs" in self.kwargs else self.args[5])

    @property
    def is_continuation(self) -> bool:
        """Whether the provider has the earlier items, so that the input has only new ones."""
        return bool(self.kwargs.get("previous_response_id") or self.kwargs.get("conversation_id"))

    def with_input(self, items: Any) -> _Request:
        if "input" in self.kwargs:
            return replace(self, kwargs={**self.kwargs, "input": items})
        return replace(self, args=(self.args[0], items, *self.args[2:]))


class DurableModel(Model):
    """A model whose calls are steps of a durable run."""

    def __init__(self, inner: Model, name: str | None = None) -> None:
        self.inner = inner
        model = getattr(inner, "model", None)
        #: The name of the steps, and of the model if the response has none.
        self.name = model if isinstance(model, str) and model else name or type(inner).__name__

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # not set yet
            raise AttributeError(name)
        return getattr(self.inner, name)

    async def close(self) -> None:
        """Release the resources of the wrapped model."""
        await self.inner.close()

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self.inner._cleanup_on_run_end(owner)

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        """Return the response of the model, or the stored one."""
        if (execution := active()) is None:
            return await self.inner.get_response(*args, **kwargs)
        return await self._step(execution, _Request(args, kwargs), None)

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Yield the events of the model's stream. Of a stored response there is only the last event."""
        if (execution := active()) is None:
            async for event in self.inner.stream_response(*args, **kwargs):
                yield event
            return
        events: asyncio.Queue[Any] = asyncio.Queue()
        step = asyncio.ensure_future(self._step(execution, _Request(args, kwargs), events))
        step.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            yield _completed(await step, self.name)
        finally:
            step.cancel()

    async def _step(self, execution: Execution, request: _Request, events: asyncio.Queue[Any] | None) -> ModelResponse:
        """Execute a model call as a step, after the outputs of earlier calls and the messages of people are stored."""
        await execution.close_calls(outputs_of(request.input))
        key = execution.key("model")
        request = await _with_messages(execution, request, key)
        provider = execution.options.provider or _provider_of(self.inner)

        async def call() -> Answer:
            response = await self._respond(execution, request, events)
            # Before the answer is stored, so that later executions read the same IDs.
            response = call_ids.with_own_ids(response, execution.call_ids | call_ids.ids_in(request.input))
            calls = _with_effects(responses.shown(response).calls, execution, request)
            return responses.answer(response, model=self.name, provider=provider, calls=calls)

        answer = await execution.run.at(key).model(self.name, call, retries=execution.options.retries)
        response = responses.load(answer.raw)
        view = responses.shown(response)
        for hosted in view.hosted:
            await execution.close_call(hosted.call, hosted.result)
        execution.call_ids.update(call.id for call in view.calls)
        execution.open_calls = {call.id: call for call in answer.calls if call.id in {call.id for call in view.calls}}
        return response

    async def _respond(
        self, execution: Execution, request: _Request, events: asyncio.Queue[Any] | None
    ) -> ModelResponse:
        """Call the wrapped model. `events`: gets the events of its stream; None if nothing reads them."""
        if events is None and not execution.options.streams:
            return await self.inner.get_response(*request.args, **request.kwargs)
        last: Response | None = None
        items: list[Any] = []
        stream: AsyncIterator[Any] = self.inner.stream_response(*request.args, **request.kwargs)
        async for event in stream:
            kind = getattr(event, "type", "")
            if kind == _TEXT:
                execution.run.stream(event.delta)
            elif kind == _ITEM_DONE:
                items.append(event.item)
            if kind in _LAST:
                last = event.response
            elif events is not None:
                events.put_nowait(event)
        if last is None:
            raise RuntimeError(f"the stream of the model {self.name!r} has ended without a response")
        if last.status == "failed":
            raise RuntimeError(f"the model {self.name!r} has failed: {last.error.message if last.error else ''}")
        return responses.of_stream(last, items)


def outputs_of(items: Any) -> dict[str, Any]:
    """Return the outputs of calls in the input of a model, by the ID of their call."""
    if not isinstance(items, list):
        return {}
    rows = [item for item in items if isinstance(item, Mapping)]
    return {row["call_id"]: row["output"] for row in rows if row.get("call_id") and "output" in row}


async def _with_messages(execution: Execution, request: _Request, key: str) -> _Request:
    """Return the request with the messages of people as user input. `key`: of the model call."""
    if not execution.receives:
        return request
    texts = await execution.texts_before(key)
    added = [user_message(text) for text in texts]
    items = request.input
    if isinstance(items, str):
        items = [user_message(items)]
    if request.is_continuation:
        return request.with_input([*items, *added]) if added else request
    merged = execution.with_received(items)
    if added:
        execution.received.append((len(merged), added))
        merged += added
        if execution.session is not None:
            await execution.session.add_items(added)
    return request.with_input(merged) if execution.received else request


def user_message(content: Any) -> Any:
    """Return an input item with a message of a person."""
    return {"role": "user", "content": content}


def _with_effects(calls: Sequence[Call], execution: Execution, request: _Request) -> list[Call]:
    """Return calls with the effects of their tools."""
    by_name: dict[str, Effect] = {handoff.tool_name: "read" for handoff in request.handoffs}
    for tool in request.tools:
        if isinstance(tool, FunctionTool):
            by_name[tool.name] = effects.effect_of(tool, execution.options.effects)
    by_name |= execution.options.effects
    return [replace(call, effect=by_name.get(call.name, "once")) for call in calls]


def _provider_of(model: Model) -> str:
    """Return the name of a model's provider as the site knows it; empty if its class does not tell."""
    module = type(model).__module__
    if module.startswith("agents.models.openai"):
        url = str(getattr(getattr(model, "_client", None), "base_url", ""))
        return "openai" if not url or "api.openai.com" in url else ""
    if module.startswith("agents.extensions.models"):
        return str(getattr(model, "model", "")).partition("/")[0]
    return str(getattr(model, "provider", "") or "")


def _completed(response: ModelResponse, model: str) -> ResponseCompletedEvent:
    """Return the last event of the stream of a response."""
    used = response.usage
    usage = ResponseUsage.model_construct(
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        total_tokens=used.total_tokens,
        input_tokens_details=used.input_tokens_details,
        output_tokens_details=used.output_tokens_details,
    )
    document = Response.model_construct(
        id=response.response_id or "stored",
        created_at=0.0,
        model=model,
        object="response",
        output=list(response.output),
        parallel_tool_calls=True,
        tool_choice="auto",
        tools=[],
        status="completed",
        usage=usage,
    )
    return ResponseCompletedEvent.model_construct(type="response.completed", response=document, sequence_number=0)
