"""The file tools read only below their root.

May import runs.tools.
"""

from __future__ import annotations

import base64
import json
import os
import random
import re
import socket
import stat
import threading
from pathlib import Path

import pytest
from pytest_django import Settings

from runs.tools.base import ToolContext, ToolDenied
from runs.tools.builtin import list_dir, read_file
from runs.tools.rooted_files import parts_of

OUTSIDE = "outside the root"


@pytest.fixture
def root(tmp_path: Path, settings: Settings) -> Path:
    root = tmp_path / "root"
    settings.AGENTOPS_TOOL_ROOTS = [str(root)]
    (root / "docs" / "deep").mkdir(parents=True)
    (root / "docs" / "a.txt").write_text("alpha")
    (root / "docs" / "deep" / "b.txt").write_text("beta")
    (root / "~odd").write_text("a file of that name")
    (root / ".git" / "hooks").mkdir(parents=True)
    (root / ".git" / "hooks" / "pre-commit").write_text("#!/bin/sh")
    (tmp_path / "secret.txt").write_text(OUTSIDE)
    return root


@pytest.fixture
def ctx(make_ctx, root: Path) -> ToolContext:
    return make_ctx(settings={"root": str(root)})


def names(result) -> list[str]:
    return [entry["name"] for entry in json.loads(result.output)["entries"]]


@pytest.mark.parametrize("path", ["docs/a.txt", "./docs/a.txt", "docs//a.txt", "docs/./a.txt", "docs/a.txt/"])
def test_a_file_is_read(ctx, path):
    assert read_file.run(ctx, {"path": path}).output == "alpha"


def test_a_directory_is_listed(ctx, root):
    os.symlink("a.txt", root / "docs" / "link")
    os.mkfifo(root / "docs" / "pipe")

    result = list_dir.run(ctx, {"path": "docs"})

    assert json.loads(result.output) == {
        "entries": [
            {"name": "a.txt", "type": "file", "size": 5},
            {"name": "deep", "type": "directory", "size": None},
            {"name": "link", "type": "link", "size": None},
            {"name": "pipe", "type": "other", "size": None},
        ],
        "left_out": 0,
    }
    assert names(list_dir.run(ctx, {})) == [".git", "docs", "~odd"]


def test_a_long_directory_reports_the_number_of_omitted_entries(ctx, root, monkeypatch):
    monkeypatch.setattr("runs.tools.builtin.MAX_ENTRIES", 2)
    for number in range(5):
        (root / "docs" / "deep" / f"{number}").touch()

    found = json.loads(list_dir.run(ctx, {"path": "docs/deep"}).output)

    assert (len(found["entries"]), found["left_out"]) == (2, 4)


def test_names_that_are_not_utf8_are_listed(ctx, root):
    os.close(os.open(os.fsencode(root / "docs" / "deep") + b"/\xff", os.O_CREAT))

    assert names(list_dir.run(ctx, {"path": "docs/deep"})) == ["b.txt", "\ufffd"]


def test_a_partial_read_reports_its_byte_range(ctx, root):
    text = "🙂" * 30
    (root / "smile").write_text(text)

    first = read_file.run(ctx, {"path": "smile", "limit": 18}).output
    assert first == "🙂" * 4 + "\n[bytes 0 to 16 of 120]"
    second = read_file.run(ctx, {"path": "smile", "offset": 16}).output
    assert second == "🙂" * 26 + "\n[bytes 16 to 120 of 120]"
    assert read_file.run(ctx, {"path": "smile", "offset": 500}).output == "\n[bytes 500 to 500 of 120]"


@pytest.mark.parametrize("offset", [2**53, 2**63, 2**70])
def test_an_offset_above_the_limit_is_refused(ctx, root, offset):
    (root / "f").write_text("alpha")

    assert read_file.run(ctx, {"path": "f", "offset": 2**53 - 1}).output.startswith("\n[bytes ")
    answered = read_file.run(ctx, {"path": "f", "offset": offset})
    assert answered.is_error
    assert "offset" in str(answered.output)


def test_a_binary_file_becomes_a_note(ctx, root):
    (root / "bin").write_bytes(bytes(range(256)))

    assert read_file.run(ctx, {"path": "bin"}).output.startswith("[256 bytes that are not text, sha256 ")


@pytest.mark.parametrize(
    ("read", "path", "said"),
    [
        (read_file, "docs/none.txt", "There is no 'docs/none.txt'."),
        (read_file, "none/none.txt", "There is no 'none/none.txt'."),
        (read_file, "docs", "'docs' is a directory."),
        (read_file, "", "'' is a directory."),
        (read_file, "docs/a.txt/b", "is not a directory."),
        (list_dir, "docs/a.txt", "is not a directory"),
        (list_dir, "none", "There is no 'none'."),
    ],
)
def test_a_missing_path_is_a_soft_error(ctx, read, path, said):
    result = read.run(ctx, {"path": path})

    assert result.is_error
    assert said in result.output


@pytest.mark.parametrize(
    "path",
    [
        "../../etc/passwd",
        "..",
        "docs/../../secret.txt",
        "a/../../b",
        "docs/..",
        "docs/../docs/a.txt",
        "/etc/passwd",
        "//etc/passwd",
        "/proc/self/environ",
        "/",
        "~",
        "~/x",
        "~root/x",
        "~odd",
        "C:\\",
        "C:\\Windows",
        "c:/windows",
        "docs\\a.txt",
        "..\\secret.txt",
        "docs/a.txt\0",
        "\0",
        "docs/\0/../../secret.txt",
        "x" * 4097,
        "docs/" * 819 + "ab",
        "ä" * 2049,
        "x" * 300,
        ".git",
        ".git/hooks",
        ".git/hooks/pre-commit",
        "docs/.GIT/config",
    ],
    ids=lambda path: path[:30].encode("unicode_escape").decode(),
)
@pytest.mark.parametrize("read", [read_file, list_dir], ids=["read", "list"])
def test_it_refuses_paths_that_lead_outside(ctx, read, path):
    with pytest.raises(ToolDenied) as caught:
        read.run(ctx, {"path": path})

    assert caught.value.code == "path_denied"
    assert len(caught.value.message) < 400


def test_invalid_unicode_in_a_path_is_refused(ctx):
    with pytest.raises(ToolDenied, match="valid text"):
        parts_of("\ud800")


def test_symbolic_links_are_refused_wherever_they_lead(ctx, root, tmp_path):
    os.symlink("/", root / "slash")
    os.symlink("docs/a.txt", root / "inside")
    os.symlink("docs", root / "inside-dir")
    os.symlink(tmp_path / "secret.txt", root / "outside")
    os.symlink("loop", root / "loop")
    os.symlink("nowhere", root / "dangling")

    for path in ("slash", "slash/etc/passwd", "inside", "inside-dir/a.txt", "outside", "loop", "dangling"):
        for read in (read_file, list_dir):
            with pytest.raises(ToolDenied, match="contains a symbolic link"):
                read.run(ctx, {"path": path})


def test_a_hard_link_is_refused(ctx, root, tmp_path):
    os.link(tmp_path / "secret.txt", root / "hard")

    with pytest.raises(ToolDenied, match="hard link"):
        read_file.run(ctx, {"path": "hard"})


def test_pipes_sockets_and_devices_are_refused_without_waiting(ctx, root):
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as unix:
        here = os.open(root, os.O_RDONLY)
        unix.bind(f"/proc/self/fd/{here}/socket")
        os.close(here)

    for name in ("pipe", "socket"):
        with pytest.raises(ToolDenied, match="not a regular file"):
            read_file.run(ctx, {"path": name})


def test_device_files_are_refused(ctx, root):
    try:
        os.mknod(root / "zero", 0o600 | stat.S_IFCHR, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("this user may make no devices")

    with pytest.raises(ToolDenied, match="not a regular file"):
        read_file.run(ctx, {"path": "zero"})


@pytest.mark.parametrize("root", [None, "", "relative", 5, ["/"], "/no/such/directory", "/etc/passwd", "/a\0b"])
def test_every_path_is_refused_without_a_valid_root(make_ctx, settings, tmp_path, root):
    settings.AGENTOPS_TOOL_ROOTS = [str(tmp_path)]
    given = {} if root is None else {"root": root}

    with pytest.raises(ToolDenied, match="root") as caught:
        read_file.run(make_ctx(settings=given), {"path": "docs/a.txt"})

    assert caught.value.code == "path_denied"


def test_an_unreadable_file_is_refused(ctx, root):
    (root / "docs" / "a.txt").chmod(0)
    if os.access(root / "docs" / "a.txt", os.R_OK):
        pytest.skip("this user may read everything")

    with pytest.raises(ToolDenied, match="Permission denied"):
        read_file.run(ctx, {"path": "docs/a.txt"})


@pytest.mark.parametrize("swapped", ["docs", "docs/a.txt"])
def test_a_link_created_between_check_and_open_is_not_followed(ctx, root, tmp_path, monkeypatch, swapped):
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    (outside / "a.txt").write_text(OUTSIDE)
    real = os.stat

    def stat_then_swap(path, *args, **kwargs):
        found = real(path, *args, **kwargs)
        if path == Path(swapped).name and not (root / swapped).is_symlink():
            os.rename(root / swapped, tmp_path / "aside")
            os.symlink(outside if swapped == "docs" else outside / "a.txt", root / swapped)
        return found

    monkeypatch.setattr("runs.tools.rooted_files.os.stat", stat_then_swap)
    with pytest.raises(ToolDenied, match="cannot be opened"):
        read_file.run(ctx, {"path": "docs/a.txt"})


def test_a_pipe_created_between_check_and_open_is_refused_without_waiting(ctx, root, monkeypatch):
    real = os.stat

    def stat_then_swap(path, *args, **kwargs):
        found = real(path, *args, **kwargs)
        if path == "a.txt":
            os.unlink(root / "docs" / "a.txt")
            os.mkfifo(root / "docs" / "a.txt")
        return found

    monkeypatch.setattr("runs.tools.rooted_files.os.stat", stat_then_swap)
    with pytest.raises(ToolDenied, match="not a regular file"):
        read_file.run(ctx, {"path": "docs/a.txt"})


@pytest.mark.slow
@pytest.mark.parametrize("target", ["directory", "file"])
def test_replacing_a_path_component_with_a_link_during_reads_never_leads_outside(ctx, root, tmp_path, target):
    """A thread replaces `docs` (or `docs/a.txt`) with a link and back, thousands of times."""
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    (outside / "a.txt").write_text(OUTSIDE)
    real = root / "docs" if target == "directory" else root / "docs" / "a.txt"
    aside, link = tmp_path / "aside", tmp_path / "link"
    os.symlink(outside if target == "directory" else outside / "a.txt", link)
    done = threading.Event()

    def flip() -> None:
        while not done.is_set():
            os.rename(real, aside)
            os.rename(link, real)
            os.rename(real, link)
            os.rename(aside, real)

    flipping = threading.Thread(target=flip)
    flipping.start()
    answers: dict[str, int] = {}
    try:
        for _ in range(4000):
            try:
                answer = read_file.run(ctx, {"path": "docs/a.txt"}).output
            except ToolDenied as error:
                answer = error.code
            answers[answer] = answers.get(answer, 0) + 1
    finally:
        done.set()
        flipping.join()

    assert OUTSIDE not in answers
    assert set(answers) <= {"alpha", "path_denied", "There is no 'docs/a.txt'."}
    assert answers["alpha"]
    assert len(answers) > 1


def test_no_descriptor_is_left_open(ctx, root):
    os.symlink("/", root / "slash")
    before = len(os.listdir("/proc/self/fd"))

    for path in ("docs/a.txt", "docs/deep/b.txt", "docs/none", "slash/etc", "docs", "docs/a.txt/b"):
        for read in (read_file, list_dir):
            try:
                read.run(ctx, {"path": path})
            except ToolDenied:
                continue

    assert len(os.listdir("/proc/self/fd")) == before


# --- Secrets at the borders of windows ------------------------------------------------------------------------------

SECRET = "q8vX2-LrT5kWz1Nc-J7bYh4"
URL = f"postgresql://agentops:{SECRET}@db:5432/agentops"


@pytest.mark.parametrize("between", ["\n", "\0"], ids=["lines", "NUL, as in environ"])
def test_partial_reads_of_a_file_reveal_no_part_of_a_secret(ctx, root, between):
    """Every offset, with the smallest window: the text around redaction markers contains no part of the secret."""
    variables = [
        "LANG=C.UTF-8",
        f"DATABASE_URL={URL}",
        "ümläut=größer",
        f"API_TOKEN={SECRET}",
        "PATH=/usr/bin",
        "x" * 60,
    ]
    content = between.join(variables).encode()
    (root / "f").write_bytes(content)

    for at in range(len(content)):
        answer = read_file.run(ctx, {"path": "f", "offset": at, "limit": 16}).output
        text = re.sub(r"\[REDACTED:[a-z_]+:[0-9a-f]{8}\]", "", answer.partition("\n[bytes ")[0])
        assert not any(SECRET[at : at + 4] in text for at in range(len(SECRET) - 3)), answer
        assert "sha256" not in answer, "the hash of a few bytes gives them away"


def test_a_window_inside_a_private_key_is_masked(ctx, root):
    lines = [base64.b64encode(random.Random(line).randbytes(48)).decode() for line in range(150)]
    key = "\n".join(["-----BEGIN PRIVATE KEY-----", *lines, "-----END PRIVATE KEY-----"])
    (root / "f").write_text(f"{'words ' * 30_000}{key}{' words' * 30_000}")

    for at in range(180_000, 180_000 + len(key), 997):
        answer = read_file.run(ctx, {"path": "f", "offset": at, "limit": 64}).output
        assert re.match(r"\[REDACTED:private_key:[0-9a-f]{8}\]", answer), answer


def test_a_character_cut_by_the_offset_belongs_to_the_window_with_its_last_byte(ctx, root):
    (root / "f").write_text("aé€🙂" * 10)

    assert read_file.run(ctx, {"path": "f", "offset": 2, "limit": 16}).output.startswith("é€🙂a")
