"""Opening files below one directory and nowhere else, whatever is done to the tree meanwhile."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from runs.tools import roots
from runs.tools.base import ToolDenied

MAX_PATH_BYTES = 4096

_DRIVE = re.compile(r"[A-Za-z]:")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
#: Of Linux 5.6, by the same number on every architecture; Python has no function for it.
_OPENAT2 = 437
#: No other mount, no link of /proc, no symbolic link, nothing above.
_RESOLVE = 0x01 | 0x02 | 0x04 | 0x08


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
    """A descriptor of the file or directory. Every step goes by descriptor, follows no link and enters no other
    mount, so swapping a directory for a link between two steps cannot lead outside."""
    parts = parts_of(path)
    current = _open_root(root)
    try:
        for position, part in enumerate(parts):
            last = position == len(parts) - 1
            current = _down(current, part, path, directory=directory or not last)
        if not parts and not directory:
            raise NotThere(f"{path!r} is a directory")
        yield current
    finally:
        os.close(current)


def _open_root(root: object) -> int:
    """The agent's root, reached from the allowed directory as its files are: nothing on the way is trusted."""
    try:
        allowed, way = roots.locate(root)
        current = os.open(allowed, _DIRECTORY | os.O_NOFOLLOW)
    except roots.RootRefused as error:
        raise ToolDenied("path_denied", f"Nothing was read: {error}.") from error
    except OSError as error:
        raise ToolDenied("path_denied", f"The agent's file root cannot be opened: {error.strerror}.") from error
    try:
        if roots.is_kernel_file_system(os.fstat(current).st_dev):
            raise ToolDenied("path_denied", "Nothing was read: the agent's root shows the kernel, not files.")
        _check(os.fstat(current), str(root), directory=True)
        for part in way.parts:
            current = _down(current, part, str(root), directory=True)
    except NotThere as error:
        os.close(current)
        raise ToolDenied("path_denied", f"The agent's file root cannot be opened: {error}.") from error
    except BaseException:
        os.close(current)
        raise
    return current


def _down(parent: int, name: str, path: str, *, directory: bool) -> int:
    """One step; the parent is closed where it succeeded."""
    found = _step(parent, name, path, directory=directory)
    os.close(parent)
    return found


def _step(parent: int, name: str, path: str, *, directory: bool) -> int:
    try:
        # Looked at before it is opened: opening a device or a pipe can already do something.
        _check(os.stat(name, dir_fd=parent, follow_symlinks=False), path, directory=directory)
        found = _open_below(parent, name)
    except FileNotFoundError:
        raise NotThere(f"There is no {path!r}") from None
    except OSError as error:
        other_mount = error.errno == errno.EXDEV
        raise _denied(path, "is on another mount" if other_mount else f"cannot be opened: {error.strerror}") from error
    try:
        # It may have been swapped since: what counts is what is open now.
        status = os.fstat(found)
        _check(status, path, directory=directory)
        if status.st_dev != os.fstat(parent).st_dev:
            raise _denied(path, "is on another mount")
    except BaseException:
        os.close(found)
        raise
    return found


def _open_below(parent: int, name: str) -> int:
    """Open one name of a directory. Where the kernel can, it refuses other mounts of the same device too."""
    how = (ctypes.c_uint64 * 3)(_READING, 0, _RESOLVE)
    call = getattr(LIBC, "syscall", None)
    if call is not None:
        found: int = call(_OPENAT2, parent, os.fsencode(name), ctypes.byref(how), ctypes.sizeof(how))
        code = ctypes.get_errno()
        if found >= 0:
            return found
        # An old kernel, or a container whose filter does not know the call.
        if code not in (errno.ENOSYS, errno.EPERM, errno.EINVAL):
            raise OSError(code, os.strerror(code))
    return os.open(name, _READING, dir_fd=parent)


#: The C library: Python has no name for openat2.
LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _check(found: os.stat_result, path: str, *, directory: bool) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise _denied(path, "goes through a symbolic link")
    if roots.belongs_to_site(found):
        raise _denied(path, "leads to the files of this site")
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
