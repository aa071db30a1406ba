"""Settings passed to the model: their types and ranges, and which are omitted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelRequest, SystemPromptPart, UserPromptPart

from runs.engine.turns.model_stream import read
from runs.providers import base
from runs.providers.base import ModelCall, ProviderUnusable
from runs.providers.llm import passed_settings
from tests.support.recorded_vendor import Answer, Vendor

MODEL = "anthropic:claude-sonnet-4-6"


def test_settings_passed_to_the_model() -> None:
    ours = {"budgets": {}, "prompt_cache": False, "context_window": 9, "base_url": "https://x.example.com"}
    models = {
        "max_tokens": 10,
        "temperature": 0,
        "top_p": 1.0,
        "timeout": 30,
        "parallel_tool_calls": False,
        "seed": -1,
        "stop_sequences": ["END"],
        "thinking": "high",
    }
    assert passed_settings(ours | models | {"unknown": 1}) == models
    assert passed_settings({"thinking": False, "max_tokens": None}) == {"thinking": False}
    base.get("llm").check(MODEL, models)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", "100"),
        ("max_tokens", True),
        ("max_tokens", 1.5),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", "hot"),
        ("top_p", 1.01),
        ("timeout", 0),
        ("parallel_tool_calls", "yes"),
        ("seed", 2**63),
        ("stop_sequences", "END"),
        ("stop_sequences", [1]),
        ("thinking", "hard"),
        ("needs_finish_reason", 1),
    ],
)
def test_invalid_settings_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ProviderUnusable, match=f"^settings.{name} is "):
        base.get("llm").check(MODEL, {name: value})


@pytest.mark.parametrize(
    ("model", "takes_schemas"), [("anthropic:claude-3-haiku-20240307", False), ("anthropic:claude-sonnet-4-6", True)]
)
def test_a_model_without_schema_support_gets_the_schema_in_the_prompt(
    model: str, takes_schemas: bool, vendor: Vendor
) -> None:
    schema = {"type": "object", "properties": {"the_city": {"type": "string"}}, "additionalProperties": False}
    vendor.answers = [Answer(b"{}", status=400)]
    history: list[ModelMessage] = [ModelRequest([SystemPromptPart("Be brief."), UserPromptPart("Hi")])]
    call = ModelCall(model, "node", 1, history, output_schema=schema)
    with pytest.raises(ModelHTTPError):
        asyncio.run(read(base.get("llm").open(call), lambda _: None))

    [asked] = vendor.asked
    assert ("output_config" in asked.body) is takes_schemas
    assert ("the_city" in str(asked.body["system"])) is not takes_schemas
    assert "Be brief." in str(asked.body["system"])
