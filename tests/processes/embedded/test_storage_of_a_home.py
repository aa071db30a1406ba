"""Test `up` on a home that it cannot use: one line with the reason and an exit code, never a traceback."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from django.core.exceptions import ImproperlyConfigured

from runs.management.site.home import Home
from tests.support.command_line import MANAGE, PLAYED, Site
from tests.support.timing import eventually

Mount = Callable[..., Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Return a function that mounts a separate file system. Skip the test if this user may not mount."""
    places: list[Path] = []

    def make(name: str, *words: str) -> Path:
        place = tmp_path / name
        place.mkdir()
        done = subprocess.run(["mount", *words, place], capture_output=True, check=False)
        if done.returncode:
            pytest.skip("this user may mount nothing")
        places.append(place)
        return place

    yield make
    for place in reversed(places):
        subprocess.run(["umount", place], check=True)


def fill(place: Path) -> None:
    with (place / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
        while True:
            ballast.write(bytes(4096))
    assert shutil.disk_usage(place).free == 0


def refused(home: Path) -> tuple[int, str]:
    """Run `up` on this home and return its exit code and its one line of output, without the warning to root."""
    env = Site(home).env()
    done = subprocess.run([*MANAGE, "up"], env=env, cwd="/", capture_output=True, text=True, check=False, timeout=120)
    assert "Traceback" not in done.stderr
    [line] = [line for line in done.stderr.splitlines() if "warning: running as root" not in line]
    return done.returncode, line


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Create a home that has everything but a database, as if it had been used before."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "secret_key").write_text("k9" * 40)
    (home / "lock").touch()
    return home


def test_a_home_on_a_read_only_file_system(made: Path, mount: Mount) -> None:
    place = mount("read-only", "--bind", str(made))
    subprocess.run(["mount", "-o", "remount,ro,bind", place], check=True)

    code, line = refused(place)

    assert (code, line) == (
        78,
        "agentops: invalid setting: AGENTOPS_HOME must be a directory that this user may write to"
        " (Read-only file system)",
    )


def test_a_home_on_a_full_disk(mount: Mount) -> None:
    """SQLite reports an I/O error, because it cannot create its journal."""
    place = mount("full", "-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs")
    for name, content in (("secret_key", "k9" * 40), ("lock", "")):
        (place / name).write_text(content)
    fill(place)

    assert refused(place) == (6, "agentops: the database cannot be used: its disk is full")


@pytest.mark.slow
def test_a_site_recovers_when_a_full_disk_has_room_again(mount: Mount, tmp_path: Path) -> None:
    """While nothing can be stored, runs stop; later they continue without intervention, and a failed start succeeds."""
    assert os.geteuid() == 0, "this test mounts a small file system: run it as root"
    place = mount("small", "-t", "tmpfs", "-o", "size=24m,mode=0700", "tmpfs")
    (place / "home").mkdir(mode=0o700)
    # The output of the process is stored on another disk.
    (tmp_path / "home").symlink_to(place / "home")
    site = Site(tmp_path / "home")
    try:
        site.up(AGENTOPS_LEASE_S="6", AGENTOPS_RENEW_S="2")
        eventually(lambda: site.runs().get("demo-replay", ("", 0))[1] > 0, why="the live run has begun")
        fill(place)
        eventually(lambda: "storage failed" in site.err, why="a step cannot be stored")
        eventually(lambda: "cannot renew" in site.err, why="no lease can be renewed")
        assert httpx.get(f"{site.url}/readyz").status_code == 503
        assert httpx.get(f"{site.url}/login").status_code == 200

        (place / "ballast").unlink()
        eventually(lambda: httpx.get(f"{site.url}/readyz").status_code == 200, why="it is ready")
        steps = site.runs()["demo-replay"][1]
        eventually(lambda: PLAYED.items() <= site.runs().items(), why="the recordings are played", within_s=120)
        eventually(lambda: site.runs()["demo-replay"][1] > steps, why="the live run continues")

        fill(place)
        assert site.end() == 0
        # The writes of a start may still fit into free pages.
        site.start()
        eventually(lambda: site.out.count("\n") >= 3 or not site.alive, why="it has started or given up")
        if not site.alive:
            assert (site.ended(), site.err) == (6, "agentops: the database cannot be used: its disk is full\n")
        (place / "ballast").unlink()
        if not site.alive:
            site.up()
        eventually(lambda: httpx.get(f"{site.url}/readyz").status_code == 200, why="it is ready again")
        steps = site.runs()["demo-replay"][1]
        eventually(lambda: site.runs()["demo-replay"][1] > steps, why="the live run continues again")
        assert site.end() == 0
        site.agentops("check_invariants")
    finally:
        site.kill()


def test_a_file_in_place_of_the_home(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    for home in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ImproperlyConfigured, match="AGENTOPS_HOME must be a directory that this user may write to"):
            Home(home)


def refuse(*_: object, **__: object) -> None:
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize(("owner", "call"), [(os, "open"), (Path, "mkdir")], ids=["open", "mkdir"])
def test_a_home_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, call: str) -> None:
    """Fake the error that an unprivileged user would get, because root may do everything."""
    monkeypatch.setattr(owner, call, refuse)

    with pytest.raises(ImproperlyConfigured, match=r"write to \(Permission denied\)"):
        Home(tmp_path)


def test_a_home_that_can_no_longer_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path / "home")
    monkeypatch.setattr(os, "pwrite", refuse)

    with pytest.raises(ImproperlyConfigured, match=r"write to \(Permission denied\)"):
        home.store_holder("box:1:a")
    home.release()
