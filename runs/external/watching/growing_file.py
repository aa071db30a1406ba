"""A session file that grows: each of its lines is read and parsed once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from runs.external.importers.base import (
    MAX_FILE,
    MIB,
    SAMPLE,
    ImportFile,
    ImportRefused,
    Reader,
    UnreadableFile,
    open_regular,
)
from runs.external.importers.reading.stored_bytes import StoredBytes

#: Bytes before the end of what was read by which a file that was written anew is recognised.
TAIL = 256


class GrowingFile(ImportFile):
    """The complete lines of a file, or a whole JSON document. If it has lines, `stored` is its beginning only."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.name)
        self.path = path
        self._has_lines = path.suffix == ".jsonl"
        #: Whether the file is complete, so that its last line may have no end.
        self.takes_rest = False
        self._inode = 0
        #: Bytes that were read, the last of them, the number of the last line, and what follows it.
        self._end, self._tail, self._number, self._rest = 0, b"", 0, b""
        self._values: list[tuple[int, Any]] = []
        self._unparsed: list[tuple[int, bytes]] = []

    def refresh(self) -> bool:
        """Read what is new, and return whether there is anything. Raises `ImportRefused`.

        The last line is left for the next time as long as it has no end.
        """
        try:
            with os.fdopen(open_regular(self.path), "rb") as file:
                return self._refresh(file)
        except OSError as error:
            raise UnreadableFile(str(self.path), f"cannot be read: {error.strerror}") from None

    @property
    def holds_content(self) -> bool:
        """Whether what was read is in memory."""
        return self.stored.size > 0

    def lines(self) -> Iterator[tuple[int, Any]]:
        """Yield the number and the JSON value of each complete line. Raises `ImportRefused`.

        With `takes_rest`, also of what follows the last line end, if it is a value.
        """
        if not self._has_lines:
            yield from super().lines()
            return
        yield from self._values
        while self._unparsed:
            number, line = self._unparsed[0]
            value = self.parse(line, number)
            del self._unparsed[0]
            self._values.append((number, value))
            yield number, value
        if self.takes_rest and self._rest:
            with suppress(ImportRefused):
                yield self._number + 1, self.parse(self._rest)

    def lines_and_readers(self) -> Iterator[tuple[int, Any, Reader | None]]:
        """Yield the same without readers, if it has lines: their values are kept."""
        if self._has_lines:
            yield from ((number, value, None) for number, value in self.lines())
        else:
            yield from super().lines_and_readers()

    def whole(self) -> Any:
        """Return the content as one JSON value, or None if it consists of lines."""
        return None if self._has_lines else super().whole()

    def _refresh(self, file: BinaryIO) -> bool:
        status = os.fstat(file.fileno())
        if status.st_size > MAX_FILE:
            raise ImportRefused(self.name, f"larger than {MAX_FILE // MIB} MiB")
        if not self._has_lines:
            content = file.read()
            changed = content != self.content()
            if changed:
                self._hold(content)
            return changed
        file.seek(max(self._end - TAIL, 0))
        if status.st_ino != self._inode or file.read(len(self._tail)) != self._tail:
            self.forget()
            self._inode = status.st_ino
        file.seek(self._end)
        return self._take(file.read())

    def _take(self, new: bytes) -> bool:
        complete = new[: new.rfind(b"\n") + 1]
        self._rest = new[len(complete) :].strip()
        if not complete:
            return False
        for line in complete[:-1].split(b"\n"):
            self._number += 1
            if stripped := line.strip():
                self._unparsed.append((self._number, stripped))
        self._end += len(complete)
        self._tail = (self._tail + complete)[-TAIL:]
        if self.stored.size < SAMPLE:
            self._hold((self.content() + complete)[:SAMPLE])
        return True

    def _hold(self, content: bytes) -> None:
        self.stored = StoredBytes.in_memory(content)
        self._document = self._is_document = None

    def forget(self) -> None:
        """Free the memory. The next `refresh` reads the whole file."""
        self._hold(b"")
        self._end, self._tail, self._number, self._rest = 0, b"", 0, b""
        self._values, self._unparsed = [], []
