"""The files, resources and system calls of a command in the sandbox, as a specification for `launcher.py`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from runs.tools.sandbox import syscall_filter

#: CLONE_NEWNS, …CGROUP, …UTS, …IPC, …USER, …PID, …NET.
NAMESPACES = 0x7E020000
#: Programs and libraries.
PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
#: Configuration without secrets.
CONFIGURATION = (
    "/etc/alternatives", "/etc/group", "/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types", "/etc/nsswitch.conf",
    "/etc/passwd", "/etc/ssl/certs", "/etc/ssl/openssl.cnf",
)  # fmt: skip
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
DEVICE_LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
#: These files list the user's keys, including keys from outside the sandbox.
HIDDEN = ("/proc/keys", "/proc/key-users")
HOSTS = "127.0.0.1 localhost\n::1 localhost\n"
#: The directory for temporary files, as the command sees it.
SCRATCH = "/tmp"  # noqa: S108 - a name inside the sandbox
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MIB = 1024 * 1024
LIMITS = {
    "RLIMIT_AS": 4096 * MIB, "RLIMIT_CORE": 0, "RLIMIT_FSIZE": 1024 * MIB, "RLIMIT_NOFILE": 512, "RLIMIT_NPROC": 128,
}  # fmt: skip
#: kind ("bind", "link", "file" or a file system), its source or content, the path in the sandbox, and for "bind" the
#: use ("read", "write", "file" or "device"), for a file system its options.
Mount = tuple[str, str, str, str]


def specification(
    argv: Sequence[str], root_fd: int, *, scratch: str, user: tuple[int, int] | None, timeout_s: float, report: int
) -> dict[str, Any]:
    """Return the specification for a command in the directory `root_fd`. Raises `NoFilter`."""
    directory = os.readlink(f"/proc/self/fd/{root_fd}")
    return {
        "argv": list(argv),
        "root_fd": root_fd,
        "directory": directory,
        # The mount point of the new root directory. The command sees it as SCRATCH.
        "base": scratch,
        # The order matters: the agent's root may be below any of the other mounts.
        "mounts": [*_system(), ("bind", scratch, SCRATCH, "write"), ("bind", ".", directory, "write")],
        "namespaces": NAMESPACES,
        "filter": system_filter(),
        "limits": LIMITS | {"RLIMIT_CPU": int(timeout_s) + 1},
        "user": user,
        "parent": os.getpid(),
        "report": report,
    }


def environment() -> dict[str, str]:
    """Return the environment of a command. The worker's environment is not passed on, because it contains secrets."""
    return {
        "PATH": PATH, "LANG": "C.UTF-8", "HOME": SCRATCH, "TMPDIR": SCRATCH, "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "agent", "GIT_AUTHOR_EMAIL": "agent@localhost",
        "GIT_COMMITTER_NAME": "agent", "GIT_COMMITTER_EMAIL": "agent@localhost",
    }  # fmt: skip


@cache
def system_filter() -> str:
    """Return the filter of system calls for this machine, in hexadecimal."""
    return syscall_filter.program().hex()


@cache
def _system() -> list[Mount]:
    # /dev/null hides the file: devices on this mount cannot be opened.
    hidden = [("bind", "/dev/null", path, "file") for path in HIDDEN if os.path.exists(path)]
    return [*_readable(), *_devices(), ("proc", "", "/proc", ""), *hidden, ("file", HOSTS, "/etc/hosts", "")]


def _readable() -> Iterator[Mount]:
    """Yield the mounts of programs and configuration. Links stay links, such as /bin to usr/bin."""
    for path in (*PROGRAMS, *CONFIGURATION):
        if os.path.islink(path):
            yield "link", os.readlink(path), path, ""
        elif os.path.isdir(path):
            yield "bind", path, path, "read"
        elif os.path.isfile(path):
            yield "bind", path, path, "file"


def _devices() -> Iterator[Mount]:
    for name in DEVICES:
        if os.path.exists(path := f"/dev/{name}"):
            yield "bind", path, path, "device"
    for name, target in DEVICE_LINKS.items():
        yield "link", target, f"/dev/{name}", ""
    yield "tmpfs", "", "/dev/shm", "size=64m,mode=1777"  # noqa: S108 - a name inside the sandbox
