"""A home whose database is migrated: to migrate one takes seconds, to copy one next to none."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def migrated_home(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A home of a site with all tables and no rows. Only the pass on SQLite has it, as a home has no other database."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    # Asked for by name: a test of a home does not depend on the database of the pass.
    request.getfixturevalue("databases").copy_to(str(home / "agentops.sqlite3"))
    return home
