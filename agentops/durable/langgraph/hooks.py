"""Makes the chat models and tools of LangChain steps of the run whose graph this process executes.

LangChain has no public hook that can replace a call, so the methods that all chat models and tools inherit are wrapped
once. Outside of a served run, they work as before.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from langchain_core.callbacks import Callbacks
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, BaseMessageChunk
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.prompt_values import ChatPromptValue, PromptValue
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool, Tool

from agentops.durable.answers import Answer
from agentops.durable.errors import StepFailed
from agentops.durable.langgraph.context import recording_run
from agentops.durable.langgraph.failures import original_of
from agentops.durable.langgraph.models import (
    Generation,
    TokenStream,
    as_messages,
    known_calls,
    model_name,
    with_handler,
)
from agentops.durable.langgraph.served import ServedRun
from agentops.durable.langgraph.tool_rules import ToolRule
from agentops.durable.langgraph.tools import ToolCallStep

_lock = threading.Lock()
_is_installed = False


def install() -> None:
    """Wrap the methods of chat models and tools, once per process."""
    global _is_installed
    with _lock:
        if _is_installed:
            return
        _is_installed = True
        for owner, name, wrapper in (
            (BaseChatModel, "agenerate_prompt", _agenerate_prompt),
            (BaseChatModel, "generate_prompt", _generate_prompt),
            (BaseChatModel, "astream", _astream),
            (BaseChatModel, "stream", _stream),
            (Tool, "ainvoke", _ainvoke),
            (StructuredTool, "ainvoke", _ainvoke),
            (BaseTool, "arun", _arun),
            (BaseTool, "run", _run),
        ):
            original = getattr(owner, name)
            setattr(owner, name, functools.wraps(original)(wrapper(original)))


# --- Chat models ---


def _generation(served: ServedRun, messages: Sequence[BaseMessage]) -> Generation:
    return Generation(served.encoding, served.rules, known_calls(messages))


def _joined(results: Sequence[LLMResult]) -> LLMResult:
    return LLMResult(generations=[group for result in results for group in result.generations])


def _agenerate_prompt(original: Any) -> Any:
    async def agenerate_prompt(
        self: BaseChatModel,
        prompts: list[PromptValue],
        stop: list[str] | None = None,
        callbacks: Callbacks = None,
        **kwargs: Any,
    ) -> LLMResult:
        served = recording_run()
        if served is None:
            result: LLMResult = await original(self, prompts, stop=stop, callbacks=callbacks, **kwargs)
            return result
        streaming = with_handler(callbacks, TokenStream(served.run))

        async def generate(messages: Sequence[BaseMessage]) -> list[AIMessage]:
            prompt = ChatPromptValue(messages=list(messages))
            return as_messages(await original(self, [prompt], stop=stop, callbacks=streaming, **kwargs))

        return _joined([await _model_step(served, self, prompt.to_messages(), generate) for prompt in prompts])

    return agenerate_prompt


def _generate_prompt(original: Any) -> Any:
    def generate_prompt(
        self: BaseChatModel,
        prompts: list[PromptValue],
        stop: list[str] | None = None,
        callbacks: Callbacks = None,
        **kwargs: Any,
    ) -> LLMResult:
        served = recording_run()
        if served is None:
            result: LLMResult = original(self, prompts, stop=stop, callbacks=callbacks, **kwargs)
            return result
        streaming = with_handler(callbacks, TokenStream(served.run))

        def generate(messages: Sequence[BaseMessage]) -> list[AIMessage]:
            prompt = ChatPromptValue(messages=list(messages))
            return as_messages(original(self, [prompt], stop=stop, callbacks=streaming, **kwargs))

        return _joined([_sync_model_step(served, self, prompt.to_messages(), generate) for prompt in prompts])

    return generate_prompt


async def _model_step(
    served: ServedRun, model: BaseChatModel, messages: Sequence[BaseMessage], generate: Callable[..., Any]
) -> LLMResult:
    """Call a model as a step, and return its result as stored."""
    run = served.next_run()
    messages = await served.inbox.added_to(messages)
    generation = _generation(served, messages)

    async def function() -> Answer:
        return generation.answer_of(await generate(messages))

    try:
        return generation.result_of(await run.model(model_name(model), function))
    except StepFailed as error:
        raised = original_of(error)
        raise raised from raised.__cause__


def _sync_model_step(
    served: ServedRun, model: BaseChatModel, messages: Sequence[BaseMessage], generate: Callable[..., Any]
) -> LLMResult:
    """Call a model as a step, in a thread, and return its result as stored."""
    run = served.in_thread(served.next_run())
    messages = served.wait_for(served.inbox.added_to(messages))
    generation = _generation(served, messages)
    try:
        return generation.result_of(run.model(model_name(model), lambda: generation.answer_of(generate(messages))))
    except StepFailed as error:
        raised = original_of(error)
        raise raised from raised.__cause__


def _astream(original: Any) -> Any:
    async def astream(
        self: BaseChatModel,
        input: Any,  # noqa: A002 - as in LangChain
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[AIMessageChunk]:
        served = recording_run()
        if served is None:
            async for chunk in original(self, input, config, **kwargs):
                yield chunk
            return
        run = served.run

        async def generate(messages: Sequence[BaseMessage]) -> list[AIMessage]:
            whole: BaseMessageChunk | None = None
            async for chunk in original(self, messages, config, **kwargs):
                if chunk.text:
                    run.stream(str(chunk.text))
                whole = chunk if whole is None else whole + chunk
            return _streamed(whole)

        result = await _model_step(served, self, self._convert_input(input).to_messages(), generate)
        yield _as_chunk(result)

    return astream


def _stream(original: Any) -> Any:
    def stream(
        self: BaseChatModel,
        input: Any,  # noqa: A002 - as in LangChain
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Iterator[AIMessageChunk]:
        served = recording_run()
        if served is None:
            yield from original(self, input, config, **kwargs)
            return
        run = served.run

        def generate(messages: Sequence[BaseMessage]) -> list[AIMessage]:
            whole: BaseMessageChunk | None = None
            for chunk in original(self, messages, config, **kwargs):
                if chunk.text:
                    run.stream(str(chunk.text))
                whole = chunk if whole is None else whole + chunk
            return _streamed(whole)

        yield _as_chunk(_sync_model_step(served, self, self._convert_input(input).to_messages(), generate))

    return stream


def _streamed(whole: BaseMessageChunk | None) -> list[AIMessage]:
    if whole is None:
        raise ValueError("the model has streamed nothing")
    return as_messages(LLMResult(generations=[[ChatGeneration(message=whole)]]))


def _as_chunk(result: LLMResult) -> AIMessageChunk:
    """Return a whole answer as the only piece of a stream."""
    [message, *_] = as_messages(result)
    return AIMessageChunk(**{**message.model_dump(), "type": "AIMessageChunk", "chunk_position": "last"})


# --- Tools ---


def _ainvoke(original: Any) -> Any:
    async def ainvoke(self: BaseTool, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002
        served = recording_run()
        is_model_call = isinstance(input, dict) and input.get("type") == "tool_call"
        if served is None or is_model_call or not ToolRule.of(self).step:
            return await original(self, input, config, **kwargs)
        # LangChain executes synchronous tools in threads of a pool, which begin in any order.
        with served.keys.reserved():
            return await original(self, input, config, **kwargs)

    return ainvoke


def _arun(original: Any) -> Any:
    async def arun(self: BaseTool, tool_input: Any, *args: Any, tool_call_id: str | None = None, **kwargs: Any) -> Any:
        async def execute(changed: Any) -> Any:
            return await original(self, changed, *args, tool_call_id=tool_call_id, **kwargs)

        served = recording_run()
        if served is None:
            return await execute(tool_input)
        step = ToolCallStep(served, served.encoding, self, tool_input, tool_call_id)
        if not step.rule.step and tool_call_id is None:
            return await execute(tool_input)
        step.check_input()
        if step.rule.step:
            return await step.arun(execute)
        return await step.arecord(None if step.is_stored else await execute(tool_input))

    return arun


def _run(original: Any) -> Any:
    def run(self: BaseTool, tool_input: Any, *args: Any, tool_call_id: str | None = None, **kwargs: Any) -> Any:
        def execute(changed: Any) -> Any:
            return original(self, changed, *args, tool_call_id=tool_call_id, **kwargs)

        served = recording_run()
        if served is None:
            return execute(tool_input)
        step = ToolCallStep(served, served.encoding, self, tool_input, tool_call_id)
        if not step.rule.step and tool_call_id is None:
            return execute(tool_input)
        served.check_thread()
        step.check_input()
        if step.rule.step:
            return step.run(execute)
        return step.record(None if step.is_stored else execute(tool_input))

    return run
