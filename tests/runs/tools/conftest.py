"""Fixtures of the tool tests: a context like the engine's.

Plain pytest; no database, no network beyond loopback.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agentops.base.redaction.partial_texts import mask
from runs.tools.base import ToolContext

MakeContext = Callable[..., ToolContext]


@pytest.fixture
def make_ctx() -> MakeContext:
    def make(**changes) -> ToolContext:
        settings = changes.pop("settings", {})
        fields = {
            "run_id": "run-1",
            "call_id": "call-1",
            "tool_call_pk": "pk-1",
            "idempotency_key": "key-1",
            "attempt": 0,
            "epoch": 1,
            "model_call": 1,
            "cancelled": lambda: False,
            "mask": mask,
        }
        return ToolContext(**{**fields, **changes}, settings=settings)

    return make


@pytest.fixture
def ctx(make_ctx: MakeContext) -> ToolContext:
    return make_ctx()
