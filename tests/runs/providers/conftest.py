"""Fixtures for provider tests: a server on the loopback interface that the vendors' libraries connect to."""

from __future__ import annotations

from collections.abc import Iterator

import pydantic_ai.models
import pytest

from runs.providers import llm
from tests.support.recorded_vendor import Vendor, vendor_at_work


@pytest.fixture(autouse=True)
def quick(quick_retries: None) -> None:
    """Shorten the retry delays in every test of this directory."""


@pytest.fixture
def vendor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Vendor]:
    """A stub of the APIs of Anthropic and OpenAI."""
    with vendor_at_work() as at_work:
        monkeypatch.setattr(pydantic_ai.models, "ALLOW_MODEL_REQUESTS", True)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", at_work.url)
        monkeypatch.setenv("OPENAI_BASE_URL", f"{at_work.url}/v1")
        for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
            monkeypatch.setenv(name, "a key for a provider on loopback")
        llm.adapter_of.cache_clear()
        yield at_work
        llm.adapter_of.cache_clear()
