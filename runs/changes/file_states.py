"""The states of files while the calls of a run are read in order: the known text, and the calls that changed it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import assert_never

from runs.changes import apply_patch
from runs.changes.file_edits import (
    UNKNOWN,
    Content,
    DeletedFile,
    FileEdit,
    Inserted,
    Moved,
    NumberedHunk,
    Opaque,
    Patched,
    Replaced,
    Replacement,
    Written,
)
from runs.changes.unified import Hunk, HunkLine, said_hunk

#: Characters of a file above which its text is not kept.
MAX_TEXT = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Touch:
    """A call, or an event of the runner, that changed a file."""

    #: None for an event outside a step.
    step: int | None
    tool: str
    #: The ID of the call's row; empty for an event.
    call_id: str
    is_unknown: bool = False


@dataclass(slots=True)
class FileState:
    """The known state of a file: at the beginning of the scope, and after the edits read so far."""

    path: str
    before: Content = UNKNOWN
    now: Content = UNKNOWN
    #: Whether the file existed at the beginning, and exists; None if it is not known.
    existed: bool | None = None
    exists: bool | None = None
    #: The path at the beginning of the scope, if it was another one.
    old_path: str = ""
    touches: list[Touch] = field(default_factory=list)
    #: Whether a call changed the text, and not only the path.
    is_edited: bool = False
    #: The edits, each with the content before it if a hunk needs that, and its call.
    edits: list[tuple[FileEdit, Content, Touch]] = field(default_factory=list)
    #: Sentences that a reader must know to trust the diff.
    notes: list[str] = field(default_factory=list)
    additions: int | None = None
    deletions: int | None = None

    @property
    def is_whole(self) -> bool:
        """Return whether the text is known at the beginning and now."""
        return self.before is not UNKNOWN and self.now is not UNKNOWN

    def see(self, content: str | None, step: int) -> None:
        """Note the whole content that a call has seen."""
        if isinstance(content, str) and len(content) > MAX_TEXT:
            return
        known = self.now
        if self.touches and isinstance(known, str) and known.rstrip("\n") != (content or "").rstrip("\n"):
            self.note(f"Before step {step}, something other than these calls changed the file: the diff includes that.")
        elif isinstance(known, str) and content is not None and known.rstrip("\n") == content.rstrip("\n"):
            return  # not every format of an output tells the last line break
        self.now, self.exists = content, content is not None
        if not self.touches:
            self.before, self.existed = content, self.exists

    def apply(self, edit: FileEdit, touch: Touch) -> None:
        """Apply an edit other than a move."""
        is_certain = not touch.is_unknown
        if not is_certain:
            self.note(f"The outcome of the call in step {touch.step} is unknown: the change may not have been made.")
        self.is_edited = True
        self._add_edit(edit, touch)
        if is_certain and isinstance(edit, Written) and edit.existed is False and not self.touches:
            self._begin(None)
        elif not self.touches:
            self._note_existence(edit)
        after = self._after(edit) if is_certain else UNKNOWN
        if isinstance(self.now, str) and after is UNKNOWN and is_certain and not isinstance(edit, Opaque):
            self.note(f"The edit in step {touch.step} does not fit the known text: something else changed the file.")
        self.touches.append(touch)
        self.now = UNKNOWN if isinstance(after, str) and len(after) > MAX_TEXT else after
        is_gone = isinstance(edit, DeletedFile) or (isinstance(edit, Opaque) and edit.change == "deleted")
        self.exists = None if is_gone and touch.is_unknown else not is_gone

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def begin_scope(self) -> None:
        """Forget the earlier calls, and take the known text as that at the beginning."""
        self.before, self.existed, self.old_path = self.now, self.exists, ""
        self.touches, self.edits, self.notes, self.is_edited = [], [], [], False
        self.additions = self.deletions = None

    def _begin(self, content: Content) -> None:
        self.before, self.now, self.existed = content, content, content is not None

    def _note_existence(self, edit: FileEdit) -> None:
        """Note whether the file existed before its first edit."""
        if self.existed is not None:
            return
        if isinstance(edit, Written):
            self.existed = edit.existed
        elif isinstance(edit, Opaque):
            self.existed = {"added": False, "modified": True, "deleted": True}.get(edit.change)
        elif isinstance(edit, Replaced) and edit.replacements[0].old == "":
            self._begin(None)  # these tools create a file by replacing nothing
        else:
            self.existed = True

    def _after(self, edit: FileEdit) -> Content:
        """Return the content after an edit of the present content; UNKNOWN if it does not follow."""
        match edit:
            case Written():
                return edit.content
            case DeletedFile():
                return None
            case Opaque():
                return None if edit.change == "deleted" else UNKNOWN
            case Replaced():
                return _replaced(self.now, edit)
            case Inserted():
                return _inserted(self.now, edit)
            case Patched():
                text = apply_patch.apply_parts(self.now, edit.parts) if isinstance(self.now, str) else None
                return UNKNOWN if text is None else text
            case Moved():
                return self.now
        assert_never(edit)

    def said_hunks(self) -> list[Hunk]:
        """Return the edits as the calls say them, for a file whose text is not known."""
        return [
            replace(hunk, is_uncertain=touch.is_unknown)
            for edit, before, touch in self.edits
            for hunk in _said(edit, before, touch.step or 0)
        ]

    def _add_edit(self, edit: FileEdit, touch: Touch) -> None:
        self.edits.append((edit, self.now if isinstance(edit, Written | DeletedFile) else UNKNOWN, touch))
        if isinstance(edit, Opaque):
            self.note(edit.reason)
            if edit.additions is not None:
                self.additions = (self.additions or 0) + edit.additions
            if edit.deletions is not None:
                self.deletions = (self.deletions or 0) + edit.deletions


def _said(edit: FileEdit, now: Content, step: int) -> list[Hunk]:
    """Return an edit as its call says it. `now`: the content before it."""
    known = now if isinstance(now, str) else ""
    match edit:
        case Written():
            return [said_hunk(known, edit.content, step)]
        case Replaced() if not edit.hunks:
            return [said_hunk(one.old, one.new, step) for one in edit.replacements]
        case Replaced() | Opaque():
            return [_numbered(hunk, step) for hunk in edit.hunks]
        case Inserted():
            return [said_hunk("", edit.text, step)]
        case Patched():
            return [Hunk([HunkLine(line[0], line[1:]) for line in part.lines], step=step) for part in edit.parts]
        case DeletedFile():
            return [said_hunk(known, "", step)] if known else []
    return []


def _replaced(text: Content, edit: Replaced) -> Content:
    for one in edit.replacements:
        if not isinstance(text, str):
            if text is UNKNOWN or one.old != "":
                return UNKNOWN
            text = one.new
            continue
        text = _replace_once(text, one)
    return text


def _replace_once(text: str, one: Replacement) -> Content:
    if not one.old:
        return one.new if not text else UNKNOWN
    count = text.count(one.old)
    if not count or (one.times and count != one.times):
        return UNKNOWN
    old = one.old
    if one.takes_line_break and not one.new and not old.endswith("\n") and f"{old}\n" in text:
        old = f"{old}\n"
    return text.replace(old, one.new) if one.times != 1 else text.replace(old, one.new, 1)


def _inserted(text: Content, edit: Inserted) -> Content:
    """Return a text with lines inserted. Implementations differ if the inserted text ends with a line break."""
    if not isinstance(text, str) or edit.text.endswith("\n"):
        return UNKNOWN
    lines = text.split("\n")
    if not 0 <= edit.line <= len(lines):
        return UNKNOWN
    return "\n".join([*lines[: edit.line], *edit.text.split("\n"), *lines[edit.line :]])


def _numbered(hunk: NumberedHunk, step: int) -> Hunk:
    """Return a hunk that a program reported. Line 0: the lines are not known."""
    old, new = hunk.old_start, hunk.new_start
    has_lines = old > 0 or new > 0
    lines = []
    for line in hunk.lines:
        sign, text = line[:1], line[1:]
        numbers = (old if sign != "+" else None, new if sign != "-" else None) if has_lines else (None, None)
        lines.append(HunkLine(sign, text, *numbers))
        old, new = old + (sign != "+"), new + (sign != "-")
    if not has_lines:
        return Hunk(lines, step=step)
    return Hunk(lines, hunk.old_start, hunk.new_start, step=step)
