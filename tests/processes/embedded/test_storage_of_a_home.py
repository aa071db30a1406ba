"""`up` on a home that it cannot use: one line that says what is wrong, and an exit code; never a traceback."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from runs.management.site.home import Home
from tests.support.deployment.embedded_site import MANAGE, Site

Mount = Callable[..., Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """A file system of its own; skips where this user may mount nothing."""
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
    """How `up` ends on this home, and the one line that it says, beside the warning to root."""
    env = Site(home).env()
    done = subprocess.run([*MANAGE, "up"], env=env, cwd="/", capture_output=True, text=True, check=False, timeout=120)
    assert "Traceback" not in done.stderr
    [line] = [line for line in done.stderr.splitlines() if "warning: running as root" not in line]
    return done.returncode, line


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A home that has everything but a database, as if it was in use before."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "secret_key").write_text("k9" * 40)
    (home / "lock").touch()
    return home


def test_a_home_that_has_become_read_only(made: Path, mount: Mount) -> None:
    place = mount("read-only", "--bind", str(made))
    subprocess.run(["mount", "-o", "remount,ro,bind", place], check=True)

    code, line = refused(place)

    assert (code, line) == (
        78,
        "agentops: invalid setting: AGENTOPS_HOME must be a directory that this user may write to"
        " (Read-only file system)",
    )


def test_a_home_on_a_full_disk(mount: Mount) -> None:
    """SQLite speaks of an I/O error: it cannot make its journal."""
    place = mount("full", "-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs")
    for name, content in (("secret_key", "k9" * 40), ("lock", "")):
        (place / name).write_text(content)
    fill(place)

    assert refused(place) == (6, "agentops: the database cannot be used: its disk is full")


def test_a_file_in_place_of_the_home(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    for home in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ImproperlyConfigured, match="AGENTOPS_HOME must be a directory that this user may write to"):
            Home(home)


def refuse(*_: object, **__: object) -> None:
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize(("owner", "call"), [(os, "open"), (Path, "mkdir")], ids=["open", "mkdir"])
def test_a_home_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, call: str) -> None:
    """As an ordinary user would hear it: root may do everything."""
    monkeypatch.setattr(owner, call, refuse)

    with pytest.raises(ImproperlyConfigured, match=r"write to \(Permission denied\)"):
        Home(tmp_path)


def test_a_home_that_can_be_written_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path / "home")
    monkeypatch.setattr(os, "pwrite", refuse)

    with pytest.raises(ImproperlyConfigured, match=r"write to \(Permission denied\)"):
        home.belongs_to("box:1:a")
    home.release()
