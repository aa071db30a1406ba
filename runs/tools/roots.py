"""Which directories the file tools may read: below AGENTOPS_TOOL_ROOTS, and never what the site keeps for itself."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from django.conf import settings

#: Where the kernel shows processes, devices and itself.
KERNEL_DIRECTORIES = (Path("/proc"), Path("/sys"), Path("/dev"))
#: The same, by file system: they may be mounted anywhere.
KERNEL_FILE_SYSTEMS = frozenset(
    {
        "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs", "fusectl",
        "mqueue", "nsfs", "proc", "pstore", "securityfs", "selinuxfs", "sysfs", "tracefs",
    }
)  # fmt: skip
MOUNTS = Path("/proc/self/mountinfo")
OFF = "file tools are off on this site: AGENTOPS_TOOL_ROOTS names no directory"


class RootRefused(ValueError):
    """An agent's root cannot be read on this site. `member` is the part of the definition at fault."""

    def __init__(self, reason: str, member: str = "settings") -> None:
        super().__init__(reason)
        self.member = member


def check(file_tools: Sequence[str], agent_settings: Mapping[str, Any]) -> None:
    """Refuse an agent whose file tools could read nothing here, or whose root is not allowed."""
    root = agent_settings.get("root")
    if file_tools and not settings.AGENTOPS_TOOL_ROOTS:
        raise RootRefused(f"{', '.join(map(repr, file_tools))}: {OFF}", "tools")
    if file_tools or root is not None:
        locate(root)


def locate(root: object) -> tuple[Path, Path]:
    """The allowed directory that holds an agent's root, and the way from there, both without symbolic links.

    Raises `RootRefused`. The answer holds for the moment only: whoever opens the path follows no link on the way.
    """
    if not settings.AGENTOPS_TOOL_ROOTS:
        raise RootRefused(OFF)
    if not isinstance(root, str) or not os.path.isabs(root) or "\0" in root:
        raise RootRefused("this agent has no file root: set 'root' in its settings to an absolute path")
    wanted = Path(os.path.realpath(root))
    if any(wanted.is_relative_to(place) for place in (*KERNEL_DIRECTORIES, *_own_directories())):
        raise RootRefused(f"the root {root[:200]!r} is one that agents never read")
    for allowed in map(os.path.realpath, settings.AGENTOPS_TOOL_ROOTS):
        if wanted.is_relative_to(allowed):
            return Path(allowed), wanted.relative_to(allowed)
    raise RootRefused(f"the root {root[:200]!r} is not below a directory that AGENTOPS_TOOL_ROOTS names")


def belongs_to_site(found: os.stat_result) -> bool:
    """Whether this is the home of the site or its database, by whatever name or mount it was reached."""
    return any(os.path.samestat(found, own) for own in _own_files())


def is_kernel_file_system(device: int) -> bool:
    """Whether the device holds no files but what the kernel shows as such."""
    try:
        lines = MOUNTS.read_text(errors="replace").splitlines()
    except OSError:
        return False
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:
        mount, _, kind = line.partition(" - ")
        if mount.split(" ")[2:3] == [number] and kind.split(" ")[0] in KERNEL_FILE_SYSTEMS:
            return True
    return False


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
