"""Fixtures for tests of `agentops watch`: a watched folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.watched_site import Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "sessions").mkdir()
    return Site(tmp_path / "sessions")
