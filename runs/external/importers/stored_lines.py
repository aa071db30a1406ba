"""The bytes of a file, in memory or on disk; the records of its lines; and the lines that an import left out.

A file on disk is read in parts, so memory does not grow with the file. Programs append to their files without locks,
and may be killed. So a line may have two records, or a truncated record and then another one. All whole records are
read; the parts between them are damaged.
"""

from __future__ import annotations

import json
import os
import re
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from zlib import crc32

from agentops.base.http.strict_json import NotJson

#: Bytes that are read at a time.
BLOCK = 256 * 1024
#: Maximum bytes of a line. A longer line is left out.
MAX_LINE = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, weakref_slot=True)
class StoredBytes:
    """A byte sequence of fixed size. Any part of it can be read repeatedly."""

    size: int
    #: Returns the bytes from one offset up to another.
    read: Callable[[int, int], bytes]

    @classmethod
    def in_memory(cls, content: bytes) -> StoredBytes:
        return cls(len(content), lambda begin, end: content[begin:end])

    @classmethod
    def on_disk(cls, descriptor: int) -> StoredBytes:
        """Return the bytes of an open file, without bytes that are appended later.

        The descriptor is closed with the last reference to the returned object.
        """
        stored = cls(os.fstat(descriptor).st_size, lambda begin, end: os.pread(descriptor, end - begin, begin))
        weakref.finalize(stored, os.close, descriptor)
        return stored

    def blocks(self, begin: int = 0) -> Iterator[bytes]:
        """Yield the bytes from an offset on, in blocks."""
        while begin < self.size and (block := self.read(begin, min(begin + BLOCK, self.size))):
            yield block
            begin += len(block)

    def after(self, begin: int) -> StoredBytes:
        """Return the bytes from an offset on."""
        # The function refers to this object, so that its descriptor stays open.
        return StoredBytes(self.size - begin, lambda first, end: self.read(first + begin, end + begin))

    def lines(self) -> Iterator[tuple[StoredLine, bytes | None]]:
        """Yield the place of each line that is not blank, and its bytes without surrounding white space.

        A line longer than `MAX_LINE` has None instead of its bytes.
        """
        for number, (begin, size, line) in enumerate(self._lines(), start=1):
            if line is None:
                yield StoredLine(number, begin, size, 0), None
            elif stripped := line.strip():
                indent = line.index(stripped[:1])
                yield StoredLine(number, begin + indent, len(stripped), crc32(stripped)), stripped

    def line(self, place: StoredLine) -> bytes | None:
        """Read a line again; None if it has changed."""
        stripped = self.read(place.begin, place.begin + place.size).strip()
        return stripped if crc32(stripped) == place.checksum else None

    def _lines(self) -> Iterator[tuple[int, int, bytes | None]]:
        """Yield the offset, the size and the bytes of each line. A too long line has None instead of its bytes."""
        begin, size, parts = 0, 0, list[bytes]()
        for block in self.blocks():
            *ends, rest = block.split(b"\n")
            for end in ends:
                size += len(end)
                yield begin, size, b"".join((*parts, end)) if size <= MAX_LINE else None
                begin, size, parts = begin + size + 1, 0, []
            size += len(rest)
            parts.append(rest)
            if size > MAX_LINE:
                parts.clear()
        if size:
            yield begin, size, b"".join(parts) if size <= MAX_LINE else None


class StoredLine(NamedTuple):
    """The place of a line, and a digest that detects a change of it."""

    #: From 1.
    number: int
    begin: int
    #: In bytes, without the line end and surrounding white space.
    size: int
    checksum: int

    @property
    def end(self) -> int:
        return self.begin + self.size

    def part(self, line: bytes, begin: int, end: int) -> StoredLine:
        """Return the place of a part of the line. `line`: the bytes of the line."""
        if (begin, end) == (0, len(line)):
            return self
        return StoredLine(self.number, self.begin + begin, end - begin, crc32(line[begin:end]))


#: The byte order mark that some programs write at the beginning of a file.
BOM = b"\xef\xbb\xbf"
_SPACES = " \t\r\n"
_DECODER = json.JSONDecoder()
#: Matches where a record may begin inside a damaged line.
_BEGIN = re.compile(r"\{\s*\"")
#: How many places after damage are tried as the beginning of a record. The limit keeps the work linear.
_ATTEMPTS = 8
#: NUL bytes, and white space between them.
_NUL = re.compile("\0[\0 \t\r]*")
NUL_BYTES = "NUL bytes in place of a record"


class Whole(NamedTuple):
    """A whole record, with its place in the line, in bytes."""

    begin: int
    end: int
    value: Any


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged part of a line."""

    reason: str
    #: The JSON pointer of the cause.
    pointer: str = ""


#: Returns a JSON value. Raises `NotJson`.
Parser = Callable[[bytes], Any]


def split_line(line: bytes, parse: Parser) -> Iterator[Whole | Damage]:
    """Yield the records of a line, and the damaged parts between them, in order."""
    try:
        yield Whole(0, len(line), parse(line))
    except NotJson as error:
        if error.code != "invalid_json":
            yield _damage(error)
        else:
            yield from _split(line.decode(), parse, error)


def _split(text: str, parse: Parser, error_of_line: NotJson) -> Iterator[Whole | Damage]:
    """Yield the records and the damaged parts of a line that is not one record: `error_of_line` says why."""
    at, is_first = 0, True
    # The character up to which bytes were counted, and their number. Each character is counted once.
    counted, byte_offset = 0, 0
    while (at := _skip(text, at)) < len(text):
        if nul := _NUL.match(text, at):
            yield Damage(NUL_BYTES)
            at = nul.end()
            continue
        end, broken_at = _end_of_object(text, at)
        if end is not None:
            counted, byte_offset = at, byte_offset + len(text[counted:at].encode())
            yield _record(text[at:end].encode(), byte_offset, parse)
            at, is_first = end, False
            continue
        yield _damage(error_of_line) if is_first else Damage("what follows the first record is not a record")
        is_first = False
        at = _next_records(text, at, broken_at)


def _skip(text: str, at: int) -> int:
    """Return the position of the next character from `at` on that is not a space."""
    while at < len(text) and text[at] in _SPACES:
        at += 1
    return at


def _record(record: bytes, begin: int, parse: Parser) -> Whole | Damage:
    try:
        return Whole(begin, begin + len(record), parse(record))
    except NotJson as error:
        return _damage(error)


def _end_of_object(text: str, at: int) -> tuple[int | None, int]:
    """Return the end of the JSON object that begins at `at`, and 0; if it is damaged, None and where it is damaged."""
    if text[at] != "{":
        return None, at
    try:
        return _DECODER.raw_decode(text, at)[1], 0
    except json.JSONDecodeError as error:
        return None, error.pos
    except (RecursionError, ValueError):  # such as a number of too many digits
        return None, len(text)


def _next_records(text: str, at: int, broken_at: int) -> int:
    """Return the position from which on the rest of the line consists of whole records; the end of the line if none.

    `at`, `broken_at`: where a damaged record begins, and where the parser failed. If the record was cut inside a
    string, the string ends with the first quotation mark of the next record, which begins just before `broken_at`. A
    record that is cut by the end of the line is not searched, because objects inside of it are not records.
    """
    candidates = [begin for begin in (text.rfind("{", at + 1, broken_at + 1),) if begin > at]
    candidates += [match.start() for _, match in zip(range(_ATTEMPTS), _BEGIN.finditer(text, broken_at), strict=False)]
    for begin in candidates if broken_at < len(text.rstrip()) else ():
        end: int | None = begin
        while end is not None and (end := _skip(text, end)) < len(text):
            end, _ = _end_of_object(text, end)
        if end is not None:
            return begin
    return len(text)


def _damage(error: NotJson) -> Damage:
    # The parser sees one line. The caller adds the number of the line in the file.
    return Damage(str(error).replace("line 1, column", "column"), error.data.get("pointer", ""))


#: Maximum lines that are listed. The others are only counted.
MAX_NAMED = 20
#: Maximum characters of the reason for leaving a line out.
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
        """Note a line. A line with several damaged parts counts once."""
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
        """Return sentences for people about the lines that were left out; empty if none was."""
        texts = [f"left out {one}" for one in self.lines]
        if self.count > len(self.lines):
            texts.append(f"left out {self.count - len(self.lines):,} further lines, from line {self.first_unnamed} on")
        if self.cut_line is not None:
            texts.append(f"line {self.cut_line} is not complete yet: it is imported with a longer version of the file")
        return texts
