"""A session file that grows, and its items while the last answer may be incomplete.

Unless the file is very large, each line is read and parsed once.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart

from runs.external.event_input import IncomingEvent
from runs.external.importers.answer_events import event_id
from runs.external.importers.base import (
    MAX_DOCUMENT,
    MAX_FILE,
    MIB,
    GrowingEvent,
    ImportedRun,
    ImportFile,
    ImportRefused,
    Item,
    Record,
    UnreadableFile,
    open_regular,
    read_json,
    without_bom,
)
from runs.external.importers.stored_lines import (
    BLOCK,
    BOM,
    MAX_LINE,
    LeftOut,
    StoredBytes,
    StoredLine,
    Whole,
    split_line,
)
from timeline.events import EventType
from timeline.events.llm import LlmText, LlmThinking

#: How many of the last read bytes are remembered. If the file has other bytes there, it was rewritten.
TAIL = 256
#: Maximum bytes of a file whose records are kept in memory. Records of larger files are read from disk each time.
MAX_KEPT = 64 * MIB


class GrowingFile(ImportFile):
    """The complete lines of a file, or a whole JSON document."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.name)
        self.path: Path = path
        self._has_lines = path.suffix == ".jsonl"
        #: Whether the file is taken to be complete, so that a last line without a line end counts, too.
        self.has_ended = False
        self._inode = 0
        #: The size of the complete lines in bytes, their last bytes, and the incomplete line after them.
        self._end, self._tail, self._rest = 0, b"", b""
        #: The records, and the refusals of damaged parts, in the order of the file.
        self._kept: list[Record | ImportRefused] = []
        #: The number and the bytes of each line that is not parsed yet.
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
        """Return whether the file has content that was read since `forget`."""
        return self.stored.size > 0

    @property
    def keeps_records(self) -> bool:
        """Return whether the file is so small that its records are kept in memory."""
        return not self._has_lines or self._end <= MAX_KEPT

    def records(self) -> Iterator[Record]:
        """Yield the records of all complete lines, without damaged parts. If the file has ended, all lines count."""
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
        pieces = split_line(self._rest, read_json) if self.has_ended and self._rest else ()
        for part, piece in enumerate((piece for piece in pieces if isinstance(piece, Whole)), start=1):
            yield Record(number + 1, part, piece.value, None)

    def _kept_records(self) -> Iterator[Record]:
        """Parse the new lines, and yield all records in memory."""
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
        """Read the new content of the open file. Returns whether there is any."""
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
        return self._read_new_lines(file, status.st_size)

    def _read_new_lines(self, file: BinaryIO, size: int) -> bool:
        """Read the lines that follow the known ones. Returns whether there are any."""
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
        """Set the content, and forget all values that were derived from the earlier content."""
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
        index = file.read(end - start).rfind(b"\n")
        if index >= 0:
            return start + index + 1
        end = start
    return begin


def live_items(read: Callable[[], Iterable[Item]]) -> Iterator[Item]:
    """Yield the items of a running session. An incomplete answer has only its texts, without its end and its calls.

    `read` returns the items. It is called twice, and must return the same items.
    """
    incomplete = _incomplete_answers(read())
    for item in read():
        answer = incomplete.get(item.run_ref)
        if answer is None or isinstance(item, ImportedRun):
            yield item
        elif item.event_id == answer.event_id:
            yield from _texts(answer)
        elif not _is_call_of(answer, item):
            yield item


def _incomplete_answers(items: Iterable[Item]) -> dict[str, GrowingEvent]:
    """Return the last answers that have no finish reason and are followed by nothing but their calls, by `run_ref`."""
    last: dict[str, GrowingEvent] = {}
    for item in items:
        if isinstance(item, ImportedRun) or item.type == EventType.IMPORT_LEFT_OUT:
            continue
        if isinstance(item, GrowingEvent):
            last[item.run_ref] = item
        elif item.run_ref in last and not _is_call_of(last[item.run_ref], item):
            del last[item.run_ref]
    return {run_ref: answer for run_ref, answer in last.items() if not _has_finish_reason(answer)}


def _is_call_of(answer: GrowingEvent, event: IncomingEvent) -> bool:
    """Return whether the event is the start of a call of the answer."""
    if event.type != EventType.TOOL_START or not isinstance(answer.message, ModelResponse):
        return False
    return getattr(event.payload, "call_id", None) in {call.tool_call_id for call in answer.message.tool_calls}


def _has_finish_reason(answer: GrowingEvent) -> bool:
    return isinstance(answer.message, ModelResponse) and answer.message.finish_reason is not None


def _texts(answer: GrowingEvent) -> Iterator[IncomingEvent]:
    """Yield the texts and the thinking of an answer as separate events."""
    for number, parts in enumerate(answer.pieces()):
        for index, part in enumerate(parts):
            if isinstance(part, ThinkingPart | TextPart) and part.content:
                payload = (LlmThinking if isinstance(part, ThinkingPart) else LlmText)(text=part.content)
                piece_id = event_id(f"piece:{answer.begin_id}:{number}:{index}")
                yield IncomingEvent.of(answer.run_ref, payload, piece_id, answer.ts)
