"""The `.eval` logs of Inspect: a zip archive with a header and one JSON file for each sample."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from zipfile import BadZipFile, ZipFile

from runs.external.importers.base import MAX_FILE, MIB, ImportFile, ImportRefused
from runs.external.importers.reading.json_place import JsonPlace

_SIGNATURE = b"PK\x03\x04"
#: Of a log that is complete, and of one whose evaluation goes on or was killed.
_HEADERS = ("header.json", "_journal/start.json")
_SAMPLES = "samples/"
#: Bytes of all files that are read from an archive, unpacked.
MAX_UNPACKED = 4 * MAX_FILE
#: Files of an archive.
MAX_MEMBERS = 10_000


def is_archive(file: ImportFile) -> bool:
    """Return whether the content is a zip archive with the header of a log."""
    if file.beginning(len(_SIGNATURE)) != _SIGNATURE:
        return False
    try:
        with ZipFile(io.BytesIO(file.content())) as archive:
            return not set(_HEADERS).isdisjoint(archive.namelist())
    except (BadZipFile, ValueError, OSError, ImportRefused):
        return False


def read(file: ImportFile) -> tuple[JsonPlace, Iterator[JsonPlace]]:
    """Return the header and the samples, in the order of their names. Raises `ImportRefused`.

    Errors name the file of the archive.
    """
    archive = ZipFile(io.BytesIO(file.content()))
    members = archive.infolist()
    if len(members) > MAX_MEMBERS:
        raise file.refuse(f"has more than {MAX_MEMBERS} files")
    names = sorted(
        {
            member.filename
            for member in members
            if member.filename.startswith(_SAMPLES) and member.filename.endswith(".json")
        }
    )
    found = {member.filename for member in members}
    header = next(name for name in _HEADERS if name in found)
    wanted = {header, *names}
    if sum(member.file_size for member in members if member.filename in wanted) > MAX_UNPACKED:
        raise file.refuse(f"larger than {MAX_UNPACKED // MIB} MiB when unpacked")
    return _member(file, archive, header), (_member(file, archive, name) for name in names)


def _member(file: ImportFile, archive: ZipFile, name: str) -> JsonPlace:
    try:
        with archive.open(name) as stream:
            # The size that the archive states may be wrong: one that is too large is refused by `document`.
            content = stream.read(MAX_FILE + 1)
    # What zipfile raises for damaged, encrypted (RuntimeError) and unknown compressed (NotImplementedError) members.
    except (BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        raise file.refuse(f"{name} cannot be unpacked: {error}") from None
    member = ImportFile(f"{file.name}/{name}", content)
    return JsonPlace(member, member.document())
