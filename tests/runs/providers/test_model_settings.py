"""Settings that are passed to the model: their types and ranges, and what is left out."""

from __future__ import annotations

from typing import Any

import pytest

from runs.providers import base
from runs.providers.base import ProviderUnusable
from runs.providers.model_settings import passed_settings

MODEL = "anthropic:claude-sonnet-4-6"


def test_what_is_passed() -> None:
    ours = {"budgets": {}, "prompt_cache": False, "context_window": 9, "base_url": "https://x.example.com"}
    models = {
        "max_tokens": 10, "temperature": 0, "top_p": 1.0, "timeout": 30, "parallel_tool_calls": False, "seed": -1,
        "stop_sequences": ["END"], "thinking": "high",
    }  # fmt: skip
    assert passed_settings(ours | models | {"unknown": 1}) == models
    assert passed_settings({"thinking": False, "max_tokens": None}) == {"thinking": False}
    base.get("llm").check(MODEL, models)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0), ("max_tokens", "100"), ("max_tokens", True), ("max_tokens", 1.5),
        ("temperature", -0.1), ("temperature", 2.1), ("temperature", "hot"), ("top_p", 1.01), ("timeout", 0),
        ("parallel_tool_calls", "yes"), ("seed", 2**63), ("stop_sequences", "END"), ("stop_sequences", [1]),
        ("thinking", "hard"), ("needs_finish_reason", 1),
    ],
)  # fmt: skip
def test_it_refuses(name: str, value: Any) -> None:
    with pytest.raises(ProviderUnusable, match=f"^settings.{name} is "):
        base.get("llm").check(MODEL, {name: value})
