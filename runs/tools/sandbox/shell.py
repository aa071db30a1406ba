"""The tool `shell`: runs a command in the agent's root, in a sandbox. Changed files and git commits become events."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from runs.tools import rooted_files
from runs.tools.base import Effect, ToolContext, ToolDenied, ToolResult
from runs.tools.functions import tool
from runs.tools.rooted_files import open_below_root
from runs.tools.sandbox import sandboxed_command, switches
from timeline.events.base import Payload
from timeline.events.work import FileChanged, GitCommit

#: Maximum files of a tree that is compared.
MAX_FILES = 20_000
#: Maximum changed files, and maximum commits, of one command that become events.
MAX_EVENTS = 100
#: Maximum bytes of git's log of HEAD. A larger one is not read.
MAX_LOG = 1024 * 1024
#: A line of git's log of HEAD that records a commit.
_COMMIT = re.compile(
    r"[0-9a-f]{40,64} (?P<sha>[0-9a-f]{40,64}) (?P<author>[^<]*?) ?<[^>]*> [0-9]+ \S+\tcommit[^:]*: (?P<subject>.*)"
)
#: By path: the time of the last change in nanoseconds, the size, and the inode.
Files = dict[str, tuple[int, int, int]]
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


@dataclass(frozen=True)
class WorkTree:
    """The files below a directory at one time."""

    #: None if there are too many files.
    files: Files | None
    #: Git's log of HEAD; empty without one.
    log: bytes = b""
    branch: str | None = None

    @classmethod
    def of(cls, root_fd: int) -> WorkTree:
        head = _read(root_fd, ".git", "HEAD").decode(errors="replace").strip()
        branch = head.removeprefix("ref: refs/heads/") if head.startswith("ref: refs/heads/") else None
        return cls(_files(root_fd), _read(root_fd, ".git", "logs", "HEAD"), branch)

    def changes_since(self, earlier: WorkTree) -> list[Payload]:
        """Return events for new, changed or deleted files, and for new commits; at most `MAX_EVENTS` of each."""
        events: list[Payload] = []
        if self.files is not None and earlier.files is not None:
            events += [FileChanged(path=path, change=change) for path, change in _changes(earlier.files, self.files)]
        new_lines = self.log[len(earlier.log) :] if self.log.startswith(earlier.log) else b""
        commits = [self._commit(line) for line in new_lines.decode(errors="replace").splitlines()]
        return [*events[:MAX_EVENTS], *[commit for commit in commits if commit is not None][:MAX_EVENTS]]

    def _commit(self, line: str) -> GitCommit | None:
        match = _COMMIT.fullmatch(line)
        if match is None:
            return None
        return GitCommit(
            sha=match["sha"], author=match["author"], subject=match["subject"][:500] or None, branch=self.branch
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
    """Return the regular files below a directory, without git's files. None if there are more than `MAX_FILES`."""
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
    """Return the content of a file below a directory, without following links.

    Returns an empty text if it is missing, not a regular file, or larger than `MAX_LOG`.
    """
    descriptor = os.dup(directory)
    try:
        for part in parts:
            child = os.open(part, _READING, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = child
        if not stat.S_ISREG(os.fstat(descriptor).st_mode) or os.fstat(descriptor).st_size > MAX_LOG:
            return b""
        return os.read(descriptor, MAX_LOG)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


MAX_COMMAND = 64 * 1024
MAX_TIMEOUT_S = 1800
#: Seconds to start and end a command, which the tool has in addition to the command's time limit.
MARGIN_S = 30


@tool(effect=Effect.AT_MOST_ONCE, timeout_s=MAX_TIMEOUT_S + MARGIN_S)
def shell(
    ctx: ToolContext,
    command: Annotated[str, Field(min_length=1, max_length=MAX_COMMAND)],
    timeout_s: Annotated[int, Field(ge=1, le=MAX_TIMEOUT_S)] = 120,
) -> ToolResult:
    """Run a command with sh in the agent's root. There is no network, and only the root and /tmp can be changed.

    /tmp is empty when a command begins, and is deleted afterwards. Processes in the background end with the command.

    Args:
        command: The command. Several lines are allowed.
        timeout_s: Seconds after which the command is ended.
    """
    switches.require(switches.SHELL)
    if "\0" in command:
        raise ToolDenied("command_denied", "Nothing was run: the command contains a NUL character.")
    if rooted_files.contains_site(ctx.settings.get("root")):
        raise ToolDenied("path_denied", "Nothing was run: the agent's root contains files of this site.")
    if rooted_files.contains_kernel_mount(ctx.settings.get("root")):
        raise ToolDenied("path_denied", "Nothing was run: /proc or the like is mounted below the agent's root.")
    with open_below_root(ctx.settings.get("root"), ".", directory=True) as root_fd:
        before = WorkTree.of(root_fd)
        result = sandboxed_command.run(
            ["/bin/sh", "-c", command], root_fd, timeout_s=timeout_s, write=ctx.write, cancelled=ctx.cancelled
        )
        events = WorkTree.of(root_fd).changes_since(before)
    return ToolResult(_text(result), is_error=bool(result.reason) or result.code != 0, retryable=False, events=events)


SHELL = replace(shell, reads_files=True, switch=switches.SHELL)


def _text(result: sandboxed_command.CommandResult) -> str:
    """Return the output for the model, with a last line that says how the command ended."""
    end = f"ended because {result.reason}" if result.reason else f"exit {result.code}"
    truncated = ", output truncated" if result.is_truncated else ""
    return f"{result.output.rstrip(os.linesep)}\n[{end}{truncated}]".lstrip("\n")
