"""The tools `write_file` and `edit_file`. They replace whole files below the agent's root atomically."""

from __future__ import annotations

import difflib
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from runs.tools import rooted_files
from runs.tools.base import Effect, ToolContext, ToolDenied, ToolResult
from runs.tools.functions import tool
from runs.tools.rooted_files import LIBC, PathNotFound, open_below_root, parts_of
from runs.tools.sandbox import switches
from timeline.display import preview
from timeline.events.work import FileChanged

MAX_FILE = 1024 * 1024
#: Maximum lines of a file that is compared line by line, which may take minutes if many lines are equal. A change of a
#: longer file appears as one block.
MAX_COMPARED = 1_000
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Content = Annotated[str, Field(max_length=MAX_FILE)]


@tool(effect=Effect.IDEMPOTENT, timeout_s=20)
def write_file(ctx: ToolContext, path: str, content: Content) -> ToolResult:
    """Write a text file below the agent's root. An existing file is replaced; missing directories are created.

    Args:
        path: Relative to the root, with forward slashes.
        content: The whole new content.
    """
    switches.require(switches.WRITE)
    return _replace_file(ctx, path, _content(ctx, path), content)


@tool(effect=Effect.AT_MOST_ONCE, timeout_s=20)
def edit_file(ctx: ToolContext, path: str, old: Annotated[str, Field(min_length=1)], new: str) -> ToolResult:
    """Replace a text in a file below the agent's root. The text must occur exactly once.

    Args:
        path: Relative to the root, with forward slashes.
        old: The text to replace, with enough of its surroundings to be unique.
        new: The text that replaces it.
    """
    switches.require(switches.WRITE)
    before = _content(ctx, path)
    if before is None:
        return ToolResult(f"There is no {path!r}.", is_error=True, retryable=False)
    if (times := before.count(old)) != 1:
        return ToolResult(f"{path!r} contains the text {times} times, not once.", is_error=True, retryable=False)
    return _replace_file(ctx, path, before, before.replace(old, new))


WRITE_TOOLS = tuple(replace(each, reads_files=True, switch=switches.WRITE) for each in (write_file, edit_file))


def _content(ctx: ToolContext, path: str) -> str | None:
    """Return the text of a file; None if it does not exist. Raises `ToolDenied`, also for files that are not text."""
    try:
        with open_below_root(ctx.settings.get("root"), path, directory=False) as descriptor:
            if os.fstat(descriptor).st_size > MAX_FILE:
                raise ToolDenied("path_denied", f"{path!r} is larger than {MAX_FILE} bytes.")
            return os.pread(descriptor, MAX_FILE, 0).decode()
    except PathNotFound as error:
        if "is a directory" in str(error):
            raise ToolDenied("path_denied", f"{error}.") from error
        return None
    except UnicodeDecodeError:
        raise ToolDenied("path_denied", f"{path!r} is not text in UTF-8.") from None


def _replace_file(ctx: ToolContext, path: str, before: str | None, after: str) -> ToolResult:
    """Write a file, and return the change as a result with an event. `before`: its present content, None if it is new.

    Raises `ToolDenied`.
    """
    parts = parts_of(path)
    if not parts:
        raise ToolDenied("path_denied", "The path names no file.")
    try:
        with _parent(ctx, parts[:-1]) as parent, _as_owner_of(parent):
            _write(parent, parts[-1], after.encode(errors="replace"))
    except PathNotFound as error:
        raise ToolDenied("path_denied", f"Nothing was written: {error}.") from error
    except OSError as error:
        raise ToolDenied("path_denied", f"{path[:200]!r} cannot be written: {error.strerror}.") from error
    if before == after:
        return ToolResult(f"{path} has this content already.")
    event = _event("/".join(parts), before, after)
    return ToolResult(f"{path} {event.change} (+{event.additions} -{event.deletions})", events=[event])


@contextmanager
def _parent(ctx: ToolContext, parts: list[str]) -> Iterator[int]:
    """Open the directory `parts` below the agent's root, and yield its descriptor. Missing directories are created."""
    root = ctx.settings.get("root")
    for depth, name in enumerate(parts):
        parent = open_below_root(root, "/".join(parts[:depth]) or ".", directory=True)
        with parent as directory, _as_owner_of(directory), suppress(FileExistsError):
            os.mkdir(name, 0o777, dir_fd=directory)
    with open_below_root(root, "/".join(parts) or ".", directory=True) as directory:
        yield directory


def _write(directory: int, name: str, data: bytes) -> None:
    """Write a temporary file next to the old one, and rename it. A link at this path is replaced, not followed."""
    temporary = f".{secrets.token_hex(8)}.tmp"
    mode = None
    with suppress(FileNotFoundError):
        old = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if not stat.S_ISREG(old.st_mode) or old.st_nlink > 1 or rooted_files.belongs_to_site(old):
            raise ToolDenied("path_denied", f"{name!r} is not a regular file that may be replaced.")
        mode = stat.S_IMODE(old.st_mode) & 0o777
    try:
        descriptor = os.open(temporary, _CREATE, 0o666 if mode is None else mode, dir_fd=directory)
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(descriptor, mode)  # the umask must not change the mode of an existing file
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise


@contextmanager
def _as_owner_of(directory: int) -> Iterator[None]:
    """If this process is root, act as the owner of a directory, in this thread.

    New files belong to the owner, whose commands use them. A later chown by name would be unsafe, because the owner
    could put another user's file at that name in between.
    """
    owner = os.fstat(directory)
    if os.geteuid() != 0 or owner.st_uid == 0 or LIBC is None:
        yield
        return
    LIBC.setfsgid(owner.st_gid)
    LIBC.setfsuid(owner.st_uid)
    try:
        yield
    finally:
        LIBC.setfsuid(os.geteuid())
        LIBC.setfsgid(os.getegid())


def _event(path: str, before: str | None, after: str) -> FileChanged:
    lines = _diff((before or "").splitlines(), after.splitlines())
    return FileChanged(
        path=path,
        change="added" if before is None else "modified",
        diff=preview("\n".join(lines))[0],
        additions=sum(line.startswith("+") for line in lines),
        deletions=sum(line.startswith("-") for line in lines),
    )


def _diff(old: list[str], new: list[str]) -> list[str]:
    """Return the lines of a unified diff, without its header."""
    if max(len(old), len(new)) <= MAX_COMPARED:
        return list(difflib.unified_diff(old, new, n=2, lineterm=""))[2:]
    begin = _common_lines(old, new)
    end = _common_lines(old[begin:][::-1], new[begin:][::-1])
    removed, added = old[begin : len(old) - end], new[begin : len(new) - end]
    head = f"@@ -{begin + 1},{len(removed)} +{begin + 1},{len(added)} @@"
    return [head, *(f"-{line}" for line in removed), *(f"+{line}" for line in added)]


def _common_lines(lines: list[str], others: list[str]) -> int:
    """Return the number of equal lines at the start of two texts."""
    pairs = enumerate(zip(lines, others, strict=False))
    return next((index for index, (line, other) in pairs if line != other), min(len(lines), len(others)))
