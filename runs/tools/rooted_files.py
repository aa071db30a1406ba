"""Opens files below a root directory, safe against symbolic links and concurrent changes of the tree."""

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
#: The number of openat2 (Linux 5.6) on every architecture. Python has no function for it.
_OPENAT2 = 437
#: RESOLVE_NO_XDEV, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS and RESOLVE_BENEATH.
_RESOLVE = 0x01 | 0x02 | 0x04 | 0x08


class PathNotFound(Exception):
    """An allowed path does not exist, or is a file instead of a directory or vice versa.

    The message is sent to the model.
    """


def parts_of(path: str) -> list[str]:
    """Return the components of a relative path. Raises `ToolDenied` for paths that point outside the root or to `.git`.

    Opening such a path would fail too in most cases; a denial records the attempt.
    """
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise _denial(path, "is not valid text") from None
    if size > MAX_PATH_BYTES:
        raise _denial(path, f"is longer than {MAX_PATH_BYTES} bytes")
    if "\0" in path or "\\" in path:
        raise _denial(path, "contains a NUL or a backslash")
    if path.startswith(("/", "~")) or _DRIVE.match(path):
        raise _denial(path, "is not relative to the root")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise _denial(path, "contains '..'")
    if any(part.lower() == ".git" for part in parts):
        # Hooks are programs, and the URLs of remotes can contain credentials.
        raise _denial(path, "is inside a .git directory")
    return parts


@contextmanager
def open_below_root(root: object, path: str, *, directory: bool) -> Iterator[int]:
    """Open a file or directory below the agent's root and yield its descriptor.

    Each component is opened relative to the descriptor of its parent, without following links or crossing mounts.
    Replacing a directory by a link in between can therefore not lead outside. Raises `ToolDenied` and `PathNotFound`.
    """
    parts = parts_of(path)
    current = _open_root(root)
    try:
        for position, part in enumerate(parts):
            last = position == len(parts) - 1
            current = _down(current, part, path, directory=directory or not last)
        if not parts and not directory:
            raise PathNotFound(f"{path!r} is a directory")
        yield current
    finally:
        os.close(current)


def _open_root(root: object) -> int:
    """Open the agent's root, component by component from the directory in AGENTOPS_TOOL_ROOTS."""
    try:
        allowed, relative = roots.locate(root)
        current = os.open(allowed, _DIRECTORY | os.O_NOFOLLOW)
    except roots.RootRefused as error:
        raise ToolDenied("path_denied", f"Nothing was read: {error}.") from error
    except OSError as error:
        raise ToolDenied("path_denied", f"The agent's file root cannot be opened: {error.strerror}.") from error
    try:
        if roots.is_kernel_file_system(os.fstat(current).st_dev):
            raise ToolDenied("path_denied", "Nothing was read: the agent's root is on a kernel file system.")
        _check(os.fstat(current), str(root), directory=True)
        for part in relative.parts:
            current = _down(current, part, str(root), directory=True)
    except PathNotFound as error:
        os.close(current)
        raise ToolDenied("path_denied", f"The agent's file root cannot be opened: {error}.") from error
    except BaseException:
        os.close(current)
        raise
    return current


def _down(parent: int, name: str, path: str, *, directory: bool) -> int:
    """Open one component and close its parent. If it fails, the parent stays open."""
    descriptor = _step(parent, name, path, directory=directory)
    os.close(parent)
    return descriptor


def _step(parent: int, name: str, path: str, *, directory: bool) -> int:
    try:
        # Checked before it is opened, because opening a device or a pipe can have side effects.
        _check(os.stat(name, dir_fd=parent, follow_symlinks=False), path, directory=directory)
        descriptor = _open_below(parent, name)
    except FileNotFoundError:
        raise PathNotFound(f"There is no {path!r}") from None
    except OSError as error:
        other_mount = error.errno == errno.EXDEV
        raise _denial(path, "is on another mount" if other_mount else f"cannot be opened: {error.strerror}") from error
    try:
        # Checked again, because it may have been replaced in between.
        status = os.fstat(descriptor)
        _check(status, path, directory=directory)
        if status.st_dev != os.fstat(parent).st_dev:
            raise _denial(path, "is on another mount")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _open_below(parent: int, name: str) -> int:
    """Open an entry of a directory. With openat2 the kernel rejects other mounts of the same device too."""
    how = (ctypes.c_uint64 * 3)(_READING, 0, _RESOLVE)
    call = getattr(LIBC, "syscall", None)
    if call is not None:
        descriptor: int = call(_OPENAT2, parent, os.fsencode(name), ctypes.byref(how), ctypes.sizeof(how))
        code = ctypes.get_errno()
        if descriptor >= 0:
            return descriptor
        # An old kernel, or a container whose seccomp filter rejects the call.
        if code not in (errno.ENOSYS, errno.EPERM, errno.EINVAL):
            raise OSError(code, os.strerror(code))
    return os.open(name, _READING, dir_fd=parent)


#: The C library: Python has no name for openat2.
LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _check(status: os.stat_result, path: str, *, directory: bool) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise _denial(path, "contains a symbolic link")
    if roots.belongs_to_site(status):
        raise _denial(path, "points to the files of this site")
    if stat.S_ISDIR(status.st_mode):
        if not directory:
            raise PathNotFound(f"{path!r} is a directory")
    elif not stat.S_ISREG(status.st_mode):
        raise _denial(path, "is not a regular file")
    elif directory:
        raise PathNotFound(f"{path!r} is not a directory")
    elif status.st_nlink > 1:
        # The same file may have another name outside the root.
        raise _denial(path, "has more than one hard link")


def _denial(path: str, reason: str) -> ToolDenied:
    shortened = path if len(path) <= 200 else path[:200] + "…"
    return ToolDenied("path_denied", f"The path {shortened!r} {reason}.")
