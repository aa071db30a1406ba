"""Test the home of an embedded site: it is locked by one process, private, and on a local disk."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from runs.management.site.home import Home, remote_file_system

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
proc /proc proc rw 0 0
files:/export /mnt nfs4 rw 0 0
/dev/sdb1 /mnt/disk xfs rw 0 0
box:/a /home/ann\\040lee/far fuse.sshfs rw 0 0
/dev/sdc1 /twice ext4 rw 0 0
//box/share /twice cifs rw 0 0
garbage
"""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_home_is_locked_by_one_process_and_records_its_owner(tmp_path: Path) -> None:
    first = Home(tmp_path / "a" / "home")
    assert first.previous_worker == ""
    first.store_holder("box:4711:0123456789abcdef")
    with pytest.raises(CommandError, match=r"already running on .*home \(process 4711\)"):
        Home(tmp_path / "a" / "home")

    first.release()
    second = Home(tmp_path / "a" / "home")
    assert second.previous_worker == "box:4711:0123456789abcdef"
    second.store_holder("box:8:ff")
    second.release()
    third = Home(tmp_path / "a" / "home")
    assert third.previous_worker == "box:8:ff"
    third.release()


def test_a_home_is_made_private(tmp_path: Path) -> None:
    """This includes files that a command created under another umask, but not other files."""
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    for name in ("agentops.sqlite3", "agentops.sqlite3-wal", "notes.txt"):
        (home / name).touch(mode=0o644)
    Home(home).release()

    assert mode(home) == 0o700
    assert {path.name: mode(path) for path in home.iterdir()} == {
        "agentops.sqlite3": 0o600,
        "agentops.sqlite3-wal": 0o600,
        "notes.txt": 0o644,
        "lock": 0o600,
    }


def test_a_directory_that_everyone_may_write_to_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    os.chmod(shared, 0o1777)

    with pytest.raises(ImproperlyConfigured, match=r"^AGENTOPS_HOME "):
        Home(shared)
    assert mode(shared) == 0o1777
    assert list(shared.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/agentops", ""),
        ("/mnt/home", "nfs4"),
        ("/mnt", "nfs4"),
        ("/mnt/disk/home", ""),
        ("/mnt-other/home", ""),
        ("/home/ann lee/far/home", "fuse.sshfs"),
        ("/home/ann lee/near", ""),
        ("/twice/home", "cifs"),
    ],
)
def test_file_systems_of_other_machines_are_recognized(path: str, kind: str) -> None:
    assert remote_file_system(Path(path), MOUNTS) == kind


def test_without_a_list_of_mounts_the_disk_counts_as_local() -> None:
    assert remote_file_system(Path("/srv/home"), "") == ""
