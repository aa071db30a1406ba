"""What an import leaves out of a file: damaged lines, and records that their format does not allow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

#: Lines that are named; further ones are only counted.
MAX_NAMED = 20
MAX_REASON = 200


class LeftOutLine(NamedTuple):
    """A line, and why it, or a part of it, was left out."""

    line: int
    reason: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}"


@dataclass
class LeftOut:
    """The lines that were left out of a file."""

    count: int = 0
    #: The first of them.
    lines: list[LeftOutLine] = field(default_factory=list)
    #: The line that follows `lines`; None if all are named.
    first_unnamed: int | None = None
    #: The number of a last line that its program has not written to its end, which is no damage.
    cut_line: int | None = None
    _last: int = 0

    def add(self, line: int, reason: str) -> None:
        """Note a line. One with several damages counts once."""
        if line == self._last:
            return
        self._last = line
        self.count += 1
        if self.count <= MAX_NAMED:
            self.lines.append(LeftOutLine(line, reason[:MAX_REASON]))
        elif self.first_unnamed is None:
            self.first_unnamed = line

    def dump(self) -> dict[str, Any] | None:
        """Return it as JSON; None if nothing was left out."""
        if not self.count and self.cut_line is None:
            return None
        return {"count": self.count, "lines": [one._asdict() for one in self.lines], "cut_line": self.cut_line}

    def sentences(self) -> list[str]:
        """Return what was left out, in sentences for people; none if nothing was."""
        texts = [f"left out {one}" for one in self.lines]
        if self.count > len(self.lines):
            texts.append(f"left out {self.count - len(self.lines):,} further lines, from line {self.first_unnamed} on")
        if self.cut_line is not None:
            texts.append(f"line {self.cut_line} is not complete yet: it is imported with a longer version of the file")
        return texts
