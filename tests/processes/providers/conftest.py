"""Fixtures of the tests against a third-party model server, with a worker in this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pytest_django import Settings

from runs.providers import llm
from runs.worker.worker import Worker
from tests.support.loopback_servers import MockModelServer
from tests.support.recorded_vendor import THINKING_MODELS


@pytest.fixture
def models(mock_model_server: MockModelServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[MockModelServer]:
    """Start the server and connect the vendors' libraries of this process to it."""
    monkeypatch.setattr("pydantic_ai.models.ALLOW_MODEL_REQUESTS", True)
    for name, value in mock_model_server.environment.items():
        monkeypatch.setenv(name, value)
    llm.adapter_of.cache_clear()
    yield mock_model_server
    llm.adapter_of.cache_clear()


@pytest.fixture
def worker(models: MockModelServer, settings: Settings, transactional_db: None, no_hints: None) -> Iterator[Worker]:
    settings.AGENTOPS_RETRY_BASE_DELAY_MS = 20
    worker = Worker()
    yield worker
    for model in THINKING_MODELS.values():
        # Their connections belong to the worker's event loop and end with it.
        adapter: Any = llm.model_of(model)
        worker.loop.submit(adapter.client.close()).result(30)
    worker.close(5)
