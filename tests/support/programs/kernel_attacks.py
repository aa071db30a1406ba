"""Attacks by system calls (namespaces, mounts, terminals, keys), and excessive use of resources.

Runs these and those of sandbox_attacks.py, by default all, as a program inside the sandbox: `python3 -m … NAME…`.
Prints JSON: {name: "reached", "held" or the error}. Needs only the standard library.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import sys
from types import SimpleNamespace

from tests.support.programs.sandbox_attacks import ATTACKS, LIBC, attack, checked

NEW_USER, NEW_NS = 0x10000000, 0x20000
ADD_KEY, KEYCTL = (248, 250) if os.uname().machine == "x86_64" else (217, 219)


@attack
def namespace_of_a_user(facts: SimpleNamespace) -> bool:
    return checked(LIBC.unshare(NEW_USER))


@attack
def namespace_of_a_user_by_clone(facts: SimpleNamespace) -> bool:
    number = 56 if os.uname().machine == "x86_64" else 220
    child = LIBC.syscall(number, NEW_USER | signal.SIGCHLD, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    return checked(child)


@attack
def namespace_of_a_user_by_clone3(facts: SimpleNamespace) -> bool:
    arguments = (ctypes.c_uint64 * 8)(NEW_USER, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
    child = LIBC.syscall(435, arguments, ctypes.sizeof(arguments))
    if child == 0:
        os._exit(0)
    return checked(child)


@attack
def mount(facts: SimpleNamespace) -> bool:
    uid = os.getuid()
    checked(LIBC.unshare(NEW_USER | NEW_NS))
    with open("/proc/self/uid_map", "w") as file:
        file.write(f"0 {uid} 1")
    return checked(LIBC.mount(b"none", b"/proc", b"tmpfs", 0, None))


@attack
def removed_mount(facts: SimpleNamespace) -> bool:
    """Any answer except a refusal means that the kernel has looked up the mount."""
    return LIBC.umount2(b"/no/such/mount", 2) < 0 and ctypes.get_errno() == 2


@attack
def terminal_input(facts: SimpleNamespace) -> bool:
    """Try TIOCSTI and TIOCLINUX, also with bits that the kernel ignores. Only EPERM proves that a filter refused."""
    for request in (0x5412, 0x541C, 0x5412 | 1 << 32, 0x541C | 1 << 32):
        number = 16 if os.uname().machine == "x86_64" else 29
        LIBC.syscall(number, 0, ctypes.c_ulong(request), b"x")
        if ctypes.get_errno() != 1:
            return True
    return False


@attack
def key_of_the_session(facts: SimpleNamespace) -> bool:
    """Read the key that was added to the keyring of the worker's session."""
    key = LIBC.syscall(KEYCTL, 10, -3, b"user", facts.key.encode(), 0)
    checked(key)
    buffer = ctypes.create_string_buffer(32)
    checked(LIBC.syscall(KEYCTL, 11, key, buffer, 32))
    return buffer.value == b"outside"


@attack
def name_of_a_key(facts: SimpleNamespace) -> bool:
    with open("/proc/keys") as file:
        return facts.key in file.read()


@attack
def new_key(facts: SimpleNamespace) -> bool:
    return checked(LIBC.syscall(ADD_KEY, b"user", b"agentops-attack", b"x", 1, -3))


@attack
def denied_system_calls(facts: SimpleNamespace) -> bool:
    """Any answer except EPERM is a breach. Some calls report wrong arguments, or do not exist."""
    for number in facts.denied:
        LIBC.syscall(number, -1, -1, -1, -1, -1, -1)
        if ctypes.get_errno() != 1:
            return True
    return False


@attack
def newer_system_call(facts: SimpleNamespace) -> bool:
    """Make the first call that the filter does not know. Any answer except ENOSYS is a breach."""
    LIBC.syscall(facts.newest + 1, -1, -1, -1, -1, -1)
    return ctypes.get_errno() != 38


@attack
def system_call_of_32_bits(facts: SimpleNamespace) -> bool:
    """Enter the kernel like a 32-bit program, whose calls have other numbers."""
    memory = LIBC.mmap(None, mmap.PAGESIZE, 7, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    ctypes.memmove(memory, b"\xb8\x14\x00\x00\x00\xcd\x80\xc3", 8)  # mov eax, 20 (getpid); int 0x80; ret
    return ctypes.CFUNCTYPE(ctypes.c_int)(memory)() == os.getpid()


@attack
def system_call_of_x32(facts: SimpleNamespace) -> bool:
    """Set the extra bit of x32 call numbers. Any answer except ENOSYS is a breach, also "no such process"."""
    LIBC.syscall(101 | 0x40000000, 16, -1, 0, 0)
    return ctypes.get_errno() != 38


@attack
def many_processes(facts: SimpleNamespace) -> bool:
    """Start more processes than the limit, but few enough for a machine without a limit."""
    children = []
    try:
        for _ in range(facts.processes + 20):
            child = os.fork()
            if child == 0:
                signal.pause()
            children.append(child)
        return True
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


@attack
def much_memory(facts: SimpleNamespace) -> bool:
    return (
        LIBC.mmap(None, ctypes.c_size_t(facts.memory + 1), 1, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0) != 2**64 - 1
    )


@attack
def many_files(facts: SimpleNamespace) -> bool:
    with open("/dev/null") as file:
        for _ in range(facts.files + 1):
            os.dup(file.fileno())
    return True


def outcome(name: str, facts: SimpleNamespace) -> str:
    """Run an attack in a separate process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            answer = "reached" if ATTACKS[name](facts) else "held"
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    answer = os.read(reading, 4096).decode()
    os.close(reading)
    return answer or f"held: exit {status}"


if __name__ == "__main__":
    with open("facts.json") as file:
        known = SimpleNamespace(**json.load(file))
    print(json.dumps({name: outcome(name, known) for name in sys.argv[1:] or ATTACKS}))
