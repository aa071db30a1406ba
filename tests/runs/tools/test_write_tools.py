"""The write tools write only below the root, and write a file completely or not at all."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agentops.accounts.access import SYSTEM
from agentops.accounts.memberships import create_project
from runs.actions import agent_definitions
from runs.errors import InvalidAgent
from runs.tools.base import ToolDenied, ToolResult
from runs.tools.catalogue import TOOLS
from timeline.events.work import FileChanged

Call = Callable[..., ToolResult]


@pytest.fixture
def root(tmp_path: Path, settings) -> Path:
    root = tmp_path / "root"
    (root / "docs").mkdir(parents=True)
    (root / "docs" / "a.txt").write_text("one\ntwo\nthree\n")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept.txt").write_text("kept")
    settings.AGENTOPS_TOOL_ROOTS = [str(root)]
    settings.AGENTOPS_WRITE_TOOLS = True
    return root


@pytest.fixture
def call(make_ctx, root: Path) -> Call:
    def run(name: str, **arguments: Any) -> ToolResult:
        tool = TOOLS.get(name)
        assert tool is not None
        return tool.run(make_ctx(settings={"root": str(root)}), arguments)

    return run


def test_an_existing_file_keeps_its_mode_for_any_umask(call: Call, root: Path) -> None:
    script, shared = root / "run.sh", root / "docs" / "a.txt"
    script.write_text("#!/bin/sh\nexit 1\n")
    script.chmod(0o755)
    shared.chmod(0o664)
    before = os.umask(0o077)  # as in `agentops up`
    try:
        call("edit_file", path="run.sh", old="exit 1", new="exit 0")
        call("write_file", path="docs/a.txt", content="one\n")
        call("write_file", path="new.txt", content="new\n")
    finally:
        os.umask(before)

    assert [path.stat().st_mode & 0o777 for path in (script, shared, root / "new.txt")] == [0o755, 0o664, 0o600]


def test_new_and_existing_files_are_written(call: Call, root: Path) -> None:
    (root / "docs" / "a.txt").chmod(0o640)
    new = call("write_file", path="src/deep/new.py", content="print('é')\n")
    changed = call("write_file", path="docs/a.txt", content="one\n2\nthree\n")
    same = call("write_file", path="docs/a.txt", content="one\n2\nthree\n")

    assert (root / "src" / "deep" / "new.py").read_text() == "print('é')\n"
    assert (new.output, changed.output) == ("src/deep/new.py added (+1 -0)", "docs/a.txt modified (+1 -1)")
    assert (same.output, same.events) == ("docs/a.txt has this content already.", ())
    [event] = changed.events
    assert isinstance(event, FileChanged)
    assert (event.path, event.change, event.additions, event.deletions) == ("docs/a.txt", "modified", 1, 1)
    assert event.diff == "@@ -1,3 +1,3 @@\n one\n-two\n+2\n three"
    assert (root / "docs" / "a.txt").stat().st_mode & 0o777 == 0o640
    assert sorted(each.name for each in (root / "docs").iterdir()) == ["a.txt"], "a temporary file is left"


def test_a_long_file_with_repeated_lines_is_edited_in_time(call: Call, root: Path) -> None:
    """A column of numbers. A diff line by line would exceed the time limit, and the outcome would be unknown."""
    column = [str(number * 7919 % 150) for number in range(120_000)]
    (root / "long.csv").write_text("\n".join([*column, "the one", *column]))
    began = time.monotonic()

    edited = call("edit_file", path="long.csv", old="the one", new="another")

    assert time.monotonic() - began < 10
    assert edited.output == "long.csv modified (+1 -1)"
    [event] = edited.events
    assert isinstance(event, FileChanged)
    assert event.diff == "@@ -120001,1 +120001,1 @@\n-the one\n+another"


def test_edit_replaces_a_text_that_occurs_once(call: Call, root: Path) -> None:
    edited = call("edit_file", path="docs/a.txt", old="two", new="2")
    twice = call("edit_file", path="docs/a.txt", old="e\n", new="")
    gone = call("edit_file", path="docs/b.txt", old="a", new="b")

    assert (edited.output, (root / "docs" / "a.txt").read_text()) == ("docs/a.txt modified (+1 -1)", "one\n2\nthree\n")
    assert (twice.is_error, twice.output) == (True, "'docs/a.txt' contains the text 2 times, not once.")
    assert (gone.is_error, gone.output) == (True, "There is no 'docs/b.txt'.")


ESCAPES = [
    "../outside/kept.txt",
    "/etc/passwd",
    "~/x",
    "C:\\x",
    "docs/../../outside/kept.txt",
    "a\0b",
    ".git/hooks/update",
    "docs/.GIT/config",
    "link/kept.txt",
    "link/new.txt",
    "file-link",
    "hard",
    "docs",
    ".",
    "docs/a.txt/b",
    "pipe",
    "binary",
    "x" * 4097,
    "x" * 300,
    "/proc/self/environ",
    "a/../../b",
    ".git/hooks",
    "/dev/null",
]


def outcome(call: Call, name: str, **arguments: Any) -> str:
    """Return the code of a denial, or whether the tool succeeded."""
    try:
        return "error" if call(name, **arguments).is_error else "written"
    except ToolDenied as denied:
        return denied.code


@pytest.mark.parametrize("path", ESCAPES)
@pytest.mark.parametrize("name", ["write_file", "edit_file"])
def test_paths_outside_the_root_are_not_written(name: str, path: str, call: Call, root: Path) -> None:
    kept = root.parent / "outside" / "kept.txt"
    os.symlink(root.parent / "outside", root / "link")
    os.symlink(kept, root / "file-link")
    os.link(kept, root / "hard")
    os.mkfifo(root / "pipe")
    (root / "binary").write_bytes(b"\xff\xfe\x00")
    arguments = {"content": "x"} if name == "write_file" else {"old": "kept", "new": "x"}

    assert outcome(call, name, path=path, **arguments) in ("path_denied", "error")
    assert kept.read_text() == "kept"
    assert [each.name for each in (root.parent / "outside").iterdir()] == ["kept.txt"]


def test_a_directory_replaced_by_a_link_during_a_write_is_not_followed(call: Call, root: Path) -> None:
    """Another thread changes the tree during the writes: each write goes below the root or is refused."""
    outside, inside, spare = root.parent / "outside", root / "swap", root / "spare"
    inside.mkdir()
    (inside / "kept.txt").write_text("kept")
    inode = (outside / "kept.txt").stat().st_ino
    ended = threading.Event()

    def swap() -> None:
        while not ended.is_set():
            os.rename(inside, spare)
            # Fails if the tool has created the directory again.
            with suppress(OSError):
                os.symlink(outside, inside)
                os.unlink(inside)
            while spare.exists():
                with suppress(OSError):
                    os.rename(spare, inside)
                    continue
                # The tool has written to the directory that it created.
                shutil.rmtree(inside, ignore_errors=True)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        outcomes = {outcome(call, "edit_file", path="swap/kept.txt", old="kept", new="kept") for _ in range(200)}
    finally:
        ended.set()
        swapping.join()
    assert outcomes <= {"written", "error", "path_denied"}
    assert [(each.name, each.stat().st_ino) for each in outside.iterdir()] == [("kept.txt", inode)]


@pytest.mark.skipif(os.geteuid() != 0, reason="about workers that run as root")
def test_a_tool_running_as_root_never_changes_the_owner_of_a_replaced_file(
    call: Call, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of the tree replaces the written file, and a new directory, with a hard link to a file of root."""
    kept, owner = root.parent / "outside" / "kept.txt", 54_321
    for path in (root, root / "docs"):
        os.chown(path, owner, owner)
    fsync, mkdir = os.fsync, os.mkdir
    # The thread starts here; later it would inherit the reduced rights of the tool's thread.
    owner_of_tree = ThreadPoolExecutor(1)
    owner_of_tree.submit(int).result()

    def put_link(name: str) -> None:
        os.rename(root / "docs" / name, root / "docs" / "aside")
        os.link(kept, root / "docs" / name)

    def swap_file(descriptor: int) -> None:
        fsync(descriptor)
        owner_of_tree.submit(lambda: put_link(next((root / "docs").glob(".*.tmp")).name)).result()

    def swap_directory(name: str, mode: int, *, dir_fd: int) -> None:
        mkdir(name, mode, dir_fd=dir_fd)
        owner_of_tree.submit(put_link, name).result()

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", swap_file)
        call("write_file", path="docs/new.txt", content="x")
    (root / "docs" / "aside").unlink()
    with monkeypatch.context() as patched:
        patched.setattr(os, "mkdir", swap_directory)
        assert outcome(call, "write_file", path="docs/deep/new.txt", content="x") == "path_denied"

    owner_of_tree.shutdown()
    assert kept.stat().st_uid == 0
    assert (root / "docs" / "aside").stat().st_uid == owner
    call("write_file", path="docs/other/new.txt", content="x")
    status = (root / "docs" / "other" / "new.txt").stat()
    assert (status.st_uid, status.st_gid) == (owner, owner)


@pytest.mark.django_db
def test_write_tools_are_off_by_default(call: Call, settings, root: Path) -> None:
    settings.AGENTOPS_WRITE_TOOLS = False
    with pytest.raises(ToolDenied, match="tool_off"):
        call("write_file", path="new.txt", content="x")
    definition = {
        "agent_id": "a",
        "provider": "fixture",
        "model": "claude-code-5c",
        "tools": ["write_file"],
        "settings": {"root": str(root)},
    }
    project = create_project("alpha", "Alpha", actor=SYSTEM)
    with pytest.raises(InvalidAgent, match="The tool 'write_file' is off: AGENTOPS_WRITE_TOOLS is not set"):
        agent_definitions.apply(project, definition, by="system")
