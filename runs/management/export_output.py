"""Writes an export to standard output or a file, portion by portion."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from agentops.accounts.management.base import EXIT_REFUSED, EXIT_UNREADABLE, AgentopsCommand, printable
from runs.exports.export_file import ExportFile

STDOUT = "-"
Write = Callable[[bytes], Any]


def write_export(command: AgentopsCommand, file: ExportFile, output: str, *, force: bool) -> None:
    """Write an export to standard output (`-`), to a file, or under its default name into a directory.

    Raises `CommandError`, also for a file that exists, unless `force`.
    """
    if output == STDOUT:
        with _errors_of("standard output"):
            _copy(command, file, _stdout_of(command))
    elif (path := Path(output)).is_dir():
        write_into(command, file, path, force=force)
    else:
        _write_path(command, file, path, force=force)


def write_into(command: AgentopsCommand, file: ExportFile, folder: Path, *, force: bool) -> None:
    """Write an export under its default name into a directory, created if missing. Raises as `write_export`."""
    with _errors_of(folder):
        folder.mkdir(parents=True, exist_ok=True)
    _write_path(command, file, folder / file.name, force=force)


def _write_path(command: AgentopsCommand, file: ExportFile, path: Path, *, force: bool) -> None:
    with _errors_of(path):
        if path.exists() and not path.is_file():
            # A device or a pipe.
            with path.open("wb") as stream:
                _copy(command, file, stream.write)
            return
        if path.exists() and not force:
            raise CommandError(f"{path} already exists; pass --force to overwrite it", returncode=EXIT_REFUSED)
        # Use a temporary name until the file is complete, so that readers never see a partial file.
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with partial.open("wb") as stream:
                _copy(command, file, stream.write, shows_progress=True)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def _copy(command: AgentopsCommand, file: ExportFile, write: Write, *, shows_progress: bool = False) -> None:
    shows_progress = shows_progress and command.stderr.isatty()
    written = 0
    for portion in file.portions:
        data = portion.encode()
        write(data)
        written += len(data)
        if shows_progress:
            # One line, which is overwritten.
            command.stderr.write(f"\r{file.name}: {written:,} bytes", ending="")
            command.stderr.flush()
    if shows_progress:
        command.stderr.write("")


def _stdout_of(command: AgentopsCommand) -> Write:
    """Return a function that writes UTF-8 to standard output, independent of the terminal's encoding."""
    binary = getattr(command.stdout, "buffer", None)
    if binary is None:  # a text stream of the caller
        return lambda data: command.stdout.write(data.decode(), ending="")
    command.stdout.flush()

    def write(data: bytes) -> None:
        binary.write(data)
        binary.flush()

    return write


@contextmanager
def _errors_of(target: object) -> Iterator[None]:
    """Add the file name to an operating system error. A closed pipe is not an error of a file."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        problem = f"{target}: {error.strerror or 'cannot be written'}"
        raise CommandError(printable(problem), returncode=EXIT_UNREADABLE) from error
