"""Attacks on other processes, and on the privileges of the attack itself."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from types import SimpleNamespace

from tests.support.sandbox.attacks import LIBC, attack, checked


def others() -> list[str]:
    """Return the /proc directories of all processes."""
    return [f"/proc/{name}" for name in os.listdir("/proc") if name.isdigit()]


@attack
def environment_of_another_process(facts: SimpleNamespace) -> bool:
    for process in others():
        with suppress(OSError), open(f"{process}/environ", "rb") as file:
            if facts.canary.encode() in file.read():
                return True
    return False


@attack
def root_directory_of_another_process(facts: SimpleNamespace) -> bool:
    for process in others():
        for link in ("root", "cwd"):
            with suppress(OSError):
                os.stat(f"{process}/{link}{facts.outside}/secret.txt")
                return True
    return False


@attack
def command_line_of_another_process(facts: SimpleNamespace) -> bool:
    return any(facts.name in open(f"{process}/cmdline").read() for process in others())


@attack
def signal_to_another_process(facts: SimpleNamespace) -> bool:
    os.kill(facts.pid, signal.SIGUSR1)
    return True


@attack
def pidfd_of_another_process(facts: SimpleNamespace) -> bool:
    return os.pidfd_open(facts.pid) >= 0


@attack
def priority_of_another_process(facts: SimpleNamespace) -> bool:
    return os.getpriority(os.PRIO_PROCESS, facts.pid) is not None


@attack
def tracing(facts: SimpleNamespace) -> bool:
    return checked(LIBC.ptrace(0, 0, None, None))


@attack
def memory_of_another_process(facts: SimpleNamespace) -> bool:
    """Read the memory of a child process, which is allowed unless something forbids it."""
    child = os.fork()
    if child == 0:
        signal.pause()
    buffer = ctypes.create_string_buffer(8)
    here = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 8)
    try:
        return checked(LIBC.process_vm_readv(child, here, 1, here, 1, 0))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@attack
def memory_of_the_first_process(facts: SimpleNamespace) -> bool:
    os.close(os.open("/proc/1/mem" if os.path.exists("/proc/1/mem") else "/dev/null", os.O_RDWR))
    return True


@attack
def privileges(facts: SimpleNamespace) -> bool:
    """Find capabilities, or a process here that may gain some or has no filter."""
    for process in ("/proc/1", "/proc/self"):
        with open(f"{process}/status") as file:
            lines = dict(line.rstrip("\n").split(":\t", 1) for line in file)
        if any(int(lines[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")):
            return True
        if (lines["NoNewPrivs"], lines["Seccomp"]) != ("1", "2") or "0" in lines["Uid"].split():
            return True
    return False


@attack
def program_with_the_rights_of_root(facts: SimpleNamespace) -> bool:
    return os.popen("./setuid -u 2>/dev/null").read() == "0\n"


@attack
def shared_memory(facts: SimpleNamespace) -> bool:
    return checked(LIBC.shmget(facts.shared_memory, 0, 0))


@attack
def name_of_the_machine(facts: SimpleNamespace) -> bool:
    return os.uname().nodename == facts.machine
