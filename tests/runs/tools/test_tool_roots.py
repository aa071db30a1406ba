"""Directories for file tools: those the deployment allows, without the files of the site.

May import runs.tools.
"""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
from pathlib import Path

import pytest
from pytest_django import Settings

from runs.tools import rooted_files
from runs.tools.base import ToolContext, ToolDenied
from runs.tools.builtin import list_dir, read_file


@pytest.fixture
def allowed(tmp_path: Path, settings: Settings) -> Path:
    """Create an allowed directory with a checkout, and a directory that is not allowed."""
    (tmp_path / "allowed" / "checkout").mkdir(parents=True)
    (tmp_path / "allowed" / "checkout" / "a.txt").write_text("alpha")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.txt").write_text("not for agents")
    settings.AGENTOPS_TOOL_ROOTS = [str(tmp_path / "allowed")]
    return tmp_path / "allowed"


@pytest.fixture
def read(make_ctx):
    def reads(root: object, path: str = "a.txt") -> str:
        ctx: ToolContext = make_ctx(settings={"root": str(root)})
        answer = read_file.run(ctx, {"path": path})
        assert isinstance(answer.output, str)
        return answer.output

    return reads


def test_files_below_an_allowed_directory_are_read(allowed, read, tmp_path, settings):
    assert read(allowed / "checkout") == "alpha"
    assert read(allowed, "checkout/a.txt") == "alpha"
    (tmp_path / "link").symlink_to(allowed)
    assert read(tmp_path / "link" / "checkout") == "alpha"
    settings.AGENTOPS_TOOL_ROOTS = [str(tmp_path / "link")]
    assert read(allowed / "checkout") == "alpha"


def test_every_call_is_denied_without_tool_roots(allowed, make_ctx, settings):
    settings.AGENTOPS_TOOL_ROOTS = []

    for tool, arguments in ((read_file, {"path": "a.txt"}), (list_dir, {})):
        with pytest.raises(ToolDenied, match="AGENTOPS_TOOL_ROOTS is empty") as denied:
            tool.run(make_ctx(settings={"root": str(allowed / "checkout")}), arguments)
        assert denied.value.code == "path_denied"


KERNEL = (
    "/proc",
    "/proc/self",
    "/proc/thread-self",
    "/proc/self/root/proc/self",
    "/proc/self/task",
    "/proc/1",
    "/proc/self/fd",
    "/sys",
    "/sys/kernel",
    "/dev",
    "/dev/fd",
    "/dev/shm",
    "//proc//self/",
    "/tmp/../proc/self",
    "/proc/self/root",
    "/",
)


@pytest.mark.parametrize("root", KERNEL)
@pytest.mark.parametrize("named", ["one directory", "the whole machine"])
def test_kernel_file_systems_are_never_read(allowed, read, settings, root, named):
    if named == "the whole machine":
        settings.AGENTOPS_TOOL_ROOTS = ["/"]
    way = {"/": "proc/self/environ", "/proc/self/root": "proc/self/environ", "/proc": "self/environ"}.get(
        root, "environ"
    )

    with pytest.raises(ToolDenied) as denied:
        read(root, way)

    assert denied.value.code == "path_denied"


def test_links_in_the_path_to_a_root_are_not_followed(allowed, read, tmp_path):
    (allowed / "proc").symlink_to("/proc/self")
    (allowed / "other").symlink_to(tmp_path / "other")
    (allowed / "up").symlink_to("..")
    descriptor = os.open("/proc/self", os.O_RDONLY)
    try:
        for root, path in (
            (allowed / "proc", "environ"),
            (allowed, "proc/environ"),
            (allowed / "other", "a.txt"),
            (allowed, "other/a.txt"),
            (allowed / "up" / "other", "a.txt"),
            (f"/proc/self/fd/{descriptor}", "environ"),
            (f"/dev/fd/{descriptor}", "environ"),
            (allowed / ".." / "other", "a.txt"),
        ):
            with pytest.raises(ToolDenied):
                read(root, path)
    finally:
        os.close(descriptor)


def test_a_root_replaced_by_a_link_after_its_check_is_not_followed(allowed, read, tmp_path, monkeypatch):
    real = os.path.realpath

    def resolve_then_swap(path, **kwargs):
        found = real(path, **kwargs)
        if str(path).endswith("checkout") and not (allowed / "checkout").is_symlink():
            (allowed / "checkout").rename(tmp_path / "aside")
            (allowed / "checkout").symlink_to(tmp_path / "other")
        return found

    monkeypatch.setattr("runs.tools.rooted_files.os.path.realpath", resolve_then_swap)
    with pytest.raises(ToolDenied):
        read(allowed / "checkout")


def test_a_sibling_directory_with_the_same_prefix_is_not_allowed(allowed, read, tmp_path):
    (tmp_path / "allowed-not").mkdir()
    (tmp_path / "allowed-not" / "a.txt").write_text("not for agents")

    with pytest.raises(ToolDenied, match="not below a directory"):
        read(tmp_path / "allowed-not")


# --- The site's own files -------------------------------------------------------------------------------------------


@pytest.fixture
def site(allowed: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a home and a separate database, both inside the allowed directory."""
    home = allowed / "checkout" / ".agentops"
    home.mkdir()
    (home / "secret_key").write_text("the key")
    for name in ("site.db", "site.db-wal", "site.db-shm"):
        (allowed / "checkout" / name).write_text("rows of everyone")
    settings.AGENTOPS_HOME = home
    monkeypatch.setitem(settings.DATABASES["default"], "ENGINE", "django.db.backends.sqlite3")
    monkeypatch.setitem(settings.DATABASES["default"], "NAME", str(allowed / "checkout" / "site.db"))
    return home


@pytest.mark.parametrize(
    ("root", "path"),
    [
        ("checkout", ".agentops/secret_key"),
        (".", "checkout/.agentops/secret_key"),
        ("checkout", "site.db"),
        ("checkout", "site.db-wal"),
        ("checkout", "site.db-shm"),
        ("checkout/.agentops", "secret_key"),
        ("checkout/.agentops", "."),
    ],
)
def test_the_home_and_the_database_are_never_read(site, allowed, read, root, path):
    assert read(allowed / "checkout") == "alpha"
    with pytest.raises(ToolDenied):
        read(allowed / root, path)


def test_the_home_is_recognized_through_a_link(site, allowed, read, settings):
    """Renamed or linked: the directories are compared by identity, not by name."""
    settings.AGENTOPS_HOME = allowed / "home-link"
    (allowed / "home-link").symlink_to(site)

    with pytest.raises(ToolDenied, match="files of this site"):
        read(allowed / "checkout", ".agentops/secret_key")


@pytest.fixture
def mounted(site: Path, allowed: Path):
    """Mount the home at a second place in the allowed directory, and mount /proc there."""
    bound, proc = allowed / "checkout" / "bound", allowed / "checkout" / "processes"
    bound.mkdir()
    proc.mkdir()
    (site / "below").mkdir()
    (site / "below" / "key").write_text("the key")
    places = [bound, proc]
    done = [
        subprocess.run(command, capture_output=True, check=False).returncode
        for command in (["mount", "--bind", site / "below", bound], ["mount", "-t", "proc", "proc", proc])
    ]
    try:
        if any(done):
            pytest.skip("this user may mount nothing")
        yield bound, proc
    finally:
        for place, code in zip(places, done, strict=True):
            if code == 0:
                subprocess.run(["umount", place], check=True)


def test_other_mounts_are_not_entered(mounted, allowed, read, settings):
    _, proc = mounted

    for path in ("bound/key", "processes/self/environ"):
        with pytest.raises(ToolDenied, match="another mount"):
            read(allowed / "checkout", path)
    settings.AGENTOPS_TOOL_ROOTS = [str(proc)]
    with pytest.raises(ToolDenied, match="kernel file system"):
        read(proc, "self/environ")


@pytest.mark.parametrize("errno_of_kernel", ["ENOSYS", "EPERM"])
def test_a_kernel_without_the_system_call_uses_a_fallback(allowed, read, tmp_path, monkeypatch, errno_of_kernel):
    class Refusing:
        def syscall(self, *_: object) -> int:
            ctypes.set_errno(getattr(errno, errno_of_kernel))
            return -1

    monkeypatch.setattr(rooted_files, "LIBC", Refusing())
    (allowed / "link").symlink_to(tmp_path / "other")

    assert read(allowed / "checkout") == "alpha"
    with pytest.raises(ToolDenied):
        read(allowed, "link/a.txt")


def test_a_kernel_file_system_is_recognized_by_its_device():
    assert rooted_files.is_kernel_file_system(os.stat("/proc").st_dev)
    assert not rooted_files.is_kernel_file_system(os.stat(__file__).st_dev)
