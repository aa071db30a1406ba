"""The edits and observations of files that a tool call reports, and the text of a file as far as it is known."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias


class Unknown(enum.Enum):
    """The content of a file that no call reports."""

    UNKNOWN = "unknown"


UNKNOWN: Final = Unknown.UNKNOWN
#: The whole text of a file; None if the file does not exist.
Content: TypeAlias = str | Literal[Unknown.UNKNOWN] | None


@dataclass(frozen=True, slots=True)
class Replacement:
    """A text that replaces another one in a file."""

    old: str
    new: str
    #: How often the old text must occur; 0 if all occurrences are replaced, however many there are.
    times: int = 1
    #: Whether a line break after the old text is removed with it if the new text is empty, as Claude Code does.
    takes_line_break: bool = False


@dataclass(frozen=True, slots=True)
class NumberedHunk:
    """A part of a diff that names its lines, each with its sign: a space, "-" or "+"."""

    old_start: int
    new_start: int
    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Seen:
    """The whole content of a file, as a call read it or as it was before an edit."""

    path: str
    content: str | None


@dataclass(frozen=True, slots=True)
class Written:
    """A file whose whole content a call wrote. `existed`: whether the file existed before; None if it is not known."""

    path: str
    content: str
    existed: bool | None = None


@dataclass(frozen=True, slots=True)
class Replaced:
    """A file in which a call replaced texts, in this order. `hunks`: the same with line numbers, if reported."""

    path: str
    replacements: Sequence[Replacement]
    hunks: Sequence[NumberedHunk] = ()


@dataclass(frozen=True, slots=True)
class Inserted:
    """A text that a call inserted after a line of a file. Line 0 is the beginning."""

    path: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class PatchPart:
    """A part of an update by apply_patch: lines with their signs, located by their text."""

    #: Lines that come before the part, such as the head of a function, in order.
    anchors: Sequence[str]
    lines: Sequence[str]
    #: Whether the part is at the end of the file.
    is_at_end: bool = False


@dataclass(frozen=True, slots=True)
class Patched:
    """A file that a call updated by apply_patch."""

    path: str
    parts: Sequence[PatchPart]


@dataclass(frozen=True, slots=True)
class DeletedFile:
    """A file that a call deleted."""

    path: str


@dataclass(frozen=True, slots=True)
class Moved:
    """A file that a call renamed or moved."""

    path: str
    to: str


@dataclass(frozen=True, slots=True)
class Opaque:
    """A file that a call changed in a way that its arguments do not tell."""

    path: str
    #: A sentence about the change.
    reason: str
    hunks: Sequence[NumberedHunk] = ()
    #: "added", "deleted" or another word for the change; empty if it is not known.
    change: str = ""
    #: The numbers of lines that a runner reported; None without them.
    additions: int | None = None
    deletions: int | None = None


FileEdit: TypeAlias = Written | Replaced | Inserted | Patched | DeletedFile | Moved | Opaque
FileFact: TypeAlias = Seen | FileEdit
