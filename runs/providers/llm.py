"""The `llm` provider: any model that pydantic-ai knows, as "anthropic:claude-…" or "openai:gpt-…"."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from functools import cache
from threading import Lock
from typing import Any

from pydantic_ai.direct import model_request_stream
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse, infer_model, infer_model_profile
from pydantic_ai.providers import infer_provider_class
from pydantic_ai.settings import ModelSettings

from runs.providers.base import FollowUp, ModelCall, ProviderUnusable, register
from runs.providers.endings import ended

#: What an agent's settings may say to the model; anything else is ours and stays here.
MODEL_SETTINGS = frozenset(
    {"max_tokens", "temperature", "top_p", "timeout", "parallel_tool_calls", "seed", "stop_sequences", "thinking"}
)

#: Settings that say how a model is asked. On unless an agent turns them off: `prompt_cache` asks the provider to keep
#: the beginning of the request, `needs_finish_reason` refuses an answer that names no reason for its end.
SWITCHES = ("prompt_cache", "needs_finish_reason")


#: Held while an adapter is made: a second one would keep connections that nobody closes.
_making = Lock()


def model_of(name: str) -> Model:
    """Return the one adapter of a model in this process. It belongs to the worker's one event loop, and keeps its
    connections."""
    with _making:
        return adapter_of(name)


@cache
def adapter_of(name: str) -> Model:
    return infer_model(name)


@cache
def window_of(name: str) -> int | None:
    """As the library knows the model; nothing of a vendor is needed for that."""
    try:
        return infer_model_profile(name).get("context_window")
    except ImportError:
        return None  # the call itself says what is missing


def extra_of(vendor: str) -> str:
    return vendor.removesuffix("-responses").removesuffix("-chat")


@register("llm")
@cache
class LLMProvider:
    def check(self, model: str, settings: Mapping[str, Any]) -> None:
        for name in SWITCHES:
            if not isinstance(settings.get(name, True), bool):
                raise ProviderUnusable(f"settings.{name} must be true or false, not {settings[name]!r}")
        vendor, _, name = model.partition(":")
        if not name:
            raise ProviderUnusable(f"a model is named as vendor:model, not {model!r}")
        try:
            # Not the model itself: that wants the vendor's key, which only the workers need to have.
            infer_provider_class(vendor)
        except ImportError:
            raise ProviderUnusable(
                f"model {model!r} needs an optional library: pip install 'pydantic-ai-slim[{extra_of(vendor)}]'"
            ) from None
        except ValueError:
            raise ProviderUnusable(f"unknown vendor {vendor!r} in model {model!r}") from None

    def open(self, call: ModelCall) -> AbstractAsyncContextManager[StreamedResponse]:
        chosen = {name: value for name, value in call.settings.items() if name in MODEL_SETTINGS}
        # Retries are the engine's: the vendors' libraries would hide attempts from the record.
        settings = ModelSettings(
            max_retries=0,
            cache=call.settings.get("prompt_cache", True),
            **chosen,  # type: ignore[typeddict-item]
        )
        request = model_request_stream(
            model_of(call.model),
            call.history,
            model_settings=settings,
            model_request_parameters=ModelRequestParameters(function_tools=list(call.tools)),
        )
        return ended(request, needs_finish_reason=call.settings.get("needs_finish_reason", True))

    def context_window(self, model: str) -> int | None:
        return window_of(model)

    def follow_up(self, model: str, node: str, number: int) -> FollowUp:
        return FollowUp()
