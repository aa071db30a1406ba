"""The `llm` provider: models that pydantic-ai supports, such as "anthropic:claude-…" or "openai:gpt-…"."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from functools import lru_cache
from threading import Lock
from typing import Any

from pydantic_ai.direct import model_request_stream
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse, infer_model, infer_model_profile
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings

from runs.providers import loading, model_servers, model_settings
from runs.providers.base import FollowUp, ModelCall, ProviderUnusable
from runs.providers.endings import complete_only

#: The name of the result schema, which some providers require.
OUTPUT_NAME = "result"
#: Maximum number of adapters, each with its connections, that a process keeps. Agents may name any number of models and
#: servers.
MAX_ADAPTERS = 256
#: Held while an adapter is created: two threads would create two, and the connections of one would never be closed.
_making = Lock()


def model_of(name: str, base_url: str = "") -> Model:
    """Return the adapter of a model. There is one per process, bound to the worker's event loop, which keeps its
    connections open. `base_url` is the address of a server that the agent names."""
    with _making:
        return adapter_of(name, base_url) if base_url else adapter_of(name)


@lru_cache(maxsize=MAX_ADAPTERS)
def adapter_of(name: str, base_url: str = "") -> Model:
    """Create the adapter of a model. The most recent ones are cached. Use `model_of` instead, which holds the lock."""
    if not base_url:
        return infer_model(name)
    return model_servers.make_model(name, base_url)


@lru_cache(maxsize=1024)
def window_of(name: str) -> int | None:
    """Return the context window that pydantic-ai knows for the model, in tokens, or None."""
    try:
        return infer_model_profile(name).get("context_window")
    except ImportError:
        return None  # the model call reports the missing library


def extra_of(vendor: str) -> str:
    """Return the extra of pydantic-ai-slim that installs the vendor's library."""
    return vendor.removesuffix("-responses").removesuffix("-chat")


class LLMProvider:
    """The provider that calls real models through pydantic-ai."""

    def check(self, model: str, settings: Mapping[str, Any]) -> None:
        model_settings.check_settings(settings)
        vendor, _, name = model.partition(":")
        if not name:
            raise ProviderUnusable(f"invalid model {model!r}: write it as vendor:model")
        try:
            # The model itself is not created: that needs the vendor's API key, which only workers have.
            loading.require(vendor)
        except ImportError:
            raise ProviderUnusable(
                f"model {model!r} needs the package pydantic-ai-slim[{extra_of(vendor)}]:"
                " add it to requirements.local, run `make install` and restart the site"
            ) from None
        except ValueError:
            raise ProviderUnusable(f"unknown vendor {vendor!r} in model {model!r}") from None
        if base_url := model_servers.base_url_of(settings):
            model_servers.check_server(model, base_url)

    def open(self, call: ModelCall) -> AbstractAsyncContextManager[StreamedResponse]:
        # The engine retries calls, because retries by the vendors' libraries would not be recorded.
        settings = ModelSettings(
            max_retries=0,
            cache=call.settings.get("prompt_cache", True),
            **model_settings.passed_settings(call.settings),  # type: ignore[typeddict-item]
        )
        model = model_of(call.model, model_servers.base_url_of(call.settings))
        request = model_request_stream(
            model,
            call.history,
            model_settings=settings,
            model_request_parameters=_parameters(call, model),
        )
        return complete_only(request, needs_finish_reason=call.settings.get("needs_finish_reason", True))

    def context_window(self, model: str) -> int | None:
        return window_of(model)

    def follow_up(self, model: str, node: str, number: int) -> FollowUp:
        return FollowUp()


def _parameters(call: ModelCall, model: Model) -> ModelRequestParameters:
    """Return the tools and the result schema. A model without schema support gets the schema in its instructions."""
    tools = list(call.tools)
    if call.output_schema is None:
        return ModelRequestParameters(function_tools=tools)
    return ModelRequestParameters(
        function_tools=tools,
        output_mode="native" if model.profile.get("supports_json_schema_output") else "prompted",
        output_object=OutputObjectDefinition(json_schema=call.output_schema, name=OUTPUT_NAME),
    )
