"""The directory of an embedded site: its lock, its file modes, and file systems on which a lock is not safe.

The lock ends with the process, even after a crash, so it needs no cleanup.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from agentops.accounts.command_base import EXIT_RUNNING

LOCK = "lock"
DATABASE_FILES = "agentops.sqlite3*"
#: Maximum bytes of the lock file to read.
MAX_BYTES = 1024
MOUNTS = Path("/proc/mounts")
#: Network file systems, on which locks and shared memory do not cover all writers.
REMOTE = frozenset({"9p", "afs", "ceph", "cifs", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3", "smbfs"})
#: The same, as FUSE file systems.
REMOTE_FUSE = ("fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.rclone", "fuse.s3fs", "fuse.davfs")


class Home:
    """The home directory, locked by this process. `previous_worker` held it last, and is dead.

    Raises `CommandError` if another process holds it, and `ImproperlyConfigured` if the directory cannot be used.
    """

    def __init__(self, path: Path) -> None:
        with _convert_errors():
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make_private(path)
            # Kept open, because closing it would release the lock. Child processes do not inherit it.
            self._lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            process = self._process()
            self.release()
            raise CommandError(f"already running on {path}{process}", returncode=EXIT_RUNNING) from None
        self.previous_worker = self._lines()[0]

    def store_holder(self, owner: str, url: str = "", login: str = "") -> None:
        """Write to the lock file the worker of this process, whose leases end with it, and then its URL and login."""
        lines = f"{owner}\n{url}\n{login}\n".encode()
        with _convert_errors():
            os.pwrite(self._lock, lines, 0)
            os.ftruncate(self._lock, len(lines))
            os.fsync(self._lock)

    def release(self) -> None:
        """Release the lock before the process ends."""
        os.close(self._lock)

    def _lines(self) -> tuple[str, str, str]:
        """Return the worker, the URL and the login in the lock file; empty texts for missing lines.

        If a process died while it wrote, the file may have more or fewer lines.
        """
        owner, url, login, *_ = [*os.pread(self._lock, MAX_BYTES, 0).decode(errors="replace").split("\n"), "", "", ""]
        return owner, url, login

    def _process(self) -> str:
        """Return the process that holds the home, with its URL and how to log in; empty while it is starting."""
        owner, url, login = self._lines()
        parts = owner.split(":")
        process = f" (process {parts[-2]})" if len(parts) > 2 else ""
        if not url:
            return process
        return f"{process}: open {url} and log in as {login}; for a new password: {password_command(login)}"


def password_command(login: str) -> str:
    """Return the command that changes the password of a user."""
    return f"{sys.argv[0]} changepassword {login}"


@contextmanager
def _convert_errors() -> Iterator[None]:
    """Convert file system errors to `ImproperlyConfigured`: read-only, full, not owned, not a directory."""
    try:
        yield
    except OSError as error:
        text = f"AGENTOPS_HOME must be a directory that this user may write to ({error.strerror})"
        raise ImproperlyConfigured(text) from error


def _make_private(path: Path) -> None:
    """Remove the access of other users to the home and its database files, also to files of an earlier umask."""
    status = path.stat()
    if status.st_mode & 0o077:
        # Only if this user owns the directory, and not if it is shared, such as /tmp.
        if status.st_uid != os.geteuid() or status.st_mode & stat.S_ISVTX:
            raise ImproperlyConfigured("AGENTOPS_HOME must be a directory of your own, which others do not use")
        path.chmod(0o700)
    for file in path.glob(DATABASE_FILES):
        if not file.is_symlink() and file.stat().st_mode & 0o077:
            file.chmod(0o600)


def warnings_about(path: Path) -> list[str]:
    """Return warnings about the home that do not prevent the start."""
    warnings = []
    if os.geteuid() == 0:
        warnings.append("running as root: an ordinary user is enough, and safer")
    kind = remote_file_system(path.resolve(), MOUNTS.read_text() if MOUNTS.exists() else "")
    if kind:
        warnings.append(f"AGENTOPS_HOME is on a network file system ({kind}): SQLite may lose data there")
    return warnings


def remote_file_system(path: Path, mounts: str) -> str:
    """Return the type of the network file system that holds `path`; empty for a local one."""
    holder, kind = Path("/"), ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        # In this file, blanks and backslashes are octal escapes.
        at = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[1]))
        # If two mounts have the same path, the later one is visible.
        if path.is_relative_to(at) and len(at.parts) >= len(holder.parts):
            holder, kind = at, fields[2]
    return kind if kind in REMOTE or kind.startswith(REMOTE_FUSE) else ""
