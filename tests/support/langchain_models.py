"""A chat model of LangChain whose answers a function of the test gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import Field

Script = Callable[[Sequence[BaseMessage]], AIMessage]
USAGE = {"input_tokens": 100, "output_tokens": 20, "total_tokens": 120, "input_token_details": {"cache_read": 40}}


def answer(text: str = "", *calls: tuple[str, dict[str, Any], str], **fields: Any) -> AIMessage:
    """Return an answer with these calls: name, arguments and ID of each."""
    requested = [{"name": name, "args": args, "id": call_id} for name, args, call_id in calls]
    metadata = {"model_name": "claude-sonnet-4-5", "model_provider": "anthropic", "stop_reason": "end_turn"}
    return AIMessage(text, tool_calls=requested, usage_metadata=USAGE, response_metadata=metadata, **fields)


class ScriptedChat(BaseChatModel):
    """Calls `script` for each request, and remembers the requests."""

    script: Any
    model: str = "claude-sonnet-4-5"
    requests: list[list[BaseMessage]] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> ScriptedChat:
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self.requests.append(list(messages))
        return ChatResult(generations=[ChatGeneration(message=self.script(messages))])


class StreamingChat(ScriptedChat):
    """Streams each word of an answer."""

    streaming: bool = False

    def _stream(self, messages: list[BaseMessage], *_: Any, run_manager: Any = None, **__: Any) -> Iterator[Any]:
        self.requests.append(list(messages))
        words = str(self.script(messages).text).split(" ")
        for number, word in enumerate(words):
            text = word if number == 0 else f" {word}"
            chunk = ChatGenerationChunk(
                message=AIMessageChunk(text, chunk_position="last" if word is words[-1] else None)
            )
            if run_manager is not None:
                run_manager.on_llm_new_token(text, chunk=chunk)
            yield chunk
