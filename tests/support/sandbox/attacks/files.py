"""Attacks on the content, metadata and names of files outside."""

from __future__ import annotations

import os
from contextlib import suppress
from types import SimpleNamespace

from tests.support.sandbox.attacks import attack


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
