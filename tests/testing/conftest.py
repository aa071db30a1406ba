"""A tester of agents and flows, as the plugin makes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django import Settings

from agentops.testing import AgentTester
from runs.worker.worker import Worker


@pytest.fixture
def tester(settings: Settings, tmp_path: Path) -> Iterator[AgentTester]:
    """As the plugin makes it, on the database of this suite."""
    folder = tmp_path / "played"
    folder.mkdir()
    settings.AGENTOPS_FIXTURES = [str(folder)]
    worker = Worker()
    yield AgentTester(worker, folder)
    worker.close(5)
