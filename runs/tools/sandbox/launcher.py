"""Starts a command in a sandbox. A standalone program that imports nothing of agentops: `launcher.py SPEC`.

SPEC is JSON; `confinement.py` describes it. There are three processes: this one waits outside, its child is the first
process of the new namespaces and sets them up, and the grandchild becomes the command. If either of the first two ends,
the kernel ends all processes in the namespaces.

Exit codes: the command's, or 128 + signal. If the sandbox cannot be set up, the reason is written to the descriptor
`report`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
from typing import Any, NoReturn

NO_SANDBOX = 126
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442  # on every architecture
_AT_FDCWD, _EMPTY_PATH, _RECURSIVE, _CLONE, _CLOEXEC = -100, 0x1000, 0x8000, 1, os.O_CLOEXEC
_MOVE_EMPTY_PATH = 4
_READ_ONLY, _NO_SUID, _NO_DEV, _NO_EXEC = 1, 2, 4, 8
_ATTRIBUTES = {
    "read": _READ_ONLY | _NO_SUID | _NO_DEV, "write": _NO_SUID | _NO_DEV,
    "file": _READ_ONLY | _NO_SUID | _NO_DEV | _NO_EXEC, "device": _NO_SUID | _NO_EXEC,
}  # fmt: skip
_FILE_SYSTEM = _NO_SUID | _NO_DEV | _NO_EXEC  # the flags of mount(2) have the same values
_MS_REC_PRIVATE = 0x4000 | 0x40000
_MNT_DETACH = 2
_PDEATHSIG, _DUMPABLE, _SECCOMP, _NO_NEW_PRIVS = 1, 4, 22, 38
_SECCOMP_FILTER = 2
_CAPABILITY_VERSION = 0x20080522
_SET_INTERFACE_FLAGS, _UP = 0x8914, 1
_INET, _DATAGRAM = 2, 2
LIBC = ctypes.CDLL(None, use_errno=True)


class NotConfined(Exception):
    """This machine cannot confine the command, so the command is not run."""


def main(spec: dict[str, Any]) -> NoReturn:
    os.set_inheritable(spec["report"], False)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # if memory is short, the kernel kills the command first
    os.fchdir(spec["root_fd"])
    os.close(spec["root_fd"])
    _become(spec["user"])
    _leave(spec["namespaces"])
    _end_with_parent()
    if os.getppid() != spec["parent"]:
        os._exit(NO_SANDBOX)  # the worker has ended
    alive, end_of_life = os.pipe()
    if child := os.fork():
        signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
        _exit_as(child)
    os.close(end_of_life)
    _end_with_parent()
    os.set_blocking(alive, False)
    with contextlib.suppress(BlockingIOError):
        os.read(alive, 1)  # no data is ever written: returns only if the parent has already died
        os._exit(NO_SANDBOX)
    _arrange(spec)
    _confine(bytes.fromhex(spec["filter"]))
    if child := os.fork():
        _exit_as(child)
    _execute(spec["argv"], spec["limits"])


def _become(user: list[int] | None) -> None:
    """Give up root for a user and group."""
    if user is None:
        return
    os.setgroups([])
    os.setgid(user[1])
    os.setuid(user[0])
    LIBC.prctl(_DUMPABLE, 1, 0, 0, 0)  # otherwise its files in /proc would belong to root


def _leave(namespaces: int) -> None:
    """Enter new namespaces. The user keeps their ID: no process in the sandbox is root, or another user."""
    uid, gid = os.getuid(), os.getgid()
    _check(LIBC.unshare(namespaces), "the machine does not allow user namespaces")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    LIBC.sethostname(b"sandbox", 7)
    loopback = b"lo".ljust(16, b"\0") + _UP.to_bytes(2, sys.byteorder) + bytes(22)
    LIBC.ioctl(LIBC.socket(_INET, _DATAGRAM | _CLOEXEC, 0), _SET_INTERFACE_FLAGS, loopback)


def _end_with_parent() -> None:
    LIBC.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _arrange(spec: dict[str, Any]) -> None:
    """Create a root directory from the spec's mounts, and detach everything else."""
    base, directory = spec["base"], os.fsencode(spec["base"])
    _check(LIBC.mount(None, b"/", None, _MS_REC_PRIVATE, None), "mounts cannot be made private")
    # Copied before the new root covers anything. The relative path "." is the directory of `root_fd`.
    copies = [_copy(source, use) if kind == "bind" else -1 for kind, source, _, use in spec["mounts"]]
    _check(
        LIBC.mount(b"tmpfs", directory, b"tmpfs", _NO_SUID | _NO_DEV, b"size=1m,mode=755"), "tmpfs cannot be mounted"
    )
    umask = os.umask(0o222)  # if the root is below the scratch directory, no files can be created in its parents
    for (kind, source, target, use), copy in zip(spec["mounts"], copies, strict=True):
        _place(base + target, kind, source, use, copy)
    os.umask(umask)
    _restrict(_AT_FDCWD, directory, 0, _READ_ONLY)
    os.chdir(base)
    _check(LIBC.pivot_root(b".", b"."), "the root directory cannot be changed")
    _check(LIBC.umount2(b".", _MNT_DETACH), "the old root directory cannot be detached")
    os.chdir(spec["directory"])


def _place(path: str, kind: str, source: str, use: str, copy: int) -> None:
    """Create an entry of the new root directory, with its parent directories."""
    is_file = kind in ("link", "file") or use in ("file", "device")
    os.makedirs(os.path.dirname(path) if is_file else path, exist_ok=True)
    match kind:
        case "link":
            os.symlink(source, path)
        case "file":
            with open(path, "w") as file:
                file.write(source)
        case "bind":
            if is_file and not os.path.exists(path):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL))
            code = LIBC.syscall(_MOVE_MOUNT, copy, b"", _AT_FDCWD, os.fsencode(path), _MOVE_EMPTY_PATH)
            _check(code, f"{source} cannot be mounted")
            os.close(copy)
        case _:
            code = LIBC.mount(kind.encode(), os.fsencode(path), kind.encode(), _FILE_SYSTEM, use.encode())
            _check(code, f"{kind} cannot be mounted")


def _copy(source: str, use: str) -> int:
    """Return an unattached copy of a mount, including mounts below it, as a descriptor."""
    copy = LIBC.syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(source), _RECURSIVE | _CLONE | _CLOEXEC)
    _check(copy, f"{source} cannot be copied")
    _restrict(copy, b"", _EMPTY_PATH | _RECURSIVE, _ATTRIBUTES[use])
    return int(copy)


def _restrict(descriptor: int, path: bytes, flags: int, attributes: int) -> None:
    """Set attributes of a mount. They cannot be removed in the sandbox."""
    change = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    code = LIBC.syscall(_MOUNT_SETATTR, descriptor, path, flags, ctypes.byref(change), ctypes.sizeof(change))
    _check(code, "mounts cannot be restricted")


def _confine(program: bytes) -> None:
    """Drop all privileges, and filter the system calls of this process and its descendants."""
    # The command runs as the same user, and could otherwise write into the memory of this process.
    LIBC.prctl(_DUMPABLE, 0, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    _check(LIBC.capset(ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)())), "privileges cannot be given up")
    _check(LIBC.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0), "privileges cannot be given up for good")

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]

    filter_program = Program(len(program) // 8, program)
    code = LIBC.prctl(_SECCOMP, _SECCOMP_FILTER, ctypes.byref(filter_program), 0, 0)
    _check(code, "the kernel filters no system calls")


def _execute(argv: list[str], limits: dict[str, int]) -> NoReturn:
    """Become the command."""
    for name, value in limits.items():
        resource.setrlimit(getattr(resource, name), (value, value))
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # set by Python
        signal.signal(ignored, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.execvpe(argv[0], argv, os.environ)  # noqa: S606 - the command is what was allowed


def _exit_as(child: int) -> NoReturn:
    """Wait for a child, and exit with its status. Also reaps orphaned processes that end before."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        ended, status = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _check(code: int, meaning: str) -> None:
    if code < 0:
        raise NotConfined(f"{meaning}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    spec = json.loads(sys.argv[1])
    try:
        main(spec)
    except (NotConfined, OSError) as error:
        os.write(spec["report"], str(error).encode())
        os._exit(NO_SANDBOX)
