"""Test the wheel: it contains everything that the site needs, and works without the source tree."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import httpx
import pytest

from tests.support.command_line import Site
from tests.support.deployment import CleanEnvironment
from tests.support.machine import ROOT

#: What the wheel of the client has, and what only a checkout needs.
LEFT_OUT = (
    *("agentops/client/", "agentops/durable/", "agentops/claude_sessions.py"),
    *("agentops/pyproject.toml", "agentops/LICENSE"),
    *("agentops/reference/", "agentops/management/commands/write_reference.py"),
)


def test_the_wheel_contains_every_file_of_the_site(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()

    for top in ("agentops", "timeline", "runs"):
        assert {name for name in tracked if name.startswith(f"{top}/") and not name.startswith(LEFT_OUT)} <= packed
    assert not [name for name in packed if name.startswith(LEFT_OUT)]
    for top in ("templates", "static"):
        assert {f"agentops/{name}" for name in tracked if name.startswith(f"{top}/")} <= packed
    assert not [name for name in packed if name.startswith(("tests/", "bench/"))]
    [entry_points] = [name for name in packed if name.endswith(".dist-info/entry_points.txt")]
    assert "[pytest11]\nagentops = agentops.testing.plugin" in zipfile.ZipFile(wheel).read(entry_points).decode()


@pytest.mark.slow
def test_the_wheel_works_without_the_source_tree(wheel: Path, tmp_path: Path) -> None:
    """Install the packages of the lock file and the wheel into a clean environment, and start the site from there."""
    environment = CleanEnvironment.make(tmp_path / "clean")
    environment.install_site(wheel)

    site = Site(tmp_path / "home", command=[str(environment.programs / "agentops")])
    try:
        site.up()
        with httpx.Client(base_url=site.url) as reader:
            login = reader.get("/login")
            assert login.status_code == 200
            assert reader.get("/static/js/live.js").status_code == 200
            assert reader.get("/static/admin/css/base.css").status_code == 200
            assert reader.get("/readyz").json()["ready"]
        assert site.end() == 0
    finally:
        site.kill()
