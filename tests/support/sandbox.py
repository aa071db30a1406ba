"""A machine around an agent's root: files, sockets and processes that commands must not reach."""

from __future__ import annotations

import ctypes
import json
import os
import re
import secrets
import selectors
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runs.tools.base import ToolResult
from runs.tools.sandbox import confinement
from tests.support.programs import kernel_attacks, sandbox_attacks

Sh = Callable[..., ToolResult]
#: A user ID that no other process on the machine has. If the tests run as root, commands run as this owner of the root.
OWNER = 54_321
IS_ROOT = os.geteuid() == 0
AS_OWNER: dict[str, Any] = {"user": OWNER, "group": OWNER, "extra_groups": []} if IS_ROOT else {}
#: The column of this machine's system call numbers.
COLUMN = 0 if os.uname().machine == "x86_64" else 1
IPC_CREAT, IPC_RMID = 0o1000, 0
LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Outside:
    """The resources outside the sandbox. The attacks read their description in `facts.json`."""

    place: Path
    root: Path
    victim: subprocess.Popen[bytes]
    #: The descriptor of an open file outside.
    descriptor: int
    #: Attacks that fail on this machine even without a sandbox.
    pointless: frozenset[str]

    def command(self, *names: str) -> str:
        """Return the command that runs attacks in the root, all of them by default."""
        return f"python3 -m {kernel_attacks.__name__} {' '.join(names)}"

    def without_sandbox(self) -> dict[str, str]:
        """Run all attacks as the user of the commands, without a sandbox."""
        ended = subprocess.run(
            ["/bin/sh", "-c", self.command()],
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={"PATH": confinement.PATH, "CANARY": "outside"},
            pass_fds=[self.descriptor],
            check=True,
            **AS_OWNER,
        )
        return json.loads(ended.stdout)


@contextmanager
def outside() -> Iterator[Outside]:
    """Create a root and its surroundings in a directory that all users may enter. Directories of pytest are private."""
    place = Path(tempfile.mkdtemp(prefix="shell-test-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, place)
        root = _files(place)
        facts = _sockets(place, root, stack)
        facts |= {
            "outside": str(place),
            "canary": f"CANARY={secrets.token_hex(8)}",
            "name": f"victim-{secrets.token_hex(8)}",
            "machine": os.uname().nodename,
            "newest": confinement.NEWEST,
            "key": f"agentops-{secrets.token_hex(8)}",
            "denied": [number for each in confinement.DENIED.values() if (number := each[COLUMN]) is not None],
            "processes": confinement.LIMITS["RLIMIT_NPROC"],
            "memory": confinement.LIMITS["RLIMIT_AS"],
            "files": confinement.LIMITS["RLIMIT_NOFILE"],
            "shared_memory": _shared_memory(stack),
        }
        victim = _victim(facts, stack)
        facts["pid"] = victim.pid
        (root / "facts.json").write_text(json.dumps(facts))
        descriptor = os.open(place / "secret.txt", os.O_RDONLY)
        stack.callback(os.close, descriptor)
        os.set_inheritable(descriptor, True)
        _give(place)
        yield Outside(place, root, victim, descriptor, _pointless(has_keyrings=_key(facts["key"])))


def _files(place: Path) -> Path:
    root = place / "root"
    (place / "home" / ".agent").mkdir(parents=True)
    root.mkdir()
    (root / "kept.txt").write_text("kept\n")
    for program in (sandbox_attacks, kernel_attacks):
        copy = root.joinpath(*program.__name__.split(".")).with_suffix(".py")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(str(program.__file__), copy)
    # The permissions allow everything, so only the sandbox can refuse.
    for name in ("secret.txt", "db.sqlite3"):
        (place / name).write_text("outside the root")
        (place / name).chmod(0o666)
    place.chmod(0o777)
    if IS_ROOT:
        os.mknod(root / "zero-device", 0o020666, os.makedev(1, 5))
        (root / "zero-device").chmod(0o666)
        shutil.copy("/usr/bin/id", root / "setuid")
    return root


def _give(place: Path) -> None:
    """Make the user of the commands the owner of all files, except those that must belong to root."""
    if IS_ROOT:
        for path in place.rglob("*"):
            os.chown(path, OWNER, OWNER, follow_symlinks=False)
        os.chown(place / "root" / "setuid", 0, 0)
        (place / "root" / "setuid").chmod(0o4755)


def _sockets(place: Path, root: Path, stack: ExitStack) -> dict[str, Any]:
    """Listen on sockets of all kinds, and answer each client "outside"."""
    abstract = f"agentops-test-{secrets.token_hex(8)}"
    paths = (f"{place}/socket", f"{place}/home/.agent/S.agent", f"{root}/server.socket", f"\0{abstract}")
    selector = stack.enter_context(selectors.DefaultSelector())
    for address in paths:
        server = stack.enter_context(socket.socket(socket.AF_UNIX))
        server.bind(address)
        if not address.startswith("\0"):
            os.chmod(address, 0o777)
        server.listen(8)
        selector.register(server, selectors.EVENT_READ, "stream")
    tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    selector.register(tcp, selectors.EVENT_READ, "stream")
    udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    udp.bind(("127.0.0.1", 0))
    selector.register(udp, selectors.EVENT_READ, "datagram")
    end, ending = socket.socketpair()
    selector.register(end, selectors.EVENT_READ, "end")
    thread = threading.Thread(target=_serve, args=(selector,))
    thread.start()

    def stop() -> None:
        ending.close()
        thread.join()
        end.close()

    stack.callback(stop)
    return {"abstract": abstract, "tcp": tcp.getsockname()[1], "udp": udp.getsockname()[1]}


def _serve(selector: selectors.BaseSelector) -> None:
    while True:
        for key, _ in selector.select():
            if key.data == "end":
                return
            if key.data == "datagram":
                key.fileobj.sendto(b"outside", key.fileobj.recvfrom(16)[1])
            else:
                client, _ = key.fileobj.accept()
                with client:
                    client.sendall(b"outside")


def _shared_memory(stack: ExitStack) -> int:
    """Create a System V shared memory segment, and return its key."""
    key = secrets.randbelow(2**30) + 1
    segment = LIBC.shmget(key, 4096, IPC_CREAT | 0o666)
    assert segment >= 0
    stack.callback(LIBC.shmctl, segment, IPC_RMID, None)
    return key


def _key(name: str) -> bool:
    """Add a key to a new session keyring of this thread, which commands inherit. Return False without keyrings."""
    if LIBC.syscall(kernel_attacks.KEYCTL, 1, None) < 0:
        return False
    key = LIBC.syscall(kernel_attacks.ADD_KEY, b"user", name.encode(), b"outside", 7, -3)
    if IS_ROOT:
        LIBC.syscall(kernel_attacks.KEYCTL, 4, key, OWNER, OWNER)  # As if the worker ran as this user.
    return key > 0


def _pointless(*, has_keyrings: bool) -> frozenset[str]:
    """Return the attacks that are impossible on this kernel, or that need a file that only root can create."""
    release = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))
    yama = Path("/proc/sys/kernel/yama/ptrace_scope")
    return frozenset(
        name
        for name, is_possible in {
            "program_with_the_rights_of_root": IS_ROOT,
            "device_of_the_machine": IS_ROOT,
            "key_of_the_session": has_keyrings,
            "new_key": has_keyrings,
            "name_of_a_key": has_keyrings and Path("/proc/keys").exists(),
            "newer_system_call": release >= (6, 15),
            "memory_of_the_first_process": not yama.exists() or yama.read_text() == "0\n",
            "system_call_of_32_bits": os.uname().machine == "x86_64",
            # Most kernels are built without x32 calls.
            "system_call_of_x32": False,
        }.items()
        if not is_possible
    )


def _victim(facts: dict[str, Any], stack: ExitStack) -> subprocess.Popen[bytes]:
    """Start a process of the same user, as a target of attacks."""
    name, _, value = facts["canary"].partition("=")
    victim = subprocess.Popen(
        ["/bin/sh", "-c", "trap '' USR1; echo; read line", facts["name"]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={name: value},
        **AS_OWNER,
    )
    stack.enter_context(victim)
    assert victim.stdout is not None
    victim.stdout.readline()
    return victim
