"""The directories that file tools may read: below AGENTOPS_TOOL_ROOTS, without the files of the site itself."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from django.conf import settings

#: The usual mount points of kernel file systems.
KERNEL_DIRECTORIES = (Path("/proc"), Path("/sys"), Path("/dev"))
#: The types of kernel file systems, which may be mounted anywhere.
KERNEL_FILE_SYSTEMS = frozenset(
    {
        "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs", "fusectl",
        "mqueue", "nsfs", "proc", "pstore", "securityfs", "selinuxfs", "sysfs", "tracefs",
    }
)  # fmt: skip
MOUNTS = Path("/proc/self/mountinfo")
#: An escaped space, tab, newline or backslash in a path of that file.
_ESCAPED = re.compile(r"\\([0-7]{3})")
OFF = "file tools are disabled: AGENTOPS_TOOL_ROOTS is empty"


class RootRefused(ValueError):
    """The site does not allow an agent's root. `member` is the path of the invalid field of the definition."""

    def __init__(self, reason: str, member: str = "settings/root") -> None:
        super().__init__(reason)
        self.member = member


def check(file_tools: Sequence[str], agent_settings: Mapping[str, Any]) -> None:
    """Raise `RootRefused` if an agent has file tools but the site allows no roots, or if its root is not allowed."""
    root = agent_settings.get("root")
    if file_tools and not settings.AGENTOPS_TOOL_ROOTS:
        raise RootRefused(f"{', '.join(map(repr, file_tools))}: {OFF}", "tools")
    if file_tools or root is not None:
        locate(root)


def locate(root: object) -> tuple[Path, Path]:
    """Return the directory of AGENTOPS_TOOL_ROOTS that contains an agent's root, and the relative path of the root.

    Symbolic links are resolved in both. Raises `RootRefused`. The tree can change after the call, so callers must not
    follow links when they open the path.
    """
    if not settings.AGENTOPS_TOOL_ROOTS:
        raise RootRefused(OFF)
    if not isinstance(root, str) or not os.path.isabs(root) or "\0" in root:
        raise RootRefused("this agent has no file root: set settings.root to an absolute path")
    resolved = Path(os.path.realpath(root))
    if any(resolved.is_relative_to(directory) for directory in (*KERNEL_DIRECTORIES, *_own_directories())):
        raise RootRefused(f"the root {root[:200]!r} is a kernel directory or inside the home directory of the site")
    for allowed in map(os.path.realpath, settings.AGENTOPS_TOOL_ROOTS):
        if resolved.is_relative_to(allowed):
            return Path(allowed), resolved.relative_to(allowed)
    raise RootRefused(f"the root {root[:200]!r} is not below a directory listed in AGENTOPS_TOOL_ROOTS")


def belongs_to_site(status: os.stat_result) -> bool:
    """Return whether a file is AGENTOPS_HOME or the SQLite database. Compares inodes, so names do not matter."""
    return any(os.path.samestat(status, own) for own in _own_files())


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


def _own_directories() -> Iterator[Path]:
    yield Path(os.path.realpath(settings.AGENTOPS_HOME))


def _own_files() -> Iterator[os.stat_result]:
    paths = [str(settings.AGENTOPS_HOME)]
    database = settings.DATABASES["default"]
    if database["ENGINE"].endswith("sqlite3"):
        paths += [f"{database['NAME']}{suffix}" for suffix in ("", "-wal", "-shm", "-journal")]
    for path in paths:
        try:
            yield os.stat(path)
        except OSError:
            continue
