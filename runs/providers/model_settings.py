"""The settings of an agent that are passed to its model, with their types and ranges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_ai.settings import ThinkingLevel

from runs.providers.base import ProviderUnusable


class PassedSettings(BaseModel):
    """The settings passed to the model. None: the provider's default. A model may accept narrower ranges."""

    model_config = ConfigDict(strict=True, extra="ignore")

    max_tokens: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    #: Seconds.
    timeout: Annotated[float, Field(gt=0, le=86_400)] | None = None
    parallel_tool_calls: bool | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop_sequences: list[str] | None = None
    thinking: ThinkingLevel | None = None
    #: Whether the provider's prompt cache is used.
    prompt_cache: bool = True
    #: Whether a response without a finish reason is rejected as truncated.
    needs_finish_reason: bool = True


MODEL_SETTINGS = tuple(PassedSettings.model_fields.keys() - {"prompt_cache", "needs_finish_reason"})


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise `ProviderUnusable` for a setting that no model accepts."""
    try:
        PassedSettings.model_validate(dict(settings))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        name, value = first["loc"][0], settings.get(str(first["loc"][0]))
        raise ProviderUnusable(f"settings.{name} is {str(value)[:64]!r}: {first['msg']}") from None


def passed_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings to pass to the model, unchanged."""
    return {name: settings[name] for name in MODEL_SETTINGS if settings.get(name) is not None}
