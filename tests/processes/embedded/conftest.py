"""Fixtures: a new site for each test, and a home that was in use before."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import PLAYED, Site
from tests.support.machine import made_once
from tests.support.timing import eventually


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path / "home")
    yield site
    site.kill()


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Return a site that ran until its three recordings were played, and then ended.

    It is made once; xdist's workers share it.
    """

    def play(directory: Path) -> None:
        site = Site(directory / "home")
        try:
            site.up()
            eventually(lambda: PLAYED.items() <= site.runs().items(), why="the recordings are played")
            assert site.end() == 0
        finally:
            site.kill()

    return Site(made_once(tmp_path_factory, "played", play) / "home", starts=1)


@pytest.fixture
def seasoned(site: Site, played: Site) -> Site:
    """Return a site for this test, with a copy of the home of `played`."""
    shutil.copytree(played.home, site.home)
    return site
