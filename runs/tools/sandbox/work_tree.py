"""The changes of a command below the agent's root: files, and git commits."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from timeline.events.base import Payload
from timeline.events.work import FileChanged, GitCommit

#: Maximum files of a tree that is compared.
MAX_FILES = 20_000
#: Maximum changes of one command that become events.
MAX_EVENTS = 100
MAX_LOG = 1024 * 1024
_COMMIT = re.compile(
    r"[0-9a-f]{40,64} (?P<sha>[0-9a-f]{40,64}) (?P<author>[^<]*?) ?<[^>]*> [0-9]+ \S+\tcommit[^:]*: (?P<subject>.*)"
)
#: Path → (time of the change in ns, size, inode).
Files = dict[str, tuple[int, int, int]]
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


@dataclass(frozen=True)
class WorkTree:
    """The files below a directory at one time."""

    #: None if there are too many files.
    files: Files | None
    #: The end of git's log of HEAD.
    log: bytes = b""
    branch: str | None = None

    @classmethod
    def of(cls, root_fd: int) -> WorkTree:
        head = _read(root_fd, ".git", "HEAD").decode(errors="replace").strip()
        branch = head.removeprefix("ref: refs/heads/") if head.startswith("ref: refs/heads/") else None
        return cls(_files(root_fd), _read(root_fd, ".git", "logs", "HEAD"), branch)

    def changes_since(self, earlier: WorkTree) -> list[Payload]:
        """Return events for new, changed or deleted files and new commits; at most `MAX_EVENTS`."""
        events: list[Payload] = []
        if self.files is not None and earlier.files is not None:
            events += [FileChanged(path=path, change=change) for path, change in _changes(earlier.files, self.files)]
        new_lines = self.log[len(earlier.log) :] if self.log.startswith(earlier.log) else b""
        commits = [self._commit(line) for line in new_lines.decode(errors="replace").splitlines()]
        return [*events[:MAX_EVENTS], *[commit for commit in commits if commit is not None][:MAX_EVENTS]]

    def _commit(self, line: str) -> GitCommit | None:
        found = _COMMIT.fullmatch(line)
        if found is None:
            return None
        return GitCommit(
            sha=found["sha"], author=found["author"], subject=found["subject"][:500] or None, branch=self.branch
        )


def _changes(before: Files, after: Files) -> Iterator[tuple[str, str]]:
    for path in sorted({*before, *after}):
        if path not in before:
            yield path, "added"
        elif path not in after:
            yield path, "deleted"
        elif before[path] != after[path]:
            yield path, "modified"


def _files(root_fd: int) -> Files | None:
    """Return the regular files below a directory, without git's files. Links are not followed."""
    files: Files = {}
    for directory, folders, names, descriptor in os.fwalk(".", dir_fd=root_fd, follow_symlinks=False):
        if ".git" in folders:
            folders.remove(".git")
        for name in names:
            with suppress(OSError):
                status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    path = os.fsencode(os.path.normpath(os.path.join(directory, name))).decode(errors="replace")
                    files[path[:1024]] = (status.st_mtime_ns, status.st_size, status.st_ino)
        if len(files) > MAX_FILES:
            return None
    return files


def _read(directory: int, *parts: str) -> bytes:
    """Return the end of a regular file below a directory, without following links; empty if it does not exist."""
    descriptor = os.dup(directory)
    try:
        for part in parts:
            next_one = os.open(part, _READING, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = next_one
        if not stat.S_ISREG(os.fstat(descriptor).st_mode) or os.fstat(descriptor).st_size > MAX_LOG:
            return b""
        return os.read(descriptor, MAX_LOG)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
