"""Opening files below one directory and nowhere else, whatever is done to the tree meanwhile.
May import libraries and `runs.tools.base`."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from runs.tools.base import ToolDenied

MAX_PATH_BYTES = 4096

_DRIVE = re.compile(r"[A-Za-z]:")


class NotThere(Exception):
    """An allowed path that leads to nothing, or to the other kind of thing; the text is for the model."""


def parts_of(path: str) -> list[str]:
    """The components to walk. Most of what is refused would not get far; this makes the attempt visible."""
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise _denied(path, "is not valid text") from None
    if size > MAX_PATH_BYTES:
        raise _denied(path, f"is longer than {MAX_PATH_BYTES} bytes")
    if "\0" in path or "\\" in path:
        raise _denied(path, "has a NUL or a backslash in it")
    if path.startswith(("/", "~")) or _DRIVE.match(path):
        raise _denied(path, "is not relative to the root")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise _denied(path, "leads upwards")
    if any(part.lower() == ".git" for part in parts):
        # Hooks are programs, and remotes carry credentials.
        raise _denied(path, "leads into a repository's own files")
    return parts


@contextmanager
def opened(root: object, path: str, *, directory: bool) -> Iterator[int]:
    """A descriptor of the file or directory. Every step goes by descriptor and follows no link, so swapping a
    directory for a link between two steps cannot lead outside."""
    parts = parts_of(path)
    current = _open_root(root)
    try:
        for position, part in enumerate(parts):
            last = position == len(parts) - 1
            following = _step(current, part, path, directory=directory or not last)
            os.close(current)
            current = following
        if not parts and not directory:
            raise NotThere(f"{path!r} is a directory")
        yield current
    finally:
        os.close(current)


def _open_root(root: object) -> int:
    if not isinstance(root, str) or not os.path.isabs(root) or "\0" in root:
        raise ToolDenied("path_denied", "This agent has no file root: set 'root' to an absolute path.")
    try:
        return os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ToolDenied("path_denied", f"The agent's file root cannot be opened: {error.strerror}.") from error


def _step(parent: int, name: str, path: str, *, directory: bool) -> int:
    try:
        # Looked at before it is opened: opening a device or a pipe can already do something.
        _check(os.stat(name, dir_fd=parent, follow_symlinks=False), path, directory=directory)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        found = os.open(name, flags, dir_fd=parent)
    except FileNotFoundError:
        raise NotThere(f"There is no {path!r}") from None
    except OSError as error:
        raise _denied(path, f"cannot be opened: {error.strerror}") from error
    try:
        # It may have been swapped since: what counts is what is open now.
        _check(os.fstat(found), path, directory=directory)
    except BaseException:
        os.close(found)
        raise
    return found


def _check(found: os.stat_result, path: str, *, directory: bool) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise _denied(path, "goes through a symbolic link")
    if stat.S_ISDIR(found.st_mode):
        if not directory:
            raise NotThere(f"{path!r} is a directory")
    elif not stat.S_ISREG(found.st_mode):
        raise _denied(path, "is not a plain file")
    elif directory:
        raise NotThere(f"{path!r} is not a directory, or leads through a file")
    elif found.st_nlink > 1:
        # The same file may have another name outside the root.
        raise _denied(path, "has more than one hard link")


def _denied(path: str, reason: str) -> ToolDenied:
    shown = path if len(path) <= 200 else path[:200] + "…"
    return ToolDenied("path_denied", f"The path {shown!r} {reason}.")
