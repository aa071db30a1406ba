"""The changed files of a run, or of a part of it, from its calls in order."""

from __future__ import annotations

import enum
import posixpath
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from runs.changes.call_facts import CallReader, FileCall
from runs.changes.file_edits import UNKNOWN, Content, DeletedFile, FileFact, Moved, Opaque, Seen, Written
from runs.changes.file_states import FileState, Touch
from runs.changes.unified import Hunk, HunkLine, diff_of

#: Masks the secrets of a text.
Mask = Callable[[str], str]
#: A secret that was masked before the text was stored.
_MASKED = re.compile(r"\[REDACTED:[a-z0-9_]{1,32}:[0-9a-f]{8}\]")
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")


class FileStatus(enum.StrEnum):
    """How a file changed."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"
    RENAMED = "renamed"
    #: Its whole content was written, and it is not known whether it existed.
    WRITTEN = "written"
    #: Its calls cancel each other out.
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class FileChange:
    """The change of a file, with secrets masked."""

    #: Relative to the working directory, if the file is below it.
    path: str
    old_path: str
    status: FileStatus
    #: Whether the text is known at the beginning and at the end, so that the hunks compare the whole file.
    is_whole: bool
    #: Numbers of lines; None if they are not known.
    additions: int | None
    deletions: int | None
    hunks: Sequence[Hunk]
    #: The equal lines after the last hunk.
    rest: Sequence[HunkLine]
    touches: Sequence[Touch]
    notes: Sequence[str]
    #: Why a patch cannot contain the file; empty if it can.
    why_no_patch: str
    #: Whether the patch creates, or deletes, an empty file.
    before: Content
    after: Content

    @property
    def steps(self) -> list[int]:
        """Return the steps whose calls changed the file, in order, each once."""
        return sorted({touch.step for touch in self.touches if touch.step is not None})


class SessionFiles:
    """The files that the calls of a run use."""

    def __init__(self, reader: CallReader, directory: str = "") -> None:
        """Create an empty session. `directory`: the working directory; empty if it is not known."""
        self._reader = reader
        self.directory = _normal(directory).rstrip("/")
        self._states: dict[str, FileState] = {}

    def paths_of(self, call: FileCall) -> set[str]:
        """Return the paths that a call changes, as `path_read_by` names them."""
        facts = [fact for fact in self._reader.facts_of(call) if not isinstance(fact, Seen)]
        paths = {self._path(fact.path) for fact in facts}
        return paths | {self._path(fact.to) for fact in facts if isinstance(fact, Moved)}

    def path_read_by(self, call: FileCall) -> str:
        """Return the path that a call reads; empty if it reads none."""
        return self._path(self._reader.path_of(call))

    def add(self, call: FileCall) -> None:
        """Read a call."""
        touch = Touch(call.step, call.tool, call.id, call.is_unknown)
        for fact in self._reader.facts_of(call):
            self.add_fact(fact, touch)

    def add_fact(self, fact: FileFact, touch: Touch) -> None:
        path = self._path(fact.path)
        state = self._states.setdefault(path, FileState(path))
        if isinstance(fact, Seen):
            state.see(fact.content, touch.step or 0)
        elif isinstance(fact, Moved):
            self._move(state, self._path(fact.to), touch)
        else:
            state.apply(fact, touch)

    def report(self, path: str, edit: Opaque, touch: Touch) -> None:
        """Add a change that the runner reported, unless the same call says it, or any call of an event's step."""
        state = self._states.get(self._path(path))
        place = (touch.call_id, "") if touch.call_id else (touch.step, None)
        places = [(one.call_id, "") if touch.call_id else (one.step, None) for one in state.touches] if state else []
        if place not in places:
            self.add_fact(replace(edit, path=path), touch)

    def begin_scope(self) -> None:
        """Forget the changes so far; only later ones are returned by `changes`."""
        for state in self._states.values():
            state.begin_scope()

    def changes(self, mask: Mask) -> list[FileChange]:
        """Return the changed files, ordered by path. `mask`: masks the secrets of a text."""
        states = [state for state in self._states.values() if state.touches]
        ordered = sorted(states, key=lambda state: state.path)
        return [_change_of(state, mask, has_directory=bool(self.directory)) for state in ordered]

    def _move(self, state: FileState, to: str, touch: Touch) -> None:
        """Move a file. A file that is at the new path is replaced."""
        if touch.is_unknown:
            state.apply(Opaque(state.path, "", change="modified"), touch)
            return
        target = self._states.get(to)
        if target is not None and target.exists is not False and (target.touches or target.now is not UNKNOWN):
            content = state.now
            edit = Written(to, content, True) if isinstance(content, str) else Opaque(to, "", change="modified")
            state.apply(DeletedFile(state.path), touch)
            target.apply(edit, touch)
            return
        del self._states[state.path]
        state.old_path = state.old_path or state.path
        state.path = to
        state.existed = True if state.existed is None else state.existed
        state.exists = True
        state.touches.append(touch)
        self._states[to] = state

    def _path(self, path: str) -> str:
        """Return a path relative to the working directory, if it is below it."""
        normal = _normal(path)
        if self.directory and normal.startswith(f"{self.directory}/"):
            return normal[len(self.directory) + 1 :]
        return normal


def _normal(path: str) -> str:
    if not path:
        return ""
    if _DRIVE.match(path) or path.startswith("\\\\"):
        path = path.replace("\\", "/")
    normal = posixpath.normpath(path.strip())
    return normal[1:] if normal.startswith("//") else normal


def _change_of(state: FileState, mask: Mask, *, has_directory: bool) -> FileChange:
    before, after = _masked(state.before, mask), _masked(state.now, mask)
    is_masked = any(_is_masked(raw, masked) for raw, masked in ((state.before, before), (state.now, after)))
    hunks: Sequence[Hunk] = []
    rest: Sequence[HunkLine] = []
    if state.is_whole:
        diff = diff_of(before if isinstance(before, str) else "", after if isinstance(after, str) else "")
        hunks, rest = diff.hunks, diff.rest
    else:
        hunks = [_masked_hunk(hunk, mask) for hunk in state.said_hunks()]
    counted = bool(hunks) or state.is_whole
    return FileChange(
        path=mask(state.path),
        old_path=mask(state.old_path) if state.old_path != state.path else "",
        status=_status(state),
        is_whole=state.is_whole,
        additions=sum(hunk.count("+") for hunk in hunks) if counted else state.additions,
        deletions=sum(hunk.count("-") for hunk in hunks) if counted else state.deletions,
        hunks=hunks,
        rest=rest,
        touches=state.touches,
        notes=state.notes,
        why_no_patch=_why_no_patch(
            state, is_masked=is_masked or mask(state.path) != state.path, has_directory=has_directory
        ),
        before=before,
        after=after,
    )


def _status(state: FileState) -> FileStatus:
    is_moved = bool(state.old_path) and state.old_path != state.path
    if state.existed is False and state.exists is False:
        return FileStatus.UNCHANGED
    if state.exists is False:
        return FileStatus.DELETED
    if state.existed is False:
        return FileStatus.ADDED
    if is_moved:
        return FileStatus.RENAMED
    if state.existed is None:
        return FileStatus.WRITTEN
    return FileStatus.UNCHANGED if state.is_whole and state.before == state.now else FileStatus.MODIFIED


def _why_no_patch(state: FileState, *, is_masked: bool, has_directory: bool) -> str:
    """Return why a patch cannot contain the change of a file; empty if it can."""
    is_pure_move = bool(state.old_path) and not state.is_edited
    if any(_is_outside(path, has_directory=has_directory) for path in (state.path, state.old_path)):
        return "It is outside the working directory."
    if any(touch.is_unknown for touch in state.touches) and not state.is_whole:
        return "The outcome of a call that changes it is unknown."
    if not state.is_whole and not is_pure_move:
        return _what_is_missing(state)
    if is_masked:
        return "A masked secret is in it."
    if any(isinstance(text, str) and "\0" in text for text in (state.before, state.now)):
        return "It is not a text."
    return ""


def _is_outside(path: str, *, has_directory: bool) -> bool:
    """Return whether a path is not below the working directory. Without one, absolute paths are from the root."""
    is_absolute = path.startswith("/") or _DRIVE.match(path) is not None
    return path == ".." or path.startswith("../") or (is_absolute and (has_directory or path[0] != "/"))


def _what_is_missing(state: FileState) -> str:
    if state.before is UNKNOWN and state.now is UNKNOWN:
        return "Its whole text is not known: no call wrote it, or read all of it, before it was changed."
    if state.before is UNKNOWN:
        return "Its text before the first change is not known."
    return "Its text after the last change is not known."


def _masked(content: Content, mask: Mask) -> Content:
    return mask(content) if isinstance(content, str) else content


def _is_masked(raw: Content, masked: Content) -> bool:
    return isinstance(raw, str) and (raw != masked or _MASKED.search(raw) is not None)


def _masked_hunk(hunk: Hunk, mask: Mask) -> Hunk:
    """Return a hunk with its secrets masked. If a secret spans lines, only the signs of the first lines are kept."""
    texts = [line.text for line in hunk.lines]
    whole = "\n".join(texts)
    if (masked := mask(whole)) == whole:
        return hunk
    lines: list[HunkLine] = []
    for sign in ("-", "+", " "):
        side = "\n".join(line.text for line in hunk.lines if line.sign == sign)
        lines += [HunkLine(sign, text) for text in mask(side).split("\n")] if side else []
    is_line_by_line = len(masked.split("\n")) == len(texts)
    if is_line_by_line:
        pairs = zip(hunk.lines, masked.split("\n"), strict=True)
        lines = [line._replace(text=text) for line, text in pairs]
    return replace(hunk, lines=lines)


def total(changes: Iterable[FileChange]) -> tuple[int, int]:
    """Return the numbers of added and removed lines, as far as they are known."""
    listed = list(changes)
    return sum(one.additions or 0 for one in listed), sum(one.deletions or 0 for one in listed)
