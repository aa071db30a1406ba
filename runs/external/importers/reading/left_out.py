"""The parts of a file that an import left out: damaged lines, and records that their format does not allow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

#: Lines that are listed; the others are only counted.
MAX_NAMED = 20
MAX_REASON = 200


class LeftOutLine(NamedTuple):
    """A line, and why it (or a part of it) was left out."""

    line: int
    reason: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}"


@dataclass
class LeftOut:
    """The lines of a file that were left out."""

    count: int = 0
    #: The first lines, up to `MAX_NAMED`.
    lines: list[LeftOutLine] = field(default_factory=list)
    #: The line that follows `lines`; None if all are listed.
    first_unnamed: int | None = None
    #: The number of a last line that its program has not finished writing. It does not count as damage.
    cut_line: int | None = None
    _last: int = 0

    def add(self, line: int, reason: str) -> None:
        """Note a line. A line with several damages counts once."""
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
        """Return sentences for people about the omitted lines; none if nothing was left out."""
        texts = [f"left out {one}" for one in self.lines]
        if self.count > len(self.lines):
            texts.append(f"left out {self.count - len(self.lines):,} further lines, from line {self.first_unnamed} on")
        if self.cut_line is not None:
            texts.append(f"line {self.cut_line} is not complete yet: it is imported with a longer version of the file")
        return texts
