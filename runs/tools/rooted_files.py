"""Opens files below an agent's root directory, safe against symbolic links and concurrent changes of the tree.

Roots must be below AGENTOPS_TOOL_ROOTS. The files of the site itself are never opened.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.conf import settings

from runs.tools.base import ToolDenied

#: The usual mount points of kernel file systems.
KERNEL_DIRECTORIES = (Path("/proc"), Path("/sys"), Path("/dev"))
#: The types of kernel file systems, which may be mounted anywhere.
KERNEL_FILE_SYSTEMS = frozenset(
    {"binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs", "fusectl"}
    | {"mqueue", "nsfs", "proc", "pstore", "securityfs", "selinuxfs", "sysfs", "tracefs"}
)
#: The mounts that this process sees.
MOUNTS = Path("/proc/self/mountinfo")
#: An escaped space, tab, newline or backslash in a path of `MOUNTS`.
_ESCAPED = re.compile(r"\\([0-7]{3})")
OFF = "file tools are disabled: AGENTOPS_TOOL_ROOTS is empty"


class RootRefused(ValueError):
    """The site does not allow an agent's root. `member` is the path of the invalid field of the definition."""

    def __init__(self, reason: str, member: str = "settings/root") -> None:
        super().__init__(reason)
        self.member = member


def check_root(file_tools: Sequence[str], agent_settings: Mapping[str, Any]) -> None:
    """Check the root of an agent that has `file_tools`. Raises `RootRefused` if the site does not allow it."""
    root = agent_settings.get("root")
    if file_tools and not settings.AGENTOPS_TOOL_ROOTS:
        raise RootRefused(f"{', '.join(map(repr, file_tools))}: {OFF}", "tools")
    if file_tools or root is not None:
        locate_root(root)


def locate_root(root: object) -> tuple[Path, Path]:
    """Return the directory of AGENTOPS_TOOL_ROOTS that contains an agent's root, and the root relative to it.

    Symbolic links are resolved in both. Raises `RootRefused`. The tree can change after the call, so callers must not
    follow links when they open the path.
    """
    if not settings.AGENTOPS_TOOL_ROOTS:
        raise RootRefused(OFF)
    if not isinstance(root, str) or not os.path.isabs(root) or "\0" in root:
        raise RootRefused("this agent has no file root: set settings.root to an absolute path")
    resolved = Path(os.path.realpath(root))
    home = Path(os.path.realpath(settings.AGENTOPS_HOME))
    if any(resolved.is_relative_to(directory) for directory in (*KERNEL_DIRECTORIES, home)):
        raise RootRefused(f"the root {root[:200]!r} is a kernel directory or inside the home directory of the site")
    for allowed in map(os.path.realpath, settings.AGENTOPS_TOOL_ROOTS):
        if resolved.is_relative_to(allowed):
            return Path(allowed), resolved.relative_to(allowed)
    raise RootRefused(f"the root {root[:200]!r} is not below a directory listed in AGENTOPS_TOOL_ROOTS")


def belongs_to_site(status: os.stat_result) -> bool:
    """Return whether a file is AGENTOPS_HOME or the SQLite database, under any name: inodes are compared."""
    return any(os.path.samestat(status, own) for own in _site_files())


def contains_site(root: object) -> bool:
    """Return whether the home directory or the database of the site is below an agent's root."""
    resolved = os.path.realpath(str(root))
    paths = [str(settings.AGENTOPS_HOME)]
    if settings.DATABASES["default"]["ENGINE"].endswith("sqlite3"):
        paths.append(str(settings.DATABASES["default"]["NAME"]))
    return any(Path(os.path.realpath(path)).is_relative_to(resolved) for path in paths if not path.startswith("file:"))


def is_kernel_file_system(device: int) -> bool:
    """Return whether a kernel file system such as proc or sysfs is mounted from the device."""
    number = f"{os.major(device)}:{os.minor(device)}"
    return any(mounted == number for mounted, _ in _kernel_mounts())


def contains_kernel_mount(root: object) -> bool:
    """Return whether a kernel file system is mounted below an agent's root."""
    resolved = Path(os.path.realpath(str(root)))
    return any(Path(path).is_relative_to(resolved) for _, path in _kernel_mounts())


def _kernel_mounts() -> Iterator[tuple[str, str]]:
    """Yield the device, as "MAJOR:MINOR", and the path of each mounted kernel file system."""
    try:
        lines = MOUNTS.read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        mount, _, kind = line.partition(" - ")
        fields = mount.split(" ")
        if kind.split(" ")[0] in KERNEL_FILE_SYSTEMS and len(fields) > 4:
            yield fields[2], _ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[4])


def _site_files() -> Iterator[os.stat_result]:
    """Yield the status of AGENTOPS_HOME and of the files of the SQLite database, as far as they exist."""
    paths = [str(settings.AGENTOPS_HOME)]
    database = settings.DATABASES["default"]
    if database["ENGINE"].endswith("sqlite3"):
        paths += [f"{database['NAME']}{suffix}" for suffix in ("", "-wal", "-shm", "-journal")]
    for path in paths:
        try:
            yield os.stat(path)
        except OSError:
            continue


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
    """Return the components of a relative path. Raises `ToolDenied` for paths that lead out of the root or into `.git`.

    Opening most such paths would fail anyway. The denial records the attempt.
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

    Each component is opened relative to the descriptor of its parent, without following links or crossing mounts. So a
    directory that is replaced by a link does not lead outside. Raises `ToolDenied` and `PathNotFound`.
    """
    parts = parts_of(path)
    current = _open_root(root)
    try:
        for position, part in enumerate(parts):
            is_last = position == len(parts) - 1
            current = _descend(current, part, path, directory=directory or not is_last)
        if not parts and not directory:
            raise PathNotFound(f"{path!r} is a directory")
        yield current
    finally:
        os.close(current)


def _open_root(root: object) -> int:
    """Open the agent's root, component by component from the directory in AGENTOPS_TOOL_ROOTS. Raises `ToolDenied`."""
    try:
        allowed, relative = locate_root(root)
        current = os.open(allowed, _DIRECTORY | os.O_NOFOLLOW)
    except RootRefused as error:
        raise ToolDenied("path_denied", f"Nothing was read: {error}.") from error
    except OSError as error:
        raise ToolDenied("path_denied", f"The agent's file root cannot be opened: {error.strerror}.") from error
    try:
        if is_kernel_file_system(os.fstat(current).st_dev):
            raise ToolDenied("path_denied", "Nothing was read: the agent's root is on a kernel file system.")
        _check(os.fstat(current), str(root), directory=True)
        for part in relative.parts:
            current = _descend(current, part, str(root), directory=True)
    except PathNotFound as error:
        os.close(current)
        raise ToolDenied("path_denied", f"The agent's file root cannot be opened: {error}.") from error
    except BaseException:
        os.close(current)
        raise
    return current


def _descend(parent: int, name: str, path: str, *, directory: bool) -> int:
    """Open an entry of a directory, and close the directory. If this fails, the directory stays open.

    `path` is named in errors. Raises `ToolDenied` and `PathNotFound`.
    """
    try:
        # Check before opening, because opening a device or a pipe can have side effects.
        _check(os.stat(name, dir_fd=parent, follow_symlinks=False), path, directory=directory)
        descriptor = _open_below(parent, name)
    except FileNotFoundError:
        raise PathNotFound(f"There is no {path!r}") from None
    except OSError as error:
        other_mount = error.errno == errno.EXDEV
        raise _denial(path, "is on another mount" if other_mount else f"cannot be opened: {error.strerror}") from error
    try:
        # Check again, because the entry may have been replaced after the first check.
        status = os.fstat(descriptor)
        _check(status, path, directory=directory)
        if status.st_dev != os.fstat(parent).st_dev:
            raise _denial(path, "is on another mount")
    except BaseException:
        os.close(descriptor)
        raise
    os.close(parent)
    return descriptor


def _open_below(parent: int, name: str) -> int:
    """Open an entry of a directory, with openat2 if possible: it also rejects other mounts of the same device."""
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


#: The C library, for calls that Python has no functions for.
LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _check(status: os.stat_result, path: str, *, directory: bool) -> None:
    """Check the type of a file, and that it is not the site's. Raises `ToolDenied` and `PathNotFound`."""
    if stat.S_ISLNK(status.st_mode):
        raise _denial(path, "contains a symbolic link")
    if belongs_to_site(status):
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
