"""Attempts to leave the sandbox: attacks on files, sockets and processes. Needs only the standard library.

Each attack is a function that returns whether it reached something. An error means that it failed. `facts.json`
describes the resources outside. kernel_attacks.py has the other attacks, and runs all.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace

Attack = Callable[[SimpleNamespace], bool]
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
ATTACKS: dict[str, Attack] = {}


def attack(function: Attack) -> Attack:
    """Register an attack by the name of its function."""
    ATTACKS[function.__name__] = function
    return function


def checked(code: int) -> bool:
    """Return True, or raise the error of a call of the C library."""
    if code < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return True


@attack
def metadata_read(facts: SimpleNamespace) -> bool:
    return os.stat(f"{facts.outside}/secret.txt").st_size > 0


@attack
def metadata_mode(facts: SimpleNamespace) -> bool:
    os.chmod(f"{facts.outside}/secret.txt", 0o777)
    return True


@attack
def metadata_times(facts: SimpleNamespace) -> bool:
    os.utime(f"{facts.outside}/secret.txt", (1, 1))
    return True


@attack
def metadata_owner(facts: SimpleNamespace) -> bool:
    os.chown(f"{facts.outside}/secret.txt", -1, os.getgid())
    return True


@attack
def metadata_attributes(facts: SimpleNamespace) -> bool:
    return os.listxattr(f"{facts.outside}/secret.txt") is not None


@attack
def content_outside(facts: SimpleNamespace) -> bool:
    return "outside" in open(f"{facts.outside}/secret.txt").read()


@attack
def directory_outside(facts: SimpleNamespace) -> bool:
    return "secret.txt" in os.listdir(facts.outside)


@attack
def content_changed_outside(facts: SimpleNamespace) -> bool:
    with open(f"{facts.outside}/db.sqlite3", "r+") as file:
        return file.write("outside") > 0


@attack
def content_truncated_outside(facts: SimpleNamespace) -> bool:
    os.truncate(f"{facts.outside}/db.sqlite3", 7)
    return True


@attack
def file_made_outside(facts: SimpleNamespace) -> bool:
    """Also try the parent of the root, which must exist inside the sandbox."""
    for path in ("../made", f"{facts.outside}/made"):
        with suppress(OSError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
            os.unlink(path)
            return True
    return False


@attack
def file_moved_outside(facts: SimpleNamespace) -> bool:
    os.rename("kept.txt", f"{facts.outside}/moved.txt")
    os.rename(f"{facts.outside}/moved.txt", "kept.txt")
    return True


@attack
def file_through_a_symbolic_link(facts: SimpleNamespace) -> bool:
    os.symlink(f"{facts.outside}/secret.txt", "link")
    return "outside" in open("link").read()


@attack
def hard_link_to_a_file_outside(facts: SimpleNamespace) -> bool:
    os.link(f"{facts.outside}/secret.txt", "hard")
    return True


@attack
def inherited_descriptor(facts: SimpleNamespace) -> bool:
    return any(
        "secret.txt" in os.readlink(f"/proc/self/fd/{name}")
        for name in os.listdir("/proc/self/fd")
        if os.path.islink(f"/proc/self/fd/{name}")
    )


@attack
def secrets_of_the_environment(facts: SimpleNamespace) -> bool:
    return "CANARY" in os.environ


@attack
def system_directories(facts: SimpleNamespace) -> bool:
    """Find directories and devices that no program needs."""
    allowed = {"bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "tmp", "usr"}
    allowed |= {"fd", "full", "null", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero"}
    allowed |= {
        "alternatives",
        "group",
        "hosts",
        "ld.so.cache",
        "localtime",
        "mime.types",
        "nsswitch.conf",
        "passwd",
        "ssl",
    }
    allowed |= {"certs", "openssl.cnf", os.getcwd().split("/")[1]}
    return not {name for path in ("/", "/dev", "/etc", "/etc/ssl") for name in os.listdir(path)} <= allowed


@attack
def changed_programs(facts: SimpleNamespace) -> bool:
    """Find a writable system directory, or a writable root directory."""
    for directory in ("/", "/dev", "/etc", "/usr", "/usr/lib", "/etc/ssl/certs"):
        with open("/proc/self/mountinfo") as file:
            mounts = {line.split()[4]: line.split()[5].split(",") for line in file}
        mount = max((each for each in mounts if f"{directory}/".startswith(f"{each.rstrip('/')}/")), key=len)
        if not {"ro", "nosuid", "nodev"} <= {*mounts[mount]}:
            return True
    return False


@attack
def device_of_the_machine(facts: SimpleNamespace) -> bool:
    """Read a device node below the root that the root user created earlier."""
    return os.path.exists("zero-device") and os.read(os.open("zero-device", os.O_RDONLY), 1) == b"\0"


def connected(address: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(address)
        return client.recv(7) == b"outside"


@attack
def socket_in_a_directory_outside(facts: SimpleNamespace) -> bool:
    return connected(f"{facts.outside}/socket")


@attack
def socket_of_a_home(facts: SimpleNamespace) -> bool:
    return connected(f"{facts.outside}/home/.agent/S.agent")


@attack
def socket_below_the_root(facts: SimpleNamespace) -> bool:
    return connected("server.socket")


@attack
def abstract_socket(facts: SimpleNamespace) -> bool:
    return connected(f"\0{facts.abstract}")


@attack
def tcp(facts: SimpleNamespace) -> bool:
    with socket.create_connection(("127.0.0.1", facts.tcp), 2) as client:
        return client.recv(7) == b"outside"


@attack
def udp(facts: SimpleNamespace) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(0.3)
        client.sendto(b"?", ("127.0.0.1", facts.udp))
        return client.recv(7) == b"outside"


@attack
def other_families(facts: SimpleNamespace) -> bool:
    """Open a socket of a family other than IPv4 and IPv6, or a pair of a family other than Unix."""
    for family in range(1, 46):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
            if family not in (socket.AF_INET, socket.AF_INET6):
                with suppress(OSError):
                    socket.socket(family, kind).close()
                    return True
    return False


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
