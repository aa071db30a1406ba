"""A growing session file. Unless it is very large, each line is read and parsed once."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from runs.external.importers.base import (
    MAX_DOCUMENT,
    MAX_FILE,
    MIB,
    ImportFile,
    ImportRefused,
    Record,
    UnreadableFile,
    open_regular,
    read_json,
    without_bom,
)
from runs.external.importers.reading.json_lines import BOM, Whole, split_line
from runs.external.importers.reading.left_out import LeftOut
from runs.external.importers.reading.stored_bytes import BLOCK, MAX_LINE, StoredBytes, StoredLine

#: Bytes before the end of the read part. If they differ, the file was rewritten.
TAIL = 256
#: Bytes of the largest file whose records are kept in memory. Records of larger files are read from disk each time.
MAX_KEPT = 64 * MIB


class GrowingFile(ImportFile):
    """The complete lines of a file, or a whole JSON document."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.name)
        self.path: Path = path
        self._has_lines = path.suffix == ".jsonl"
        #: Whether the file is complete, so that its last line may have no line end.
        self.takes_rest = False
        self._inode = 0
        #: The size of the complete lines, their last bytes, and the bytes that follow them.
        self._end, self._tail, self._rest = 0, b"", b""
        #: The kept records, the refusals of damaged parts, and the lines that are not parsed yet.
        self._kept: list[Record | ImportRefused] = []
        self._unparsed: deque[tuple[int, bytes]] = deque()
        #: The number of the last line, if its records are kept.
        self._number = 0

    def refresh(self) -> bool:
        """Read new content, and return whether there was any. Raises `ImportRefused`.

        A last line without a line end is left for the next call.
        """
        try:
            with os.fdopen(open_regular(self.path), "rb") as file:
                return self._refresh(file)
        except OSError as error:
            raise self._unreadable(error) from None

    @property
    def holds_content(self) -> bool:
        """Return whether content is held: in memory, or as a reference to the file."""
        return self.stored.size > 0

    @property
    def keeps_records(self) -> bool:
        """Return whether the file is so small that its records are kept in memory."""
        return not self._has_lines or self._end <= MAX_KEPT

    def records(self) -> Iterator[Record]:
        """Yield the records of each complete line, without damaged parts.

        With `takes_rest`, also the records after the last line end.
        """
        if not self._has_lines:
            yield from super().records()
            return
        number = 0
        if self.keeps_records:
            yield from self._kept_records()
            number = self._number
        else:
            for record in super().records():
                number = record.line
                yield record
        pieces = split_line(self._rest, read_json) if self.takes_rest and self._rest else ()
        for part, piece in enumerate((piece for piece in pieces if isinstance(piece, Whole)), start=1):
            yield Record(number + 1, part, piece.value, None)

    def _kept_records(self) -> Iterator[Record]:
        while self._unparsed:
            number, line = self._unparsed.popleft()
            place = StoredLine(number, 0, len(line), 0)
            for piece in self._pieces(place, line):
                self._kept.append(piece._replace(read=None) if isinstance(piece, Record) else piece)
        self.left_out = LeftOut()
        for piece in self._kept:
            if isinstance(piece, Record):
                yield piece
            else:
                self.leave_out(piece)

    def whole(self) -> Any:
        """Return the content as one JSON value, or None if it consists of lines."""
        return None if self._has_lines else super().whole()

    def _refresh(self, file: BinaryIO) -> bool:
        status = os.fstat(file.fileno())
        limit = MAX_FILE if self._has_lines else MAX_DOCUMENT
        if status.st_size > limit:
            raise ImportRefused(self.name, f"larger than {limit // MIB} MiB")
        if not self._has_lines:
            content = file.read()
            changed = content != self.content()
            if changed:
                self._hold(StoredBytes.in_memory(content))
            return changed
        file.seek(max(self._end - TAIL, 0))
        if status.st_ino != self._inode or file.read(len(self._tail)) != self._tail:
            self.forget()
            self._inode = status.st_ino
        return self._take(file, status.st_size)

    def _take(self, file: BinaryIO, size: int) -> bool:
        """Read the bytes that follow the known lines."""
        end = _end_of_lines(file, self._end, size)
        file.seek(end)
        self._rest = file.read(size - end).strip() if size - end <= MAX_LINE else b""
        if end == self._end:
            return False
        if end <= MAX_KEPT:
            file.seek(self._end)
            for line in file.read(end - self._end)[:-1].split(b"\n"):
                self._number += 1
                if stripped := (line.removeprefix(BOM) if self._number == 1 else line).strip():
                    self._unparsed.append((self._number, stripped))
        else:
            self._kept, self._unparsed = [], deque()
        self._end = end
        file.seek(max(end - TAIL, 0))
        self._tail = file.read(min(TAIL, end))
        self._hold(StoredBytes(end, self._read_part))
        return True

    def _read_part(self, begin: int, end: int) -> bytes:
        """Read a part of the file. The file is not kept open, because very many files may be followed."""
        try:
            descriptor = open_regular(self.path)
            try:
                return os.pread(descriptor, end - begin, begin)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: OSError) -> UnreadableFile:
        return UnreadableFile(str(self.path), f"cannot be read: {error.strerror}")

    def _hold(self, stored: StoredBytes) -> None:
        self.stored = without_bom(stored)
        self._document = self._is_document = self._first_lines = None

    def forget(self) -> None:
        """Free the memory. The next `refresh` reads the whole file."""
        self._hold(StoredBytes.in_memory(b""))
        self._end, self._tail, self._number, self._rest = 0, b"", 0, b""
        self._kept, self._unparsed = [], deque()


def _end_of_lines(file: BinaryIO, begin: int, end: int) -> int:
    """Return the offset after the last line end between two offsets; `begin` without a line end."""
    while end > begin:
        start = max(end - BLOCK, begin)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return begin
