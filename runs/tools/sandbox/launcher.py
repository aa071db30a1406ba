"""Starts a command in a sandbox. A program of its own, which imports nothing of agentops: `launcher.py SPEC`.

SPEC is JSON: {"argv", "root_fd", "writable", "readable", "user", "limits"}. The command may change the root and the
writable directories, and read the readable ones. Landlock refuses everything else, and the command cannot undo that.
Where the machine allows it, the command also has no network, no other processes and an empty /run.

Exit codes: the command's, 128 + signal, or 126 if there is no sandbox; then standard error says why.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import stat
import sys
from typing import Any, NoReturn

NO_SANDBOX = 126
#: Landlock from this version on also covers the truncation of files. Linux 6.2 has it.
MIN_LANDLOCK = 3
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_FILE_READ = 1 << 0 | 1 << 2  # execute, read
_FILE_ALL = _FILE_READ | 1 << 1 | 1 << 14  # write, truncate
_READ = _FILE_READ | 1 << 3  # list directories
#: Without device files (bits 6 and 11). Bit 15, ioctl on devices, is handled and never allowed.
_WRITE = (1 << 15) - 1 & ~(1 << 6 | 1 << 11)
_SET_PDEATHSIG, _SET_DUMPABLE, _NO_NEW_PRIVS = 1, 4, 38
_NEW_NS, _NEW_IPC, _NEW_USER, _NEW_PID, _NEW_NET = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_MS_REC_PRIVATE = 0x4000 | 0x40000
LIBC = ctypes.CDLL(None, use_errno=True)


class NoSandbox(Exception):
    """This machine cannot confine the command, so it is not run."""


def main(spec: dict[str, Any]) -> NoReturn:
    os.fchdir(spec["root_fd"])
    rules = [(spec["root_fd"], _WRITE)]
    rules += [(os.open(path, os.O_PATH), _WRITE) for path in spec["writable"]]
    rules += [(os.open(path, os.O_PATH), _READ) for path in spec["readable"] if os.path.exists(path)]
    rules.append((os.open("/dev/null", os.O_PATH), _FILE_ALL))
    hides_run = not os.getcwd().startswith("/run/")
    _become(spec["user"])
    has_own_processes = _isolate(hides_run=hides_run)
    for name, value in spec["limits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    _confine(rules)
    for descriptor, _ in rules:
        os.close(descriptor)
    if has_own_processes:
        _be_parent()  # the first process of the namespace; the last one that leaves ends all others
        _be_parent()
    os.execvpe(spec["argv"][0], spec["argv"], os.environ)  # noqa: S606 - the command is what was allowed


def _become(user: list[int] | None) -> None:
    """Give up root for a user and group."""
    if user is None:
        return
    os.setgroups([])
    os.setgid(user[1])
    os.setuid(user[0])
    LIBC.prctl(_SET_DUMPABLE, 1, 0, 0, 0)  # or its own files in /proc would belong to root


def _isolate(*, hides_run: bool) -> bool:
    """Leave the network, the processes and /run of the machine, if it allows it."""
    uid, gid = os.getuid(), os.getgid()
    if LIBC.unshare(_NEW_USER | _NEW_NET | _NEW_PID | _NEW_IPC | _NEW_NS) != 0:
        return False
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with contextlib.suppress(OSError), open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    # Sockets in /run are reachable from every network namespace.
    LIBC.mount(None, b"/", None, _MS_REC_PRIVATE, None)
    if hides_run:
        LIBC.mount(b"none", b"/run", b"tmpfs", 0, b"size=4k")
    return True


def _confine(rules: list[tuple[int, int]]) -> None:
    """Restrict this process, and all that it starts, to the rules of Landlock."""
    version = LIBC.syscall(_CREATE_RULESET, None, 0, 1)
    if version < MIN_LANDLOCK:
        raise NoSandbox("the kernel has no Landlock, or is older than Linux 6.2")
    handled = (1 << 16) - 1 if version >= 5 else (1 << 15) - 1
    network = 0b11 if version >= 4 else 0  # TCP
    scoped = 0b11 if version >= 6 else 0  # abstract sockets, and signals to processes outside
    fields = [handled, network, scoped][: 3 if version >= 6 else 2 if version >= 4 else 1]
    attributes = (ctypes.c_uint64 * len(fields))(*fields)
    ruleset = LIBC.syscall(_CREATE_RULESET, ctypes.byref(attributes), ctypes.sizeof(attributes), 0)
    for descriptor, rights in rules:
        is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        allowed = rights if is_directory else rights & _FILE_ALL
        rule = allowed.to_bytes(8, sys.byteorder) + descriptor.to_bytes(4, sys.byteorder)
        if LIBC.syscall(_ADD_RULE, ruleset, 1, rule, 0) != 0:
            raise NoSandbox(f"Landlock refuses a rule: {os.strerror(ctypes.get_errno())}")
    if LIBC.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 or LIBC.syscall(_RESTRICT_SELF, ruleset, 0) != 0:
        raise NoSandbox(f"Landlock: {os.strerror(ctypes.get_errno())}")
    os.close(ruleset)


def _be_parent() -> None:
    """Continue in a child, and end as it ends. The child is killed if this process is."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        os._exit(code if code >= 0 else 128 - code)
    LIBC.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]))
    except (NoSandbox, OSError) as error:
        print(f"no sandbox: {error}", file=sys.stderr)
        sys.exit(NO_SANDBOX)
