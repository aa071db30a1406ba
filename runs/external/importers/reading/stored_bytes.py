"""The bytes of a file, in memory or on disk. What is on disk is read in parts, so memory does not grow with it."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

#: Bytes that are read at a time.
BLOCK = 256 * 1024


@dataclass(frozen=True, slots=True, weakref_slot=True)
class StoredBytes:
    """A number of bytes, any part of which can be read again and again."""

    size: int
    #: Returns the bytes from one offset up to another.
    read: Callable[[int, int], bytes]

    @classmethod
    def in_memory(cls, content: bytes) -> StoredBytes:
        return cls(len(content), lambda begin, end: content[begin:end])

    @classmethod
    def on_disk(cls, descriptor: int) -> StoredBytes:
        """Take over the descriptor of an open file, which is closed with the last reference to this object.

        What the file grows by afterwards is not seen.
        """
        stored = cls(os.fstat(descriptor).st_size, lambda begin, end: os.pread(descriptor, end - begin, begin))
        weakref.finalize(stored, os.close, descriptor)
        return stored

    def blocks(self, begin: int = 0) -> Iterator[bytes]:
        """Yield the bytes from an offset on, in blocks."""
        while begin < self.size and (block := self.read(begin, min(begin + BLOCK, self.size))):
            yield block
            begin += len(block)

    def lines(self) -> Iterator[tuple[StoredLine, bytes]]:
        """Yield each line that is not blank: its place, and its bytes without white space around them."""
        for number, (begin, line) in enumerate(self._lines(), start=1):
            if stripped := line.strip():
                yield StoredLine(number, begin, len(line), crc32(stripped)), stripped

    def line(self, place: StoredLine) -> bytes | None:
        """Read a line again. None if the file has changed there."""
        stripped = self.read(place.begin, place.begin + place.size).strip()
        return stripped if crc32(stripped) == place.checksum else None

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield each line with its offset."""
        begin, parts = 0, list[bytes]()
        for block in self.blocks():
            *ends, rest = block.split(b"\n")
            for end in ends:
                line = b"".join((*parts, end))
                yield begin, line
                begin, parts = begin + len(line) + 1, []
            parts.append(rest)
        if any(parts):
            yield begin, b"".join(parts)


class StoredLine(NamedTuple):
    """Where a line is, and by what a change of it is noticed."""

    #: From 1.
    number: int
    begin: int
    #: In bytes, without its end.
    size: int
    checksum: int
