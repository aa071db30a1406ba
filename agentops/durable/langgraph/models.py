"""Chat models of LangChain in the nodes of a served graph: each call is a step of the run."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager, Callbacks
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, message_chunk_to_message
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, GenerationChunk, LLMResult

from agentops.durable.answers import Answer, FinishReason, Usage
from agentops.durable.langgraph.encoding import StateEncoding
from agentops.durable.langgraph.tool_rules import ToolRules
from agentops.durable.run import DurableRun

#: The names of vendors at LangChain that differ from those of price lists.
_VENDORS = {"google_genai": "google", "google_vertexai": "google", "bedrock": "aws", "bedrock_converse": "aws"}
#: Reasons of providers, in lower case, in the terms of a site.
_REASONS: dict[str, FinishReason] = {
    **dict.fromkeys(("stop", "end_turn", "stop_sequence", "completed", "complete"), "stop"),
    **dict.fromkeys(("tool_calls", "tool_use", "function_call"), "tool_call"),
    **dict.fromkeys(("length", "max_tokens", "max_output_tokens", "model_context_window_exceeded"), "length"),
    **dict.fromkeys(("content_filter", "safety", "refusal", "guardrail_intervened"), "content_filter"),
}


class TokenStream(BaseCallbackHandler):
    """Shows the text of a model on the page of the run while it is streamed."""

    run_inline = True

    def __init__(self, run: DurableRun) -> None:
        self._run = run

    def on_llm_new_token(
        self,
        token: str | list[str | dict[str, Any]],
        *,
        chunk: GenerationChunk | ChatGenerationChunk | None = None,
        **_: Any,
    ) -> None:
        """Show a piece of text."""
        text = chunk.message.text if isinstance(chunk, ChatGenerationChunk) else token
        if text and isinstance(text, str):
            self._run.stream(str(text))


def with_handler(callbacks: Callbacks, handler: BaseCallbackHandler) -> Callbacks:
    """Return callbacks with one more handler, which models that the call starts do not inherit."""
    if isinstance(callbacks, BaseCallbackManager):
        changed = callbacks.copy()
        changed.add_handler(handler, inherit=False)
        return changed
    return [*(callbacks or []), handler]


def model_name(model: BaseChatModel) -> str:
    """Return the name of the model that a chat model calls, or of its class."""
    for member in ("model_name", "model", "model_id", "deployment_name", "azure_deployment"):
        if isinstance(name := getattr(model, member, None), str) and name:
            return name.removeprefix("models/")[:200]
    return type(model).__name__


@dataclass(frozen=True)
class Generation:
    """Converts the results of a chat model to answers, and back."""

    encoding: StateEncoding
    rules: ToolRules
    #: The IDs of the calls in the request: the calls of an answer must have other ones.
    known_calls: frozenset[str]

    def answer_of(self, messages: Sequence[AIMessage]) -> Answer:
        """Return the answer of a model: the first message is what people see."""
        stored = [self._with_call_ids(message) for message in messages]
        message = stored[0]
        metadata = message.response_metadata
        usage: Mapping[str, Any] = message.usage_metadata or {}
        vendor = str(metadata.get("model_provider") or "")
        return Answer(
            text=str(message.text),
            thinking=_thinking(message),
            calls=[self.rules.call(each) for each in message.tool_calls],
            model=str(metadata.get("model_name") or metadata.get("model") or "")[:200],
            provider=_VENDORS.get(vendor, vendor)[:63],
            usage=_usage(usage),
            finish_reason=_finish_reason(message),
            tier=str(metadata.get("service_tier") or "")[:63],
            raw=[self.encoding.as_json(each) for each in stored],
        )

    def _with_call_ids(self, message: AIMessage) -> AIMessage:
        """Return a message whose calls have IDs that the conversation does not have yet."""
        taken = set(self.known_calls)
        changed: dict[int, str] = {}
        for position, call in enumerate(message.tool_calls):
            if not call["id"] or call["id"] in taken:
                changed[position] = f"{(call['id'] or call['name'])[:100]}-{uuid.uuid4().hex[:8]}"
            taken.add(changed.get(position) or str(call["id"]))
        if not changed:
            return message
        calls = [{**call, "id": changed.get(n, call["id"])} for n, call in enumerate(message.tool_calls)]
        return message.model_copy(update={"tool_calls": calls})

    def result_of(self, answer: Answer) -> LLMResult:
        """Return the result of the chat model that an answer stores."""
        messages = [self.encoding.from_json(document) for document in answer.raw]
        return LLMResult(generations=[[ChatGeneration(message=message) for message in messages]])


def _thinking(message: AIMessage) -> str:
    blocks = message.content_blocks if not isinstance(message.content, str) else []
    return "\n".join(str(block.get("reasoning") or "") for block in blocks if block["type"] == "reasoning").strip()


def _usage(reported: Mapping[str, Any]) -> Usage:
    sent = reported.get("input_token_details") or {}
    received = reported.get("output_token_details") or {}
    hourly = int(sent.get("ephemeral_1h_input_tokens") or 0)
    written = int(sent.get("cache_creation") or 0) or hourly + int(sent.get("ephemeral_5m_input_tokens") or 0)
    return Usage(
        input_tokens=int(reported.get("input_tokens") or 0),
        output_tokens=int(reported.get("output_tokens") or 0),
        cache_read_tokens=int(sent.get("cache_read") or 0),
        cache_write_tokens=written,
        cache_write_1h_tokens=hourly,
        reasoning_tokens=int(received.get("reasoning") or 0),
    )


def _finish_reason(message: AIMessage) -> FinishReason | None:
    for member in ("finish_reason", "stop_reason", "stopReason", "done_reason", "status"):
        if isinstance(reason := message.response_metadata.get(member), str):
            return _REASONS.get(reason.lower())
    return None


def as_messages(result: LLMResult) -> list[AIMessage]:
    """Return the messages of a chat model's result."""
    messages = [getattr(each, "message", None) for each in result.generations[0]]
    return [_whole(message) for message in messages if isinstance(message, AIMessage)]


def _whole(message: AIMessage) -> AIMessage:
    whole = message_chunk_to_message(message) if isinstance(message, AIMessageChunk) else message
    assert isinstance(whole, AIMessage)
    return whole


def known_calls(messages: Sequence[BaseMessage]) -> frozenset[str]:
    """Return the IDs of the tool calls in a request."""
    calls = (call for message in messages if isinstance(message, AIMessage) for call in message.tool_calls)
    return frozenset(str(call["id"]) for call in calls if call["id"])
