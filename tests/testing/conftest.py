"""A tester of agents and flows, set up as the plugin does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django import Settings

from agentops.testing import AgentTester
from runs.worker.worker import Worker


@pytest.fixture
def tester(settings: Settings, tmp_path: Path) -> Iterator[AgentTester]:
    """Yield a tester as the plugin does, on the database of this suite."""
    folder = tmp_path / "played"
    folder.mkdir()
    settings.AGENTOPS_FIXTURES = [str(folder)]
    worker = Worker()
    yield AgentTester(worker, folder)
    worker.close(5)
