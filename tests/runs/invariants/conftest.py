"""A database of clean rows, to be spoilt."""

from __future__ import annotations

import pytest

from tests.support.upkeep.contradicting_rows import World, make_world


@pytest.fixture
def world(db: None) -> World:
    return make_world()
