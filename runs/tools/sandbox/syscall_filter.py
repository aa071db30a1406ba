"""The system call filter (seccomp) of the sandbox, as a program for the kernel.

It denies calls that reach outside the namespaces of a command, or parts of the kernel that ordinary programs do not
need. Calls that are newer than this list do not exist in the sandbox.
"""

from __future__ import annotations

import errno
import platform
import struct

#: Name → number on x86_64, and on architectures with the generic table. None: the architecture lacks the call.
DENIED: dict[str, tuple[int, int | None]] = {
    # Namespaces and mounts.
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "statmount": (457, 457), "listmount": (458, 458), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "swapon": (167, 224), "swapoff": (168, 225),
    # Memory and descriptors of other processes.
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440),
    # Keyrings have no namespaces: the session keyring comes from the worker.
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # Files without a path.
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    # Frequently attacked parts of the kernel. io_uring would also open sockets in spite of this filter.
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "fanotify_init": (300, 262),
    "modify_ldt": (154, None), "mbind": (237, 235), "migrate_pages": (256, 238), "move_pages": (279, 239),
    "set_mempolicy": (238, 237), "set_mempolicy_home_node": (450, 450), "lookup_dcookie": (212, 18),
    # The machine: its clock, names, modules, log.
    "clock_settime": (227, 112), "settimeofday": (164, 170), "adjtimex": (159, 171), "clock_adjtime": (305, 266),
    "sethostname": (170, 161), "setdomainname": (171, 162), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142),
    "syslog": (103, 116), "acct": (163, 89), "vhangup": (153, 58), "iopl": (172, None), "ioperm": (173, None),
    "nfsservctl": (180, 42), "uselib": (134, None), "ustat": (136, None), "sysfs": (139, None), "_sysctl": (156, None),
}  # fmt: skip
#: Calls that are denied for some arguments.
_CLONE, _CLONE3, _IOCTL, _SOCKET, _SOCKETPAIR = (56, 220), (435, 435), (16, 29), (41, 198), (53, 199)
#: The newest call known to this list: removexattrat, of Linux 6.13.
NEWEST = 466
#: platform.machine() → the kernel's number of the architecture, and the column of the numbers.
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1), "riscv64": (0xC00000F3, 1)}
#: CLONE_NEWNS, …CGROUP, …UTS, …IPC, …USER, …PID, …NET.
_NEW_NAMESPACES = 0x7E020000
#: Requests that put input into a terminal: TIOCSTI, TIOCLINUX, TIOCCONS.
_TERMINAL_REQUESTS = (0x5412, 0x541C, 0x541D)
_UNIX, _INET, _INET6 = 1, 2, 10
_LOAD, _EQUAL, _AT_LEAST, _HAS_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
#: Offsets in `struct seccomp_data`: the number, the architecture, and the lower half of the first argument.
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16


class NoFilter(Exception):
    """The system call numbers of this architecture are unknown."""


def program(machine: str = "") -> bytes:
    """Return the filter as an array of `struct sock_filter`, for this machine if none is named. Raises `NoFilter`."""
    machine = machine or platform.machine()
    if machine not in _ARCHITECTURES:
        raise NoFilter(f"there is no filter of system calls for {machine!r}")
    architecture, column = _ARCHITECTURES[machine]
    denied = [number for numbers in DENIED.values() if (number := numbers[column]) is not None]
    refused, unknown, no_family = map(_error, (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT))
    return b"".join(
        [
            _load(_ARCHITECTURE),
            # 32-bit calls have other numbers.
            _instruction(_EQUAL, architecture, if_true=1),
            _return(_KILL),
            _load(_NUMBER),
            _when(_AT_LEAST, NEWEST + 1, unknown),
            *(_when(_EQUAL, number, refused) for number in denied),
            # The flags of clone3 are in memory, which a filter cannot read. The C library then uses clone.
            _when(_EQUAL, _CLONE3[column], unknown),
            _when(_EQUAL, _CLONE[column], _load_argument(0) + _when(_HAS_BITS, _NEW_NAMESPACES, refused) + _ALLOWED),
            _when(_EQUAL, _IOCTL[column], _load_argument(1) + _each(_TERMINAL_REQUESTS, refused) + _ALLOWED),
            # Deny Unix sockets too: a process outside may listen on one below the root. Pairs are already connected.
            _when(_EQUAL, _SOCKET[column], _load_argument(0) + _each((_INET, _INET6), _ALLOWED) + no_family),
            _when(_EQUAL, _SOCKETPAIR[column], _load_argument(0) + _each((_UNIX,), _ALLOWED) + no_family),
            _ALLOWED,
        ]
    )


def _instruction(code: int, value: int, *, if_true: int = 0, if_false: int = 0) -> bytes:
    """Encode an instruction. `if_true` and `if_false` are numbers of instructions to skip."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _load(offset: int) -> bytes:
    return _instruction(_LOAD, offset)


def _load_argument(position: int) -> bytes:
    """Load the lower half of an argument.

    The kernel only uses this half of an int, so the other half must not matter.
    """
    return _load(_ARGUMENTS + 8 * position)


def _return(action: int) -> bytes:
    return _instruction(_RETURN, action)


def _error(code: int) -> bytes:
    return _return(_ERROR | code)


def _when(test: int, value: int, body: bytes) -> bytes:
    """Execute `body`, which ends with a return, if the loaded value passes the test; skip it otherwise."""
    return _instruction(test, value, if_false=len(body) // 8) + body


def _each(values: tuple[int, ...], body: bytes) -> bytes:
    return b"".join(_when(_EQUAL, value, body) for value in values)


_ALLOWED = _return(_ALLOW)
