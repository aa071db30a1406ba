"""The `llm` provider: models that pydantic-ai supports, such as "anthropic:claude-…" or "openai:gpt-…".

A streamed response is complete only if it contains a terminal event: `message_stop` (Anthropic), a finish reason (Chat
Completions and compatible APIs) or a terminal status (Responses). A cleanly closed connection does not prove that.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import lru_cache
from threading import Lock
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_ai.direct import model_request_stream
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, UnexpectedModelBehavior
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse, infer_model, infer_model_profile
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings, ThinkingLevel

from runs.providers import finish_reasons, loading, model_servers
from runs.providers.base import FollowUp, IncompleteAnswer, ModelCall, ProviderUnusable


class PassedSettings(BaseModel):
    """The settings passed to the model. None: the provider's default. A model may accept narrower ranges."""

    model_config = ConfigDict(strict=True, extra="ignore")

    max_tokens: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    #: Seconds without data after which the request fails.
    timeout: Annotated[float, Field(gt=0, le=86_400)] | None = None
    parallel_tool_calls: bool | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop_sequences: list[str] | None = None
    thinking: ThinkingLevel | None = None
    #: Whether to use the provider's prompt cache.
    prompt_cache: bool = True
    #: Whether to reject a response without a finish reason as truncated.
    needs_finish_reason: bool = True


#: The settings that are passed to the model under their own names.
MODEL_SETTINGS = tuple(PassedSettings.model_fields.keys() - {"prompt_cache", "needs_finish_reason"})


def check_settings(settings: Mapping[str, Any]) -> None:
    """Check the settings that are passed to models. Raises `ProviderUnusable` for a value that no model accepts."""
    try:
        PassedSettings.model_validate(dict(settings))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        name = str(first["loc"][0])
        raise ProviderUnusable(f"settings.{name} is {str(settings.get(name))[:64]!r}: {first['msg']}") from None


def passed_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return those settings of an agent that are passed to the model."""
    return {name: settings[name] for name in MODEL_SETTINGS if settings.get(name) is not None}


#: The name of the result schema. Some providers require one.
OUTPUT_NAME = "result"
#: Maximum number of adapters, each with its connections, that a process keeps.
MAX_ADAPTERS = 256
#: Held while an adapter is created. Otherwise two threads could create two, and one would never close its connections.
_creating = Lock()


def model_of(name: str, base_url: str = "") -> Model:
    """Return the adapter of a model. A process has one for each model; it keeps its connections open.

    `base_url`: the address of the server that the agent names, if any.
    """
    with _creating:
        return adapter_of(name, base_url)


@lru_cache(maxsize=MAX_ADAPTERS)
def adapter_of(name: str, base_url: str) -> Model:
    """Create the adapter of a model, or return the cached one. Only for `model_of`, which holds the lock."""
    return model_servers.make_model(name, base_url) if base_url else infer_model(name)


@lru_cache(maxsize=1024)
def window_of(name: str) -> int | None:
    """Return the context window of a model in tokens, from pydantic-ai's data; None if unknown."""
    try:
        return infer_model_profile(name).get("context_window")
    except ImportError:
        return None  # the model call reports the missing library


class LLMProvider:
    """The provider that calls real models through pydantic-ai."""

    def check(self, model: str, settings: Mapping[str, Any]) -> None:
        check_settings(settings)
        vendor, _, name = model.partition(":")
        if not name:
            raise ProviderUnusable(f"invalid model {model!r}: write it as vendor:model")
        try:
            # Do not create the model: that needs the vendor's API key, which only workers have.
            loading.require(vendor)
        except ImportError:
            extra = vendor.removesuffix("-responses").removesuffix("-chat")
            raise ProviderUnusable(
                f"model {model!r} needs the package pydantic-ai-slim[{extra}]:"
                " add it to requirements.local, run `make install` and restart the site"
            ) from None
        except ValueError:
            raise ProviderUnusable(f"unknown vendor {vendor!r} in model {model!r}") from None
        if base_url := model_servers.base_url_of(settings):
            model_servers.check_server(model, base_url)

    def open(self, call: ModelCall) -> AbstractAsyncContextManager[StreamedResponse]:
        # The vendors' libraries must not retry, because their retries would not be recorded. The engine retries.
        settings = ModelSettings(
            max_retries=0,
            cache=call.settings.get("prompt_cache", True),
            **passed_settings(call.settings),  # type: ignore[typeddict-item]
        )
        model = model_of(call.model, model_servers.base_url_of(call.settings))
        request = model_request_stream(
            model, call.history, model_settings=settings, model_request_parameters=_parameters(call, model)
        )
        return complete_only(request, needs_finish_reason=call.settings.get("needs_finish_reason", True))

    def context_window(self, model: str) -> int | None:
        return window_of(model)

    def follow_up(self, model: str, node: str, number: int) -> FollowUp:
        return FollowUp()


def _parameters(call: ModelCall, model: Model) -> ModelRequestParameters:
    """Return the tools and the result schema of a call.

    A model that does not support schemas gets the schema in its instructions.
    """
    tools = list(call.tools)
    if call.output_schema is None:
        return ModelRequestParameters(function_tools=tools)
    return ModelRequestParameters(
        function_tools=tools,
        output_mode="native" if model.profile.get("supports_json_schema_output") else "prompted",
        output_object=OutputObjectDefinition(json_schema=call.output_schema, name=OUTPUT_NAME),
    )


NO_END = "the provider's stream ended before the answer was complete"


@asynccontextmanager
async def complete_only(
    request: AbstractAsyncContextManager[StreamedResponse], *, needs_finish_reason: bool = True
) -> AsyncIterator[StreamedResponse]:
    """Open a request as a stream. Raises `IncompleteAnswer` if the stream ends without a terminal event.

    `needs_finish_reason` is False for Chat Completions servers that never send a finish reason.
    """
    opened = False
    try:
        async with request as stream:
            opened = True
            stop_watch = _watch_for_stop(stream)
            yield stream
    except UnexpectedModelBehavior as error:
        if opened:
            raise
        raise IncompleteAnswer(f"{NO_END}: it contained no events") from error
    except ModelAPIError as error:
        # The cause is a ValueError if an event is not JSON, or not UTF-8.
        if isinstance(error.__cause__, ValueError) and not isinstance(error, ModelHTTPError):
            raise IncompleteAnswer(f"{NO_END}: its last event cannot be parsed") from error
        raise
    if not _is_complete(stream, stop_watch, needs_finish_reason):
        raise IncompleteAnswer(NO_END)


class _StopWatch:
    """Passes on the events of an Anthropic stream, and records whether `message_stop` was received."""

    def __init__(self, events: Any) -> None:
        self._events = events
        #: pydantic-ai closes the stream by this attribute.
        self.source = events.source
        self.has_stopped = False

    def __aiter__(self) -> _StopWatch:
        return self

    async def __anext__(self) -> Any:
        event = await anext(self._events)
        self.has_stopped = self.has_stopped or event.type == "message_stop"
        return event


def _watch_for_stop(stream: StreamedResponse) -> _StopWatch | None:
    """Wrap the events of an Anthropic stream, of which pydantic-ai drops the last. Returns None for other streams."""
    # Do not import the module, which is slow: if it is not imported, the stream is not Anthropic's.
    anthropic: Any = sys.modules.get("pydantic_ai.models.anthropic")
    if anthropic is None or not isinstance(stream, anthropic.AnthropicStreamedResponse):
        return None
    stop_watch = _StopWatch(vars(stream)["_response"])
    vars(stream)["_response"] = stop_watch
    return stop_watch


def _is_complete(stream: StreamedResponse, stop_watch: _StopWatch | None, needs_finish_reason: bool) -> bool:
    answer = stream.get()
    if answer.state in ("incomplete", "interrupted") or finish_reasons.reason_of(answer) == finish_reasons.ERROR:
        return False
    if stop_watch is not None:
        return stop_watch.has_stopped
    # A stream without a URL did not come over the network, so it cannot be truncated.
    is_remote = stream.provider_url is not None
    return not (is_remote and needs_finish_reason) or _has_finish_reason(stream, answer)


def _has_finish_reason(stream: StreamedResponse, answer: ModelResponse) -> bool:
    """Return whether the provider sent a finish reason."""
    # For Chat Completions, pydantic-ai fills in "stop" if none was sent, and records that in this attribute.
    was_sent: bool | None = getattr(stream, "_has_finish_reason", None)
    if was_sent is not None:
        return was_sent
    return bool(answer.finish_reason or (answer.provider_details or {}).get("finish_reason"))
