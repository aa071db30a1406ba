"""The bytes of a file, in memory or on disk. A file on disk is read in parts, so memory does not grow with it."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

#: Bytes that are read at a time.
BLOCK = 256 * 1024
#: Bytes of the longest line. The bytes of a longer line are not kept.
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
        """Take ownership of an open file's descriptor, and close it with the last reference to this object.

        Bytes appended to the file later are not read.
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
        # The closure keeps this object alive, so that its descriptor stays open.
        return StoredBytes(self.size - begin, lambda first, end: self.read(first + begin, end + begin))

    def lines(self) -> Iterator[tuple[StoredLine, bytes | None]]:
        """Yield each line that is not blank: its place, and its bytes without surrounding white space.

        A line longer than `MAX_LINE` has None instead of its bytes.
        """
        for number, (begin, size, line) in enumerate(self._lines(), start=1):
            if line is None:
                yield StoredLine(number, begin, size, 0), None
            elif stripped := line.strip():
                indent = line.index(stripped[:1])
                yield StoredLine(number, begin + indent, len(stripped), crc32(stripped)), stripped

    def line(self, place: StoredLine) -> bytes | None:
        """Read a line again. None if the file has changed there."""
        stripped = self.read(place.begin, place.begin + place.size).strip()
        return stripped if crc32(stripped) == place.checksum else None

    def _lines(self) -> Iterator[tuple[int, int, bytes | None]]:
        """Yield the offset, the size and the bytes of each line; without the bytes if it is too long."""
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
