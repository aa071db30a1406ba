"""Follows all session files below some folders. The operating system reports which of them have changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from watchfiles import Change, watch
from watchfiles.main import FileChange

from runs.external.importers.base import ImportRefused, NothingToImport, UnreadableFile
from runs.external.watching.agent_folders import may_be_session, session_files
from runs.external.watching.followed_file import QUIET_S, FollowedFile
from runs.external.watching.watch_sinks import SinkRefused, SinkUnavailable, WatchSink

#: Milliseconds: changes within this time are combined, and the longest time between two rounds.
STEP_MS, ROUND_MS = 20, 200
#: Seconds between two scans of all files, for changes that the operating system does not report, as on network drives.
SCAN_S = 30.0
#: The same interval if the operating system reports no changes.
POLL_S = 2.0
#: Seconds before an unavailable sink is tried again: doubled each time, up to the second number.
RETRY_S = (0.5, 30.0)


@dataclass(eq=False)
class Watcher:
    """The followed files."""

    folders: Sequence[Path]
    sink: WatchSink
    labels: Sequence[str] = ()
    #: Files unchanged since this time (in seconds since 1970) are not read.
    since: float = 0.0
    quiet_s: float = QUIET_S
    scan_s: float = SCAN_S
    #: Called with a sentence for people.
    tell: Callable[[str], None] = lambda text: None
    warn: Callable[[str], None] = lambda text: None
    files: dict[Path, FollowedFile] = field(default_factory=dict)
    _told: dict[Path, set[str]] = field(default_factory=dict)
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
                self.note(Path(path) for _, path in changes)
                self.round()
                if self._existing() != folders:
                    break

    def _changes(self, folders: Sequence[Path], stop: Event) -> Iterator[set[FileChange]]:
        """Yield the changes repeatedly, possibly none. Polls if the operating system cannot report them."""
        try:
            yield from watch(
                *folders, watch_filter=_is_session, debounce=STEP_MS * 2, step=STEP_MS, rust_timeout=ROUND_MS,
                yield_on_timeout=True, stop_event=stop, raise_interrupt=False,
            )  # fmt: skip
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
        """Store the new events of all changed files."""
        now = time.monotonic()
        if now >= self._retry_at:
            self._advance_all()

    def _existing(self) -> list[Path]:
        return [folder for folder in self.folders if folder.exists()]

    def note(self, paths: Iterable[Path]) -> None:
        """Check these files in the next round, because the operating system reported a change."""
        for path in paths:
            self._follow(path).is_changed = True

    def _follow(self, path: Path) -> FollowedFile:
        if path not in self.files:
            self.files[path] = FollowedFile(path, self.sink, self.labels, self.quiet_s)
        return self.files[path]

    def _scan(self) -> None:
        """Check all files for changes, whether or not the operating system reported them."""
        now, before = time.monotonic(), self._scanned_at
        if before is not None and now - before < (0.0 if self._polls else self.scan_s):
            return
        self._scanned_at = now
        for path in session_files(list(self.folders), self.since):
            self._follow(path).look()
        if before is None:
            self.tell(f"Following {len(self.files)} session files below {', '.join(map(str, self.folders))}")

    def _advance_all(self) -> int:
        self._scan()
        stored = 0
        for path, file in list(self.files.items()):
            try:
                stored += self._advance(path, file)
            except SinkUnavailable as error:
                pause = max(self._retry_s, error.retry_after)
                self.warn(f"{error}; trying again in {pause:g} s")
                self._retry_at = time.monotonic() + pause
                self._retry_s = min(self._retry_s * 2, RETRY_S[1])
                return 0
        self._retry_s = RETRY_S[0]
        return stored

    def _advance(self, path: Path, file: FollowedFile) -> int:
        was_recognised = file.is_recognised
        try:
            stored = file.advance()
        except UnreadableFile as error:
            if path.exists():
                self._complain(path, f"{path}: {error.detail}")
            file.is_changed = False
            return 0
        except NothingToImport:
            file.is_changed = False
            return 0
        except ImportRefused as error:
            self._complain(path, f"{path.parent}/{error}")
            file.is_changed = False
            return 0
        except SinkRefused as error:
            self._complain(path, f"{path}: {error}")
            file.is_changed = False
            return 0
        if file.is_recognised and not was_recognised:
            self.tell(f"{path}: {file.format_title}")
        if file.is_unknown_session and not file.is_recognised:
            self._warn_once(path, f"{path}: named like a session, but in no known format; it is not shown")
        for line in file.left_out.lines:
            self._warn_once(path, f"{path}: left out {line}")
        if file.left_out.first_unnamed is not None:
            # Without their number, which grows.
            self._warn_once(path, f"{path}: left out further lines")
        return stored

    def _complain(self, path: Path, text: str) -> None:
        """Report a problem of a file once."""
        self._warn_once(path, f"{text}; what comes after it is not shown until the file changes")

    def _warn_once(self, path: Path, text: str) -> None:
        if text not in self._told.setdefault(path, set()):
            self._told[path].add(text)
            self.warn(text)


def _is_session(change: Change, path: str) -> bool:
    return change != Change.deleted and may_be_session(Path(path))
