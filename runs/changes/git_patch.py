"""Changes of files as a patch for `git apply`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from runs.changes.session_changes import FileChange, FileStatus
from runs.changes.unified import Hunk, HunkLine

_UNENDED = "\\ No newline at end of file\n"
#: Characters of a path for which git writes it in quotes.
_QUOTED = re.compile(r'[\x00-\x1f\x7f"\\]')
_ESCAPES = {"\t": "\\t", "\n": "\\n", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def patch_portions(changes: Sequence[FileChange]) -> Iterator[str]:
    """Yield the patch of the files that can be in one. Sentences about the others come first; git ignores them."""
    for change in changes:
        if change.status is not FileStatus.UNCHANGED and change.why_no_patch:
            yield f"# Not in this patch: {_one_line(change.path)}. {change.why_no_patch}\n"
    if (note := directory_note(changes)) and any(_is_in_patch(change) for change in changes):
        yield f"# {note}\n"
    for change in changes:
        if _is_in_patch(change):
            yield _file_patch(change)


def directory_note(changes: Sequence[FileChange]) -> str:
    """Return how to apply a patch with absolute paths, whose working directory is not known; empty for others."""
    paths = [change.path for change in changes if _is_in_patch(change)]
    if not any(path.startswith("/") for path in paths):
        return ""
    return "Some paths are absolute. Apply the patch in the directory / with: git apply"


def _is_in_patch(change: FileChange) -> bool:
    return not change.why_no_patch and change.status is not FileStatus.UNCHANGED


def _file_patch(change: FileChange) -> str:
    old, new = _name("a", change.old_path or change.path), _name("b", change.path)
    if change.status is FileStatus.ADDED:
        old = _name("a", change.path)
    lines = [f"diff --git {old} {new}\n"]
    if change.status is FileStatus.ADDED:
        lines.append("new file mode 100644\n")
    elif change.status is FileStatus.DELETED:
        new = _name("b", change.old_path or change.path)
        lines = [f"diff --git {old} {new}\n", "deleted file mode 100644\n"]
    elif change.old_path:
        lines += [] if change.hunks else ["similarity index 100%\n"]
        lines.append(f"rename from {_name('', change.old_path)}\nrename to {_name('', change.path)}\n")
    if change.hunks:
        source = "/dev/null" if change.status is FileStatus.ADDED else _spaced(old)
        target = "/dev/null" if change.status is FileStatus.DELETED else _spaced(new)
        lines.append(f"--- {source}\n+++ {target}\n")
    lines += [hunk_text(hunk) for hunk in change.hunks]
    return "".join(lines)


def hunk_text(hunk: Hunk) -> str:
    """Return a hunk as text."""
    head = hunk_head(hunk)
    return f"{head}\n" + "".join(_line(line) for line in hunk.lines)


def hunk_head(hunk: Hunk) -> str:
    """Return the first line of a hunk. Without line numbers it is `@@`."""
    if hunk.old_start is None or hunk.new_start is None:
        return "@@ line numbers unknown @@"
    old, new = hunk.count("-", " "), hunk.count("+", " ")
    return f"@@ -{_span(hunk.old_start, old)} +{_span(hunk.new_start, new)} @@"


def _span(start: int, count: int) -> str:
    return str(start) if count == 1 else f"{start},{count}"


def _line(line: HunkLine) -> str:
    return f"{line.sign}{line.text}\n{_UNENDED if line.is_unended else ''}"


def _name(side: str, path: str) -> str:
    """Return a path below `a` or `b` as git writes it."""
    name = f"{side}/{path.lstrip('/')}" if side else path.lstrip("/")
    if not _QUOTED.search(name):
        return name
    return '"' + _QUOTED.sub(lambda match: _ESCAPES.get(match[0], f"\\{ord(match[0]):03o}"), name) + '"'


def _spaced(name: str) -> str:
    """Return a name for a line without another end than a tab, which git writes after a name with a space."""
    return f"{name}\t" if " " in name and not name.startswith('"') else name


def _one_line(text: str) -> str:
    return " ".join(text.split())
