"""Fixtures for tests of `agentops watch`: a watched folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.clients import WatchedSite


@pytest.fixture
def site(tmp_path: Path) -> WatchedSite:
    (tmp_path / "sessions").mkdir()
    return WatchedSite(tmp_path / "sessions")
