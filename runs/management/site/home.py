"""The directory that one embedded process has to itself: its lock, its modes, and where a lock cannot be trusted.

The lock ends with the process, however that ends; nothing has to be cleaned up.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from django.core.exceptions import ImproperlyConfigured

LOCK = "lock"
DATABASE_FILES = "agentops.sqlite3*"
MAX_OWNER = 256
MOUNTS = Path("/proc/mounts")
#: File systems of other machines: locks and shared memory on them do not reach everyone who writes.
REMOTE = frozenset({"9p", "afs", "ceph", "cifs", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3", "smbfs"})
REMOTE_FUSE = ("fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.rclone", "fuse.s3fs", "fuse.davfs")


class AlreadyRunning(Exception):
    """Another process has the home, and lives."""

    code: ClassVar[str] = "already_running"
    exit_code: ClassVar[int] = 75  # EX_TEMPFAIL of sysexits.h


class Home:
    """The home, locked by this process until its end. `previous` is the worker that had it last: it is dead."""

    def __init__(self, path: Path) -> None:
        with _writing():
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make_private(path)
            # Kept open: with the descriptor the lock would go. It is not handed on to child processes.
            self._lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            found = self._process()
            self.release()
            raise AlreadyRunning(f"already running on {path}{found}") from None
        self.previous = self._owner()

    def belongs_to(self, owner: str) -> None:
        """Write down whose leases are worthless once this process is dead."""
        line = f"{owner}\n".encode()
        with _writing():
            os.pwrite(self._lock, line, 0)
            os.ftruncate(self._lock, len(line))
            os.fsync(self._lock)

    def release(self) -> None:
        """Give the lock back before the process ends."""
        os.close(self._lock)

    def _owner(self) -> str:
        # Only the first line counts: a process that died before it could cut the rest off has left more.
        return os.pread(self._lock, MAX_OWNER, 0).decode(errors="replace").partition("\n")[0]

    def _process(self) -> str:
        """Which process has the home; one that has only just begun has not said so yet."""
        parts = self._owner().split(":")
        return f" (process {parts[-2]})" if len(parts) > 2 else ""


@contextmanager
def _writing() -> Iterator[None]:
    """What the file system refuses is a fault of the home: read-only, full, of somebody else, or no directory."""
    try:
        yield
    except OSError as error:
        text = f"AGENTOPS_HOME must be a directory that this user may write to ({error.strerror})"
        raise ImproperlyConfigured(text) from error


def _make_private(path: Path) -> None:
    """Nobody else may look into the home; what an earlier command made under a looser umask included."""
    found = path.stat()
    if found.st_mode & 0o077:
        # The owner's right alone, and not where everyone keeps files, such as /tmp.
        if found.st_uid != os.geteuid() or found.st_mode & stat.S_ISVTX:
            raise ImproperlyConfigured("AGENTOPS_HOME must be a directory of your own, which others do not use")
        path.chmod(0o700)
    for file in path.glob(DATABASE_FILES):
        if not file.is_symlink() and file.stat().st_mode & 0o077:
            file.chmod(0o600)


def warnings_about(path: Path) -> list[str]:
    """What may go on, but should not."""
    found = []
    if os.geteuid() == 0:
        found.append("running as root: an ordinary user is enough, and safer")
    kind = remote_file_system(path.resolve(), MOUNTS.read_text() if MOUNTS.exists() else "")
    if kind:
        found.append(f"AGENTOPS_HOME is on a network file system ({kind}): SQLite may lose data there")
    return found


def remote_file_system(path: Path, mounts: str) -> str:
    """The kind of the file system of another machine that holds `path`, by the lines of /proc/mounts; else empty."""
    holder, kind = Path("/"), ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        # Blanks and backslashes stand there as octal numbers.
        at = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[1]))
        # Of two at the same place the later one lies on top.
        if path.is_relative_to(at) and len(at.parts) >= len(holder.parts):
            holder, kind = at, fields[2]
    return kind if kind in REMOTE or kind.startswith(REMOTE_FUSE) else ""
