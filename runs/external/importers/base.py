"""The interface of importers: an importer recognises a format by its content, and reads a file as runs and events.

An importer does not use the database. It yields the events that a runner would send, with the exact messages. Each has
a stable `event_id`, which is the same whenever the file, or a longer version of it, is read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path, PurePath, PureWindowsPath
from typing import Any, NamedTuple, Protocol

from pydantic_ai.messages import ModelResponse, ModelResponsePart

from agentops.base.fair_shares import WorkBudget
from agentops.base.http import strict_json
from agentops.base.redaction.redact import BARE
from runs.external.event_input import IncomingEvent
from runs.external.importers.stored_lines import (
    BLOCK,
    BOM,
    MAX_LINE,
    Damage,
    LeftOut,
    StoredBytes,
    StoredLine,
    split_line,
)
from runs.lifecycle.title_limits import MAX_LABEL
from runs.statuses import RunStatus

MIB = 1024 * 1024
#: Maximum bytes of a file of lines, which is read line by line.
MAX_FILE = 1024 * MIB
#: Maximum bytes of a document, which is read as a whole.
MAX_DOCUMENT = 64 * MIB
#: Maximum characters of the working directory of a session.
MAX_FOLDER = 1024
#: A format is recognised by the first `FIRST_RECORDS` records in the first `FIRST_LINES` lines or `SAMPLE` bytes.
FIRST_RECORDS, FIRST_LINES, SAMPLE = 20, 100, 16 * MIB


def read_json(content: bytes) -> Any:
    """Return a JSON value without NUL characters and unpaired surrogates, which no column can store.

    Raises `NotJson`.
    """
    value = strict_json.parse(content, strict_json.IMPORTED)
    is_storable = rb"\u0000" not in content and not strict_json.has_lone_surrogate(content)
    return value if is_storable else BARE.clean(value)[0]


class ImportRefused(ValueError):
    """A file that cannot be imported. The message names the file, and the line or the JSON pointer of the cause."""

    #: The machine-readable reason.
    code = "invalid_file"

    def __init__(self, file: str, detail: str, *, line: int | None = None, pointer: str = "") -> None:
        place = f"{file}:{line}" if line is not None else file
        super().__init__(f"{place}: {pointer + ': ' if pointer else ''}{detail}")
        self.file = file
        self.line = line
        self.pointer = pointer
        self.detail = detail


@dataclass(frozen=True, kw_only=True)
class ImportedRun:
    """The head of a run. An importer yields it before the events of the run, and parents before their children."""

    #: The ID of the run in its program, such as a session ID, prefixed with the format: `claude-code:<session>`.
    run_ref: str
    agent: str
    model: str = ""
    title: str = ""
    session_id: str = ""
    #: When the run began. None: unknown.
    created_at: datetime | None = None
    #: The run that spawned this one, and the call in it that requested this one.
    parent_ref: str = ""
    parent_call_id: str = ""
    #: The run of which this one is a fork, if the file names it.
    forked_ref: str = ""
    labels: Sequence[str] = ()
    #: The working directory of the session; empty if the file does not name it.
    folder: str = ""
    #: The final status. None: the session may continue and its file may grow.
    ended: RunStatus | None = None
    #: The tokens (a usage object) and US dollars of an ended run whose messages do not report them.
    usage: Mapping[str, Any] = field(default_factory=dict)
    cost_usd: object = None
    #: The reason of the failure.
    error: str = ""


@dataclass(slots=True, kw_only=True)
class GrowingEvent(IncomingEvent):
    """The end of an answer that its program writes in pieces, so that a file may end in the middle of the answer."""

    #: The ID of the event that begins the answer. It is stored with the answer's first pieces.
    begin_id: str
    #: The ID of this event if the file ends after the answer's first piece, after its second, and so on.
    shorter_ids: Sequence[str]
    #: Returns this event without a number of the answer's first pieces.
    rest: Callable[[int], IncomingEvent]

    def possible_ids(self) -> list[str]:
        return [*IncomingEvent.possible_ids(self), self.begin_id, *self.shorter_ids]

    def new_part(self, known: Container[str], open_id: str | None) -> IncomingEvent | None:
        """Return the pieces that are not stored; None if a longer version of the file was imported before."""
        if self.begin_id not in known:
            return self
        pieces = [count for count, event_id in enumerate(self.shorter_ids, start=1) if event_id in known]
        if pieces:
            return self.rest(pieces[-1])
        return self if self.begin_id == open_id else None

    def pieces(self) -> Iterator[Sequence[ModelResponsePart]]:
        """Yield the message parts of each piece."""
        rests = [self, *(self.rest(count) for count in range(1, len(self.shorter_ids) + 1))]
        parts = [one.message.parts if isinstance(one.message, ModelResponse) else () for one in rests]
        for number, rest in enumerate(parts):
            following = parts[number + 1] if number + 1 < len(parts) else ()
            if len(following) > len(rest):
                return  # from here on, `rest` returns the same pieces again, without their late usage
            yield rest[: len(rest) - len(following)]


class NothingToImport(ImportRefused):
    """A file of a known format without messages. If the file grows, a later import may succeed."""

    code = "nothing_to_import"


class UnreadableFile(ImportRefused):
    """A path that is not a regular file, or that cannot be read."""


class FileWasRewritten(ImportRefused):
    """A file that was rewritten while it was being read."""


Item = ImportedRun | IncomingEvent
#: Returns the JSON value of a record.
Reader = Callable[[], Any]


class Record(NamedTuple):
    """A record of a file of lines."""

    #: The number of its line, from 1.
    line: int
    #: The number of the record in its line, from 1.
    part: int
    value: Any
    #: Reads the record again, so that callers need not keep its value. None: the file keeps the value.
    read: Reader | None

    @property
    def name(self) -> str:
        """Return the place of the record, which is identical in all versions of the file."""
        return str(self.line) if self.part == 1 else f"{self.line}.{self.part}"


def usable_folder(folder: str) -> str:
    """Return a working directory; empty if it is too long."""
    return folder if len(folder) <= MAX_FOLDER else ""


def folder_labels(folder: str, branch: str = "") -> list[str]:
    """Return the labels for the working directory of a session and for its Git branch; either may be empty."""
    name = PureWindowsPath(folder).name if "\\" in folder else PurePath(folder).name
    return [f"{label}:{value}"[:MAX_LABEL] for label, value in (("folder", name), ("branch", branch)) if value]


def without_bom(stored: StoredBytes) -> StoredBytes:
    """Return a file's bytes without the byte order mark that some programs write at the beginning."""
    return stored.after(len(BOM)) if stored.read(0, len(BOM)) == BOM else stored


NOT_A_FILE = "not a file that can be read"


def open_regular(path: Path) -> int:
    """Return a descriptor of a regular file. Raises `UnreadableFile`, and `OSError`.

    Does not block on a pipe. The kind is checked on the open descriptor, so the file cannot be swapped after the check.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnreadableFile(str(path), NOT_A_FILE)
    return descriptor


class ImportFile:
    """A file to import: its name, its bytes, and its content as JSON.

    A file of lines is streamed line by line; a document is read into memory as a whole.
    """

    def __init__(self, name: str, content: bytes | StoredBytes = b"", *, is_strict: bool = False) -> None:
        """Create a file. `is_strict`: refuse the whole file if one line is damaged."""
        self.name = name
        self.stored = without_bom(StoredBytes.in_memory(content) if isinstance(content, bytes) else content)
        #: Its path, so that related files in its folder can be read; None for an upload.
        self.path: Path | None = None
        self.is_strict = is_strict
        #: The records that the last reading left out.
        self.left_out = LeftOut()
        self._first_lines: list[Any] | None = None
        self._document: Any = None
        self._is_document: bool | None = None
        #: The reader's work budget; None: no limit. See runs.external.importers.guarded_reading.
        self.budget: WorkBudget | None = None

    @classmethod
    def open(cls, path: Path, *, is_strict: bool = False) -> ImportFile:
        """Open a regular file. Raises `ImportRefused`."""
        try:
            if not path.exists():
                raise UnreadableFile(str(path), NOT_A_FILE)
            file = cls(path.name, StoredBytes.on_disk(open_regular(path)), is_strict=is_strict)
            file.path = path
            return file
        except OSError as error:
            raise UnreadableFile(str(path), f"cannot be read: {error.strerror}") from None

    def content(self) -> bytes:
        """Read the whole file. Raises `ImportRefused` if the file exceeds `MAX_DOCUMENT`."""
        if self.stored.size > MAX_DOCUMENT:
            raise self.refuse(f"larger than {MAX_DOCUMENT // MIB} MiB, the limit of a file that is one document")
        return self.stored.read(0, self.stored.size)

    def beginning(self, size: int) -> bytes:
        """Return the first `size` bytes."""
        return self.stored.read(0, min(size, self.stored.size))

    def document(self) -> Any:
        """Return the whole content as one JSON value. Raises `ImportRefused`."""
        if self._document is None:
            self._document = self.parse(self.content())
        return self._document

    def lines(self) -> Iterator[tuple[int, Any]]:
        """Yield the line number (from 1) and the JSON value of each record: see `records`. For added importers."""
        for record in self.records():
            yield record.line, record.value

    def records(self) -> Iterator[Record]:
        """Yield the records of all lines, without damaged parts. Raises `ImportRefused`.

        A line may have several records. `left_out` names the damaged lines.
        """
        if self.stored.size > MAX_FILE:
            raise self.refuse(f"larger than {MAX_FILE // MIB} MiB")
        self.left_out, self._first_lines = LeftOut(), None
        for place, line in self.stored.lines():
            for piece in self._pieces(place, line):
                if isinstance(piece, Record):
                    yield piece
                elif self._is_unended(place) and not self.is_strict:
                    self.left_out.cut_line = place.number
                else:
                    self.leave_out(piece)

    def _pieces(self, place: StoredLine, line: bytes | None) -> Iterator[Record | ImportRefused]:
        """Yield the records of a line, and a refusal for each damaged part."""
        if line is None:
            yield self.refuse(f"longer than {MAX_LINE // MIB} MiB", line=place.number)
            return
        part = 0
        for piece in split_line(line, read_json):
            if isinstance(piece, Damage):
                yield self.refuse(piece.reason, line=place.number, pointer=piece.pointer)
            else:
                part += 1
                reader = _RecordReader(self, place.part(line, piece.begin, piece.end))
                yield Record(place.number, part, piece.value, reader)

    def _is_unended(self, place: StoredLine) -> bool:
        """Return whether a line is the last one and has no line end."""
        return b"\n" not in self.stored.read(place.end, min(place.end + BLOCK, self.stored.size))

    def leave_out(self, refusal: ImportRefused) -> None:
        """Record that a line is left out. Raises the refusal instead if it has no line, or if the file is strict."""
        if self.is_strict or refusal.line is None or isinstance(refusal, FileWasRewritten):
            raise refusal
        reason = f"{refusal.pointer}: {refusal.detail}" if refusal.pointer else refusal.detail
        self.left_out.add(refusal.line, reason)

    def first_lines(self) -> list[Any]:
        """Return the values of the first records, without invalid JSON. For `detect`."""
        if self._first_lines is None:
            self._first_lines = self._read_first_lines()
        return self._first_lines

    def _read_first_lines(self) -> list[Any]:
        values: list[Any] = []
        for place, line in self.stored.lines():
            pieces = split_line(line, read_json) if line is not None else iter(())
            whole = (piece.value for piece in pieces if not isinstance(piece, Damage))
            # Reads no further records, because a line may have very many.
            values += islice(whole, FIRST_RECORDS - len(values))
            if len(values) == FIRST_RECORDS or place.end >= SAMPLE or place.number >= FIRST_LINES:
                break
        return values

    def first_line(self) -> bytes | None:
        """Return the first of several lines; None if the file has only one line. For `detect`."""
        parts: list[bytes] = []
        size = 0
        for block in self.stored.blocks():
            end = block.find(b"\n")
            parts.append(block if end < 0 else block[:end])
            size += len(parts[-1])
            if size > MAX_LINE:
                return None
            if end >= 0:
                return b"".join(parts) if any(map(bytes.strip, self.stored.blocks(size))) else None
        return None

    def whole(self) -> Any:
        """Return the content as one JSON value; None if it is not one, such as a file of lines. For `detect`."""
        if self._is_document is None:
            self._is_document = self.beginning(1) in (b"{", b"[") and not self._has_value_in_first_line()
        if not self._is_document:
            return None
        try:
            return self.document()
        except ImportRefused:
            self._is_document = False
            return None

    def refuse(self, detail: str, *, line: int | None = None, pointer: str = "") -> ImportRefused:
        """Return the error for a place of this file."""
        return ImportRefused(self.name, detail, line=line, pointer=pointer)

    def _has_value_in_first_line(self) -> bool:
        """Return whether the first of several lines is a JSON value: then the whole content is not one."""
        line = self.first_line()
        try:
            return line is not None and self.parse(line) is not None
        except ImportRefused:
            return False

    def spend(self, units: int = 1) -> None:
        """Charge work to the file's budget: unpacked bytes, or visited values. Raises `WorkExceeded`."""
        if self.budget is not None:
            self.budget.spend(units)

    def parse(self, content: bytes, line: int | None = None) -> Any:
        """Return the JSON value of a line, or of a document. Raises `ImportRefused`."""
        try:
            return read_json(content)
        except strict_json.NotJson as error:
            raise ImportRefused(self.name, str(error), line=line, pointer=error.data.get("pointer", "")) from None


@dataclass(frozen=True, slots=True)
class _RecordReader:
    """Reads a record of a file again. Small, because a file may have very many records."""

    file: ImportFile
    place: StoredLine

    def __call__(self) -> Any:
        line = self.file.stored.line(self.place)
        if line is None:
            raise FileWasRewritten(self.file.name, "the file has changed while it was read", line=self.place.number)
        return self.file.parse(line, self.place.number)


class Importer(Protocol):
    """A format. Entry points of the group `agentops.importers` add more formats."""

    #: The name of the format, as in `agentops import --format`.
    name: str
    #: A short description of the format.
    title: str

    def detect(self, file: ImportFile) -> bool:
        """Return whether the content of the file looks like this format. Cheap; never raises."""
        ...

    def read(self, file: ImportFile) -> Iterator[Item]:
        """Yield the runs and their events, in order.

        Leaves out invalid records in a file of lines. Raises `ImportRefused` for any other invalid place.
        """
        ...
