"""Starts a command in a sandbox. A standalone program that imports nothing of agentops: `launcher.py SPEC`.

SPEC is JSON; `confinement.py` describes it. There are three processes: this one waits outside, its child is the first
process of the new namespaces and sets them up, and the grandchild becomes the command. If either of the first two ends,
the kernel ends all processes in the namespaces.

Exit codes: the command's exit code, 128 + the number of the signal that ended it, or 126 if the sandbox cannot be set
up. The reason for 126 is written to the descriptor `report`.
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

#: The exit code if the sandbox cannot be set up.
NO_SANDBOX = 126
#: Numbers of system calls and their flags, from linux/unistd.h, linux/mount.h and linux/fcntl.h.
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442  # on every architecture
_AT_FDCWD, _EMPTY_PATH, _RECURSIVE, _CLONE, _CLOEXEC = -100, 0x1000, 0x8000, 1, os.O_CLOEXEC
_MOVE_EMPTY_PATH = 4
#: Attributes of mounts. The flags of mount(2) have the same values.
_READ_ONLY, _NO_SUID, _NO_DEV, _NO_EXEC = 1, 2, 4, 8
#: The attributes for each access in the spec's bind mounts.
_ATTRIBUTES = {
    "read": _READ_ONLY | _NO_SUID | _NO_DEV,
    "write": _NO_SUID | _NO_DEV,
    "file": _READ_ONLY | _NO_SUID | _NO_DEV | _NO_EXEC,
    "device": _NO_SUID | _NO_EXEC,
}
_FILE_SYSTEM = _NO_SUID | _NO_DEV | _NO_EXEC
_MS_REC_PRIVATE = 0x4000 | 0x40000
_MNT_DETACH = 2
#: Options of prctl(2).
_PDEATHSIG, _DUMPABLE, _SECCOMP, _NO_NEW_PRIVS = 1, 4, 22, 38
_SECCOMP_FILTER = 2
_CAPABILITY_VERSION = 0x20080522
#: SIOCSIFFLAGS and IFF_UP, to switch the loopback interface on.
_SET_INTERFACE_FLAGS, _UP = 0x8914, 1
_INET, _DATAGRAM = 2, 2
LIBC = ctypes.CDLL(None, use_errno=True)


class NotConfined(Exception):
    """This machine cannot confine the command, so the command is not run."""


def main(spec: dict[str, Any]) -> NoReturn:
    """Set up the sandbox and run the command. Raises `NotConfined` and `OSError`."""
    os.set_inheritable(spec["report"], False)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # if memory is short, the kernel kills the command first
    os.fchdir(spec["root_fd"])
    os.close(spec["root_fd"])
    _drop_root(spec["user"])
    _enter_namespaces(spec["namespaces"])
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
        os.read(alive, 1)  # nothing is ever written, so this only returns if the parent has died
        os._exit(NO_SANDBOX)
    _set_up_root(spec)
    _confine(bytes.fromhex(spec["filter"]))
    if child := os.fork():
        _exit_as(child)
    _execute(spec["argv"], spec["limits"])


def _drop_root(user: list[int] | None) -> None:
    """Become another user and group, if the worker is root. None: stay the same user."""
    if user is None:
        return
    os.setgroups([])
    os.setgid(user[1])
    os.setuid(user[0])
    LIBC.prctl(_DUMPABLE, 1, 0, 0, 0)  # otherwise the files of this process in /proc would belong to root


def _enter_namespaces(namespaces: int) -> None:
    """Enter new namespaces. The only user in them is the current one, so no process in the sandbox is root."""
    uid, gid = os.getuid(), os.getgid()
    _check(LIBC.unshare(namespaces), "the machine does not allow user namespaces")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    LIBC.sethostname(b"sandbox", 7)
    loopback = b"lo".ljust(16, b"\0") + _UP.to_bytes(2, sys.byteorder) + bytes(22)
    LIBC.ioctl(LIBC.socket(_INET, _DATAGRAM | _CLOEXEC, 0), _SET_INTERFACE_FLAGS, loopback)


def _end_with_parent() -> None:
    """Request that the kernel kills this process when its parent ends."""
    LIBC.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _set_up_root(spec: dict[str, Any]) -> None:
    """Create a root directory with the spec's mounts, enter it, and detach everything else."""
    base, directory = spec["base"], os.fsencode(spec["base"])
    _check(LIBC.mount(None, b"/", None, _MS_REC_PRIVATE, None), "mounts cannot be made private")
    # Copy the mounts first: the new root may cover their sources. The source "." is the agent's root.
    copies = [_copy(source, access) if kind == "bind" else -1 for kind, source, _, access in spec["mounts"]]
    _check(
        LIBC.mount(b"tmpfs", directory, b"tmpfs", _NO_SUID | _NO_DEV, b"size=1m,mode=755"), "tmpfs cannot be mounted"
    )
    # The parents of the agent's root become read-only: if it is below the scratch directory, the command can create
    # nothing in them.
    umask = os.umask(0o222)
    for (kind, source, target, access), copy in zip(spec["mounts"], copies, strict=True):
        _create_entry(base + target, kind, source, access, copy)
    os.umask(umask)
    _restrict(_AT_FDCWD, directory, 0, _READ_ONLY)
    os.chdir(base)
    _check(LIBC.pivot_root(b".", b"."), "the root directory cannot be changed")
    _check(LIBC.umount2(b".", _MNT_DETACH), "the old root directory cannot be detached")
    os.chdir(spec["directory"])


def _create_entry(path: str, kind: str, source: str, access_or_options: str, copy: int) -> None:
    """Create an entry of the new root directory, with its parent directories.

    `source`: the target of a link, the content of a file, or the path of the mount that was copied.
    `access_or_options`: the access of a bind mount, or the options of a file system.
    `copy`: the descriptor from `_copy`; -1 unless `kind` is "bind".
    """
    is_file = kind in ("link", "file") or access_or_options in ("file", "device")
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
            options = access_or_options.encode()
            code = LIBC.mount(kind.encode(), os.fsencode(path), kind.encode(), _FILE_SYSTEM, options)
            _check(code, f"{kind} cannot be mounted")


def _copy(source: str, access: str) -> int:
    """Return the descriptor of a copy of a mount, with the mounts below it, that is not attached to a path yet."""
    copy = LIBC.syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(source), _RECURSIVE | _CLONE | _CLOEXEC)
    _check(copy, f"{source} cannot be copied")
    _restrict(copy, b"", _EMPTY_PATH | _RECURSIVE, _ATTRIBUTES[access])
    return int(copy)


def _restrict(descriptor: int, path: bytes, flags: int, attributes: int) -> None:
    """Set attributes of a mount. The command cannot remove them, because it has no privileges in the namespaces."""
    # struct mount_attr of mount_setattr(2): attr_set, attr_clr, propagation, userns_fd.
    change = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    code = LIBC.syscall(_MOUNT_SETATTR, descriptor, path, flags, ctypes.byref(change), ctypes.sizeof(change))
    _check(code, "mounts cannot be restricted")


def _confine(program: bytes) -> None:
    """Drop all privileges, and filter the system calls of this process and its descendants with `program`."""
    # Otherwise the command, which runs as the same user, could write into the memory of this process.
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
    """Replace this process by the command, with its limits of resources."""
    for name, value in limits.items():
        resource.setrlimit(getattr(resource, name), (value, value))
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, the command must not
        signal.signal(ignored, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.execvpe(argv[0], argv, os.environ)  # noqa: S606 - the command is what was allowed


def _exit_as(child: int) -> NoReturn:
    """Wait for a child, and exit with its status. Orphaned processes that end before are reaped."""
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
