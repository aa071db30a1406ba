"""Fixtures for tests that drive runs with a worker in the test process.

A plugin of the suite (tests/conftest.py names it).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_django import Settings

from runs.worker.worker import Worker


@pytest.fixture
def quick_retries(settings: Settings, no_hints: None) -> None:
    """Shorten the waits before retries, and send no hints to other processes."""
    settings.AGENTOPS_RETRY_BASE_DELAY_MS = 20


@pytest.fixture
def worker(transactional_db: None) -> Iterator[Worker]:
    """Yield a worker in this process, on the database of this test."""
    worker = Worker()
    yield worker
    worker.close(5)
