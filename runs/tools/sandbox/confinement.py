"""The files, resources and system calls of a command in the sandbox, as a specification for `launcher.py`.

The filter of system calls (seccomp) is a program for the kernel. It denies calls that reach outside the namespaces of a
command, or parts of the kernel that ordinary programs do not need. For the command, calls that are newer than the list
here do not exist.
"""

from __future__ import annotations

import errno
import os
import platform
import struct
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

#: Denied calls: their numbers on x86_64, and in the generic table of other architectures. None: the call does not
#: exist.
DENIED: dict[str, tuple[int, int | None]] = {
    # Namespaces and mounts.
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "statmount": (457, 457),
    "listmount": (458, 458),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    # Memory and descriptors of other processes.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    # Keyrings have no namespaces: the session keyring comes from the worker.
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # Files without a path.
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # Frequently attacked parts of the kernel. io_uring would also open sockets in spite of this filter.
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "fanotify_init": (300, 262),
    "modify_ldt": (154, None),
    "mbind": (237, 235),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450),
    "lookup_dcookie": (212, 18),
    # The machine: its clock, names, modules, log.
    "clock_settime": (227, 112),
    "settimeofday": (164, 170),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "syslog": (103, 116),
    "acct": (163, 89),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
    "nfsservctl": (180, 42),
    "uselib": (134, None),
    "ustat": (136, None),
    "sysfs": (139, None),
    "_sysctl": (156, None),
}
#: Numbers, in the same order, of calls that are denied for some arguments.
_CLONE, _CLONE3, _IOCTL, _SOCKET, _SOCKETPAIR = (56, 220), (435, 435), (16, 29), (41, 198), (53, 199)
#: The newest call that was considered for the list: removexattrat, of Linux 6.13.
NEWEST = 466
#: By `platform.machine()`: the kernel's number of the architecture, and the position of its numbers in `DENIED`.
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1), "riscv64": (0xC00000F3, 1)}
#: CLONE_NEWNS, …CGROUP, …UTS, …IPC, …USER, …PID, …NET.
NAMESPACES = 0x7E020000
#: Requests that put input into a terminal: TIOCSTI, TIOCLINUX, TIOCCONS.
_TERMINAL_REQUESTS = (0x5412, 0x541C, 0x541D)
#: Families of sockets.
_UNIX, _INET, _INET6 = 1, 2, 10
#: Instructions of the filter (BPF): load a word, jump if the test is true, return.
_LOAD, _EQUAL, _AT_LEAST, _HAS_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
#: The results of the filter: SECCOMP_RET_ALLOW, …_KILL_PROCESS, and …_ERRNO with the number of the error added.
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
#: Offsets in `struct seccomp_data`: the number, the architecture, and the lower half of the first argument.
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16


class NoFilter(Exception):
    """The system call numbers of this architecture are unknown."""


@cache
def filter_program(machine: str = "") -> bytes:
    """Return the filter as an array of `struct sock_filter`, by default for this machine. Raises `NoFilter`."""
    machine = machine or platform.machine()
    if machine not in _ARCHITECTURES:
        raise NoFilter(f"there is no filter of system calls for {machine!r}")
    architecture, column = _ARCHITECTURES[machine]
    denied = [number for numbers in DENIED.values() if (number := numbers[column]) is not None]
    refused, unknown, no_family = map(_error, (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT))
    return b"".join(
        [
            _load(_ARCHITECTURE),
            # Kill 32-bit processes, whose calls have other numbers. The check skips this if the architecture is right.
            _instruction(_EQUAL, architecture, if_true=1),
            _return(_KILL),
            _load(_NUMBER),
            _when(_AT_LEAST, NEWEST + 1, unknown),
            *(_when(_EQUAL, number, refused) for number in denied),
            # The flags of clone3 are in memory, which a filter cannot read. Without it, the C library uses clone.
            _when(_EQUAL, _CLONE3[column], unknown),
            _when(_EQUAL, _CLONE[column], _load_argument(0) + _when(_HAS_BITS, NAMESPACES, refused) + _ALLOWED),
            _when(_EQUAL, _IOCTL[column], _load_argument(1) + _if_any(_TERMINAL_REQUESTS, refused) + _ALLOWED),
            # Unix sockets are denied too: a process outside may listen on one below the root. Pairs are harmless.
            _when(_EQUAL, _SOCKET[column], _load_argument(0) + _if_any((_INET, _INET6), _ALLOWED) + no_family),
            _when(_EQUAL, _SOCKETPAIR[column], _load_argument(0) + _if_any((_UNIX,), _ALLOWED) + no_family),
            _ALLOWED,
        ]
    )


def _instruction(code: int, value: int, *, if_true: int = 0, if_false: int = 0) -> bytes:
    """Encode an instruction. `if_true` and `if_false` are numbers of instructions to skip."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _load(offset: int) -> bytes:
    return _instruction(_LOAD, offset)


def _load_argument(position: int) -> bytes:
    """Load the lower half of an argument. The kernel ignores the upper half of an int, so the filter must too."""
    return _load(_ARGUMENTS + 8 * position)


def _return(action: int) -> bytes:
    return _instruction(_RETURN, action)


def _error(code: int) -> bytes:
    return _return(_ERROR | code)


def _when(test: int, value: int, body: bytes) -> bytes:
    """Execute `body`, which ends with a return, if the loaded value passes the test. Otherwise skip it."""
    return _instruction(test, value, if_false=len(body) // 8) + body


def _if_any(values: tuple[int, ...], body: bytes) -> bytes:
    """Execute `body`, which ends with a return, if the loaded value is in `values`."""
    return b"".join(_when(_EQUAL, value, body) for value in values)


_ALLOWED = _return(_ALLOW)


#: Programs and libraries.
PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
#: Configuration without secrets.
CONFIGURATION = (
    "/etc/alternatives",
    "/etc/group",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
)
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
DEVICE_LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
#: Files that list the user's keys, also those from outside the sandbox.
HIDDEN = ("/proc/keys", "/proc/key-users")
#: The content of /etc/hosts.
HOSTS = "127.0.0.1 localhost\n::1 localhost\n"
#: The directory for temporary files, as the command sees it.
SCRATCH = "/tmp"  # noqa: S108 - a name inside the sandbox
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MIB = 1024 * 1024
LIMITS = {
    "RLIMIT_AS": 4096 * MIB,
    "RLIMIT_CORE": 0,
    "RLIMIT_FSIZE": 1024 * MIB,
    "RLIMIT_NOFILE": 512,
    "RLIMIT_NPROC": 128,
}
#: An entry of the new root directory: kind, source, path in the sandbox, and access.
#: "bind": source is the path of a mount to copy; access is "read", "write", "file" or "device".
#: "link" and "file": source is the target of the link, or the content of the file.
#: Other kinds are file systems, with their mount options in place of access.
Mount = tuple[str, str, str, str]


def specification(
    argv: Sequence[str], root_fd: int, *, scratch: str, user: tuple[int, int] | None, timeout_s: float, report: int
) -> dict[str, Any]:
    """Return the specification for a command in the directory with the descriptor `root_fd`. Raises `NoFilter`.

    `scratch`: the path of the directory that the command sees as SCRATCH. `user`: the user and group that the command
    runs as; None for those of the worker. `report`: the descriptor to which the launcher writes why it cannot set up
    the sandbox.
    """
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
        "filter": filter_program().hex(),
        "limits": LIMITS | {"RLIMIT_CPU": int(timeout_s) + 1},
        "user": user,
        "parent": os.getpid(),
        "report": report,
    }


def environment() -> dict[str, str]:
    """Return the environment of a command. The worker's environment is not passed on, because it contains secrets."""
    return {
        "PATH": PATH,
        "LANG": "C.UTF-8",
        "HOME": SCRATCH,
        "TMPDIR": SCRATCH,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "agent",
        "GIT_AUTHOR_EMAIL": "agent@localhost",
        "GIT_COMMITTER_NAME": "agent",
        "GIT_COMMITTER_EMAIL": "agent@localhost",
    }


@cache
def _system() -> list[Mount]:
    """Return the mounts that all commands have in common."""
    # /dev/null hides the file. It cannot be opened there, because a mount for a "file" has no devices.
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
