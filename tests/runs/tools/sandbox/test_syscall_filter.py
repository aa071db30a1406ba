"""The system call filter for each architecture, executed here like in the kernel."""

from __future__ import annotations

import ctypes
import errno
import struct

import pytest

from runs.tools.sandbox.confinement import DENIED, NEWEST, NoFilter, filter_program
from tests.support.machine import missing

#: Architecture → audit number, column of DENIED, and numbers of clone, ioctl, socket, socketpair and read.
MACHINES = {
    "x86_64": (0xC000003E, 0, (56, 16, 41, 53, 0)),
    "aarch64": (0xC00000B7, 1, (220, 29, 198, 199, 63)),
    "riscv64": (0xC00000F3, 1, (220, 29, 198, 199, 63)),
}
ALLOW, KILL = 0x7FFF0000, 0x80000000


def refused(code: int) -> int:
    return 0x00050000 | code


def answer(code: bytes, architecture: int, number: int, *arguments: int) -> int:
    """Execute a filter for one system call and return its action."""
    data = struct.pack("<IIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    instructions = list(struct.iter_unpack("<HBBI", code))
    position = value = 0
    while True:
        operation, if_true, if_false, operand = instructions[position]
        position += 1
        match operation:
            case 0x20:
                (value,) = struct.unpack_from("<I", data, operand)
            case 0x06:
                return operand
            case 0x15 | 0x35 | 0x45:
                passes = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[operation]
                position += if_true if passes else if_false


@pytest.mark.parametrize("machine", MACHINES)
def test_only_dangerous_system_calls_are_refused(machine: str) -> None:
    architecture, column, (clone, ioctl, socket, socketpair, read) = MACHINES[machine]
    code = filter_program(machine)

    def call(number: int, *arguments: int) -> int:
        return answer(code, architecture, number, *arguments)

    denied = {name: numbers[column] for name, numbers in DENIED.items() if numbers[column] is not None}
    assert {name for name, number in denied.items() if call(number) != refused(errno.EPERM)} == set()
    others = set(range(NEWEST + 1)) - {*denied.values(), 435, socket, socketpair}
    assert {number for number in others if call(number) != ALLOW} == set()
    for number in (435, NEWEST + 1, 10_000, 101 | 0x40000000, 2**32 - 1):
        assert call(number) == refused(errno.ENOSYS)
    assert answer(code, 0x40000003, read) == KILL
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert call(clone, flag | 17) == refused(errno.EPERM)
    assert call(clone, 0x3D0F00) == ALLOW  # a thread
    for request in (0x5412, 0x541C, 0x541D, 0x5412 | 1 << 32):
        assert call(ioctl, 0, request) == refused(errno.EPERM)
    assert call(ioctl, 0x5412, 0x5401) == ALLOW
    families = {family for family in range(64) if call(socket, family) == ALLOW}
    pairs = {family for family in range(64) if call(socketpair, family) == ALLOW}
    assert (families, pairs) == ({2, 10}, {1})
    assert call(socket, 1 | 1 << 32) == refused(errno.EAFNOSUPPORT)


def test_the_numbers_equal_the_numbers_of_libseccomp() -> None:
    try:
        library = ctypes.CDLL("libseccomp.so.2")
    except OSError:
        missing("there is no libseccomp")
    for name, numbers in DENIED.items():
        for architecture, column, _ in MACHINES.values():
            known = library.seccomp_syscall_resolve_name_arch(ctypes.c_uint32(architecture), name.encode())
            if known != -1:  # the library is older than the call
                assert numbers[column] == (known if known >= 0 else None), name


def test_an_unknown_architecture_has_no_filter() -> None:
    with pytest.raises(NoFilter, match="'sparc64'"):
        filter_program("sparc64")
