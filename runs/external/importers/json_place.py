"""A value of an imported file with its place, so that every refusal can name the place."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from agentops.base.http import strict_json
from runs.external.event_input import RejectedEvent, read_time
from runs.external.importers.base import ImportFile, ImportRefused, Item
from runs.providers.messages import canonical

#: Maximum characters of a call ID, and of a tool name.
MAX_NAME = 256
#: Characters of the digest that identifies a run without an ID.
_DIGEST = 16
#: Maximum characters of an ID in a run reference. Together with the format's name, it must fit the column.
_MAX_ID = 160


class JsonPlace:
    """A JSON value and its path in the file. An absent value counts as null."""

    def __init__(self, file: ImportFile, value: Any, path: strict_json.Path = (), line: int | None = None) -> None:
        file.spend()
        self.file = file
        self.value = value
        self.path = path
        self.line = line

    def at(self, *path: str) -> JsonPlace:
        """Return a member, or a nested member. Raises `ImportRefused` if a value on the path is not an object."""
        place = self
        for name in path:
            members = place.members()
            place = JsonPlace(self.file, members.get(name), (*place.path, name), self.line)
        return place

    def members(self) -> Mapping[str, Any]:
        """Return an object; an empty one for null. Raises `ImportRefused` for other values."""
        if self.value is not None and not isinstance(self.value, dict):
            raise self.refuse(f"must be an object, not {self._kind()}")
        return self.value or {}

    def with_value(self, value: Any) -> JsonPlace:
        """Return another value at the same place, which was derived from this one."""
        return JsonPlace(self.file, value, self.path, self.line)

    def items(self) -> Iterator[JsonPlace]:
        """Yield the items of a list; none for null. Raises `ImportRefused` for other values."""
        if self.value is not None and not isinstance(self.value, list):
            raise self.refuse(f"must be a list, not {self._kind()}")
        for index, item in enumerate(self.value or []):
            yield JsonPlace(self.file, item, (*self.path, index), self.line)

    def text(self, default: str | None = "") -> str:
        """Return a text; `default` for null. With None as default, a non-empty text is required.

        Raises `ImportRefused` for other values.
        """
        if isinstance(self.value, str) and (self.value or default is not None):
            return self.value
        if self.value is not None or default is None:
            raise self.refuse(f"must be a text, not {self._kind()}")
        return default

    def label(self) -> str:
        """Return a text without unprintable characters; empty for null. Raises `ImportRefused` for other values."""
        return "".join(letter for letter in self.text() if letter.isprintable())

    def name(self) -> str:
        """Return a text that is valid as a call ID or as a tool's name. Raises `ImportRefused` for other values."""
        text = self.text(None)
        if len(text) > MAX_NAME or not text.isprintable():
            raise self.refuse(f"must have at most {MAX_NAME} characters, which can be printed")
        return text

    def time(self) -> datetime | None:
        """Return a time; None for null. Raises `ImportRefused` for other values."""
        try:
            return read_time(self.value)
        except RejectedEvent as error:
            raise self.refuse(error.detail) from None

    def run_reference(self, format_name: str, own_id: object = None) -> str:
        """Return the reference of the run at this place, from its ID or else from a digest of its content."""
        if isinstance(own_id, str) and 0 < len(own_id) <= _MAX_ID and own_id.isprintable():
            return f"{format_name}:{own_id}"
        digest = hashlib.sha256(canonical(self.value).encode(errors="surrogatepass")).hexdigest()
        return f"{format_name}:{digest[:_DIGEST]}"

    def refuse(self, detail: str) -> ImportRefused:
        """Return the error for this place."""
        return self.file.refuse(detail, line=self.line, pointer=strict_json.pointer(self.path))

    def _kind(self) -> str:
        kinds = {type(None): "null", dict: "an object", list: "a list", str: "a text", bool: "a truth value"}
        return "an empty text" if self.value == "" else kinds.get(type(self.value), "a number")


def documents(file: ImportFile) -> Iterator[JsonPlace]:
    """Yield the whole content as one value, or the value of each record of JSON lines. Raises `ImportRefused`."""
    if _consists_of_lines(file):
        yield from (JsonPlace(file, record.value, line=record.line) for record in file.records())
    else:
        yield JsonPlace(file, file.document())


def read_documents(file: ImportFile, read: Callable[[JsonPlace], Iterable[Item]]) -> Iterator[Item]:
    """Yield the items that `read` returns for each document of a file: see `documents`.

    Invalid records of JSON lines are left out. Raises `ImportRefused`.
    """
    for place in documents(file):
        try:
            # The first pass only checks: no part of an invalid document is imported, and the items are not collected.
            for _ in read(place) if place.line is not None else ():
                pass
        except ImportRefused as refusal:
            file.leave_out(refusal)
        else:
            yield from read(place)


def looks_like(file: ImportFile, matches: Callable[[Any], bool]) -> bool:
    """Return whether the content, or any of its first lines, matches. For `detect`: an error in `matches` means no."""
    values = file.first_lines() if _consists_of_lines(file) else [file.whole()]
    return any(_matches(value, matches) for value in values)


def _matches(value: Any, matches: Callable[[Any], bool]) -> bool:
    try:
        return value is not None and matches(value)
    except (TypeError, AttributeError, LookupError):
        return False


def _consists_of_lines(file: ImportFile) -> bool:
    """Return whether the whole content is not a JSON value, but some of its lines are."""
    return file.whole() is None and any(isinstance(value, dict | list) for value in file.first_lines())
