"""A project with the agents of an installed package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentops.accounts.models import Project
from tests.support import packaged
from tests.support.engine import added_parts
from tests.support.factories import make_project


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transactional_db: None) -> Iterator[Project]:
    packaged.install(tmp_path, monkeypatch)
    with added_parts():
        project = make_project("shop")
        packaged.register(project)
        yield project
