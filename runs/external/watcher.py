"""Follows all session files below the folders in which agent programs keep their sessions.

The operating system reports which files have changed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from watchfiles import Change, watch
from watchfiles.main import FileChange

from runs.external.followed_file import QUIET_S, FollowedFile
from runs.external.importers.base import ImportRefused, NothingToImport, UnreadableFile
from runs.external.importers.claude_code_sessions import is_about_agent
from runs.external.watch_sinks import SinkRefused, SinkUnavailable, WatchSink

#: Changes within this time, in milliseconds, are handled together.
STEP_MS = 20
#: Maximum milliseconds between two rounds.
ROUND_MS = 200
#: Seconds between two scans of all files, for changes that the operating system does not report, as on network drives.
SCAN_S = 30.0
#: Seconds between two scans if the operating system cannot report changes.
POLL_S = 2.0
#: Seconds before an unavailable sink is tried again: the first number, doubled each time, up to the second number.
RETRY_S = (0.5, 30.0)


@dataclass(eq=False)
class Watcher:
    """Follows the session files below some folders."""

    folders: Sequence[Path]
    sink: WatchSink
    labels: Sequence[str] = ()
    #: Files unchanged since this time (in seconds since 1970) are not read.
    since: float = 0.0
    quiet_s: float = QUIET_S
    scan_s: float = SCAN_S
    #: Called with news and with warnings, as sentences for people.
    tell: Callable[[str], None] = lambda text: None
    warn: Callable[[str], None] = lambda text: None
    files: dict[Path, FollowedFile] = field(default_factory=dict)
    #: The warnings about each file.
    _warnings: dict[Path, set[str]] = field(default_factory=dict)
    _scanned_at: float | None = None
    #: Whether the operating system cannot report changed files.
    _polls: bool = False
    _retry_at: float = 0.0
    _retry_s: float = RETRY_S[0]

    def run(self, stop: Event) -> None:
        """Follow the files until `stop` is set."""
        while not stop.is_set():
            folders = self._existing()
            if not folders:
                stop.wait(1)
                continue
            for changes in self._changes(folders, stop):
                self.note_changes(Path(path) for _, path in changes)
                self.round()
                if self._existing() != folders:
                    break

    def _changes(self, folders: Sequence[Path], stop: Event) -> Iterator[set[FileChange]]:
        """Yield the changed files at least every `ROUND_MS`, or nothing every `POLL_S` if they cannot be reported."""
        try:
            yield from watch(
                *folders,
                watch_filter=_is_session,
                debounce=STEP_MS * 2,
                step=STEP_MS,
                rust_timeout=ROUND_MS,
                yield_on_timeout=True,
                stop_event=stop,
                raise_interrupt=False,
            )
            return
        except OSError as error:  # such as the limit of watched folders
            self.warn(f"{error}; looking for changes every {POLL_S:g} s instead")
        self._polls = True
        while not stop.wait(POLL_S):
            yield set()

    def run_once(self) -> None:
        """Store all existing content, and set the sessions to waiting."""
        self._scan()
        for path, file in list(self.files.items()):
            file.quiet_s = file.open_calls_s = 0.0
            for _ in range(3):  # new events, the end of the last answer, and the status
                file.not_before = 0.0
                self._advance(path, file)

    def round(self) -> None:
        """Advance all files, unless the sink is known to be unavailable."""
        if time.monotonic() < self._retry_at:
            return
        self._scan()
        for path, file in list(self.files.items()):
            try:
                self._advance(path, file)
            except SinkUnavailable as error:
                pause = max(self._retry_s, error.retry_after)
                self.warn(f"{error}; trying again in {pause:g} s")
                self._retry_at = time.monotonic() + pause
                self._retry_s = min(self._retry_s * 2, RETRY_S[1])
                return
        self._retry_s = RETRY_S[0]

    def _existing(self) -> list[Path]:
        return [folder for folder in self.folders if folder.exists()]

    def note_changes(self, paths: Iterable[Path]) -> None:
        """Read these files in the next round, because the operating system reported that they have changed."""
        for path in paths:
            self._follow(path).is_changed = True

    def _follow(self, path: Path) -> FollowedFile:
        if path not in self.files:
            self.files[path] = FollowedFile(path, self.sink, self.labels, self.quiet_s)
        return self.files[path]

    def _scan(self) -> None:
        """Check all files for changes that the operating system has not reported, if the last scan is long ago."""
        now, before = time.monotonic(), self._scanned_at
        if before is not None and now - before < (0.0 if self._polls else self.scan_s):
            return
        self._scanned_at = now
        for path in session_files(list(self.folders), self.since):
            self._follow(path).check_for_change()
        if before is None:
            self.tell(f"Following {len(self.files)} session files below {', '.join(map(str, self.folders))}")

    def _advance(self, path: Path, file: FollowedFile) -> None:
        """Advance a file, and report news and problems. Raises `SinkUnavailable`."""
        was_recognised = file.is_recognised
        try:
            file.advance()
        except (ImportRefused, SinkRefused) as error:
            file.is_changed = False
            problem = _problem(path, error)
            if problem:
                self._warn_once(path, f"{problem}; what comes after it is not shown until the file changes")
            return
        if file.is_recognised and not was_recognised:
            self.tell(f"{path}: {file.format_title}")
        if file.is_unknown_session and not file.is_recognised:
            self._warn_once(path, f"{path}: named like a session, but in no known format; it is not shown")
        for line in file.left_out.lines:
            self._warn_once(path, f"{path}: left out {line}")
        if file.left_out.first_unnamed is not None:
            # Without their number: it grows, so each warning would be a new one.
            self._warn_once(path, f"{path}: left out further lines")

    def _warn_once(self, path: Path, text: str) -> None:
        if text not in self._warnings.setdefault(path, set()):
            self._warnings[path].add(text)
            self.warn(text)


def _problem(path: Path, error: ImportRefused | SinkRefused) -> str:
    """Return why a file cannot be followed; empty if it has no messages yet, or if it was deleted."""
    if isinstance(error, NothingToImport) or (isinstance(error, UnreadableFile) and not path.exists()):
        return ""
    if isinstance(error, ImportRefused) and not isinstance(error, UnreadableFile):
        return f"{path.parent}/{error}"  # the message begins with the name of the file
    return f"{path}: {error.detail if isinstance(error, UnreadableFile) else error}"


def _is_session(change: Change, path: str) -> bool:
    return change != Change.deleted and may_be_session(Path(path))


_SUFFIXES = (".jsonl", ".json")
#: Files of `/chat save` of Gemini CLI, which are copies of followed chats.
_SAVED_CHATS = "checkpoint-*.json"


def session_folders(environ: Mapping[str, str], home: Path) -> list[Path]:
    """Return the session folders of Claude Code, Codex CLI and Gemini CLI, whether they exist or not."""
    return [
        Path(environ.get("CLAUDE_CONFIG_DIR") or home / ".claude") / "projects",
        Path(environ.get("CODEX_HOME") or home / ".codex") / "sessions",
        home / ".gemini" / "tmp",
    ]


def may_be_session(path: Path) -> bool:
    """Return whether a path has the name of a session file."""
    return path.suffix in _SUFFIXES and not path.match(_SAVED_CHATS) and not is_about_agent(path)


def session_files(folders: list[Path], since: float) -> Iterator[Path]:
    """Yield the session files below the folders that have changed since a time, in seconds since 1970."""
    for folder in folders:
        for path in [folder] if folder.is_file() else _files_below(folder):
            try:
                if may_be_session(path) and path.is_file() and path.stat().st_mtime >= since:
                    yield path
            except OSError:
                continue


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder. `Path.rglob` would fail if a folder is deleted concurrently."""
    for parent, _, names in os.walk(folder):
        yield from (Path(parent, name) for name in names)
