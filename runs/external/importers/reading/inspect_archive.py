"""The `.eval` logs of Inspect: a zip archive with a header and one JSON file for each sample."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from typing import IO
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

from runs.external.importers.base import MAX_DOCUMENT, ImportFile, ImportRefused
from runs.external.importers.reading.json_place import JsonPlace

_SIGNATURE = b"PK\x03\x04"
#: The first bytes of a file's entry in the archive's directory.
_ENTRY = b"PK\x01\x02"
#: The header of a complete log, and of a log whose evaluation is still running or was killed.
_HEADERS = ("header.json", "_journal/start.json")
_SAMPLES = "samples/"
#: Maximum number of files in an archive.
MAX_MEMBERS = 10_000
#: Bytes that are unpacked at a time.
BLOCK = 256 * 1024


def is_archive(file: ImportFile) -> bool:
    """Return whether the content is a zip archive with the header of a log."""
    if file.beginning(len(_SIGNATURE)) != _SIGNATURE:
        return False
    try:
        content = file.content()
        if content.count(_ENTRY) > MAX_MEMBERS:
            return True  # `read` refuses it
        with ZipFile(io.BytesIO(content)) as archive:
            return not set(_HEADERS).isdisjoint(archive.namelist())
    except (BadZipFile, ValueError, OSError, ImportRefused):
        return False


def read(file: ImportFile) -> tuple[JsonPlace, Iterator[JsonPlace]]:
    """Return the header and the samples, in the order of their names. Raises `ImportRefused`.

    Errors name the file within the archive.
    """
    content = file.content()
    # Counted before zipfile creates an object for each entry.
    if content.count(_ENTRY) > MAX_MEMBERS:
        raise file.refuse(f"has more than {MAX_MEMBERS} files")
    archive = ZipFile(io.BytesIO(content))
    members = archive.namelist()
    names = sorted({name for name in members if name.startswith(_SAMPLES) and name.endswith(".json")})
    header = next(name for name in _HEADERS if name in members)
    return _member(file, archive, header), (_member(file, archive, name) for name in names)


def _member(file: ImportFile, archive: ZipFile, name: str) -> JsonPlace:
    # zipfile unpacks other methods without a limit: 4 KiB of bzip2 can become gigabytes.
    if archive.getinfo(name).compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        raise file.refuse(f"{name} cannot be unpacked: its compression is neither none nor deflate")
    try:
        with archive.open(name) as stream:
            content = b"".join(_unpacked(file, stream))
    # zipfile raises these for damaged and encrypted (RuntimeError) members, and for unknown features.
    except (BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        raise file.refuse(f"{name} cannot be unpacked: {error}") from None
    member = ImportFile(f"{file.name}/{name}", content)
    member.budget = file.budget
    return JsonPlace(member, member.document())


def _unpacked(file: ImportFile, stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the content in blocks. The size stated by an archive may be wrong; `document` refuses a long content."""
    size = 0
    while size <= MAX_DOCUMENT and (block := stream.read(BLOCK)):
        file.spend(len(block))
        size += len(block)
        yield block
