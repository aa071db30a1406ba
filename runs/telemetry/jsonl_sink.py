"""Append envelopes to files, one line each, one file for each run."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings

from agentops.accounts.names import UUID_PATTERN
from runs.models import Sink
from runs.models.telemetry import TEST
from runs.telemetry.envelope_dialects import EnvelopeKind, EnvelopeOptions, envelopes_of
from runs.telemetry.sink_kind import InvalidSink, OutgoingEvent, Receipt, SendFailed, SinkTarget, encode
from runs.telemetry.sink_targets import SinkUnusable, target_of
from timeline.models import Tombstone

#: The folder in AGENTOPS_HOME to which every sink may write.
FOLDER = "telemetry"
#: Bytes that are read at a time to find the last line end.
_TAIL = 64 * 1024
#: Maximum number of runs that one query looks for.
_BATCH = 500


class JsonlOptions(EnvelopeOptions):
    """The options of a JSONL sink."""

    #: An absolute path. Empty: the folder `telemetry` in AGENTOPS_HOME.
    directory: str = ""


class JsonlSink(EnvelopeKind):
    """Lines of JSON in files, on the disk of the worker that writes them.

    Lines are complete and in the order of the log. A partial line, left by a full disk or a killed worker, is removed
    before the next line is written. Events that are repeated after a crash have the same `payload.id`.
    """

    name = "jsonl"
    title = "envelopes as lines in a file for each run"
    options_class = JsonlOptions
    batch_size = 500

    def check(self, options: Mapping[str, Any]) -> JsonlOptions:
        """Return the validated options. Raises `InvalidSink`."""
        checked: JsonlOptions = super().check(options)
        directory_of(checked)
        return checked

    def render(
        self, target: SinkTarget, events: Sequence[OutgoingEvent], message_id: str
    ) -> Sequence[tuple[str, bytes]]:
        """Return the path of each file, relative to the directory, and its new lines."""
        lines: dict[str, bytes] = {}
        for event, envelopes in zip(events, envelopes_of(target, events), strict=True):
            if not envelopes:
                continue
            is_test = event.row.type == TEST
            name = f"{TEST}.jsonl" if is_test else f"{event.row.log.project_id}/{event.row.log_id}.jsonl"
            lines[name] = lines.get(name, b"") + b"".join(encode(each) + b"\n" for each in envelopes)
        return list(lines.items())

    def send(self, target: SinkTarget, requests: Sequence[tuple[str, bytes]]) -> Receipt:
        """Append the lines."""
        directory = directory_of(target.options)
        for name, lines in requests:
            try:
                append(directory / name, lines)
            except OSError as error:
                raise SendFailed(f"{name} cannot be written: {error.strerror}") from None
        return Receipt()


def directory_of(options: JsonlOptions) -> Path:
    """Return the directory of a sink. Raises `InvalidSink` if it is outside the allowed roots."""
    own = Path(settings.AGENTOPS_HOME) / FOLDER
    if not options.directory:
        return own
    path = Path(options.directory)
    roots = [str(own), *settings.AGENTOPS_TELEMETRY.roots]
    resolved = Path(os.path.realpath(path))
    if not path.is_absolute() or not any(resolved.is_relative_to(os.path.realpath(root)) for root in roots):
        raise InvalidSink("an absolute path below one of AGENTOPS_TELEMETRY_ROOTS is expected", "directory")
    return resolved


def forget_removed_runs() -> int:
    """Delete the files of runs that retention has deleted, on the disk of this process. Returns their number."""
    removed = 0
    for sink in Sink.objects.filter(kind=JsonlSink.name):
        try:
            _, target = target_of(sink)
        except SinkUnusable:
            continue
        removed += _forget_in(directory_of(target.options))
    return removed


def _forget_in(directory: Path) -> int:
    """Delete the files of removed runs in a directory. Returns their number."""
    paths = {UUID(path.stem): path for path in directory.glob("*/*.jsonl") if re.match(UUID_PATTERN, path.stem)}
    run_ids, removed = list(paths), 0
    for begin in range(0, len(run_ids), _BATCH):
        for run_id in Tombstone.objects.filter(pk__in=run_ids[begin : begin + _BATCH]).values_list("pk", flat=True):
            paths[run_id].unlink(missing_ok=True)
            removed += 1
    return removed


def append(path: Path, lines: bytes) -> None:
    """Append complete lines to a file, which is created if necessary. On an error, partly written lines are removed.

    Raises `OSError`.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(path) as file:
        end = _end_of_last_line(file)
        try:
            os.ftruncate(file, end)
            os.lseek(file, end, os.SEEK_SET)
            rest = memoryview(lines)
            while rest:
                rest = rest[os.write(file, rest) :]
        except OSError:
            os.ftruncate(file, end)
            raise


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Open a file for reading and writing, locked against other processes. Yields its descriptor."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(file)


def _end_of_last_line(file: int) -> int:
    """Return the number of bytes up to the last line end."""
    end = os.lseek(file, 0, os.SEEK_END)
    while end:
        begin = max(end - _TAIL, 0)
        at = os.pread(file, end - begin, begin).rfind(b"\n")
        if at >= 0:
            return begin + at + 1
        end = begin
    return 0
