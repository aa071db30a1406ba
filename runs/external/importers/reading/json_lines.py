"""The records of a line of JSON lines: usually one, several if a program omitted a line end, or none.

Programs append to their files without locks and can be killed. So a line may hold two records, or a truncated record
and then another. Every whole record is read; the parts between them are damage.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from agentops.base.http.strict_json import NotJson

#: The byte order mark that some programs write at the beginning of a file.
BOM = b"\xef\xbb\xbf"
_SPACES = " \t\r\n"
_DECODER = json.JSONDecoder()
#: Matches a possible beginning of a record inside a damaged line.
_BEGIN = re.compile(r"\{\s*\"")
#: Places after damage at which a record is searched. The limit keeps the work linear.
_ATTEMPTS = 8
_NUL = re.compile("\0[\0 \t\r]*")
NUL_BYTES = "NUL bytes in place of a record"


class Whole(NamedTuple):
    """A record, and its place in the line, in bytes."""

    begin: int
    end: int
    value: Any


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged part of a line."""

    reason: str
    #: The JSON pointer of the cause.
    pointer: str = ""


#: Returns a JSON value. Raises `NotJson`.
Parser = Callable[[bytes], Any]


def split_line(line: bytes, parse: Parser) -> Iterator[Whole | Damage]:
    """Yield the records of a line, and the damaged parts between them, in order."""
    try:
        yield Whole(0, len(line), parse(line))
    except NotJson as error:
        if error.code != "invalid_json":
            yield _damage(error)
        else:
            yield from _split(line.decode(), parse, error)


def _split(text: str, parse: Parser, whole_line: NotJson) -> Iterator[Whole | Damage]:
    at, is_first = 0, True
    # Counted from the preceding record. Counting from the beginning of the line would take quadratic time.
    counted, place = 0, 0
    while (at := _skip(text, at)) < len(text):
        if nul := _NUL.match(text, at):
            yield Damage(NUL_BYTES)
            at = nul.end()
            continue
        end, broken_at = _end_of_object(text, at)
        if end is not None:
            counted, place = at, place + len(text[counted:at].encode())
            yield _record(text[at:end].encode(), place, parse)
            at, is_first = end, False
            continue
        yield _damage(whole_line) if is_first else Damage("what follows the first record is not a record")
        is_first = False
        at = _next_records(text, at, broken_at)


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACES:
        at += 1
    return at


def _record(record: bytes, begin: int, parse: Parser) -> Whole | Damage:
    try:
        return Whole(begin, begin + len(record), parse(record))
    except NotJson as error:
        return _damage(error)


def _end_of_object(text: str, at: int) -> tuple[int | None, int]:
    """Return the end of the JSON object at a place, or None if it is damaged, and the place of the damage."""
    if text[at] != "{":
        return None, at
    try:
        return _DECODER.raw_decode(text, at)[1], 0
    except json.JSONDecodeError as error:
        return None, error.pos
    except (RecursionError, ValueError):  # such as a number of too many digits
        return None, len(text)


def _next_records(text: str, at: int, broken_at: int) -> int:
    """Return where whole records follow a damaged one, up to the end of the line; the end if none follow.

    A record cut inside a text ends where the next record begins: just before the place of the damage. If only the end
    of the line cuts a record, objects inside it are not records.
    """
    candidates = [begin for begin in (text.rfind("{", at + 1, broken_at + 1),) if begin > at]
    candidates += [match.start() for _, match in zip(range(_ATTEMPTS), _BEGIN.finditer(text, broken_at), strict=False)]
    for begin in candidates if broken_at < len(text.rstrip()) else ():
        end: int | None = begin
        while end is not None and (end := _skip(text, end)) < len(text):
            end, _ = _end_of_object(text, end)
        if end is not None:
            return begin
    return len(text)


def _damage(error: NotJson) -> Damage:
    # The caller adds the line number within the file.
    return Damage(str(error).replace("line 1, column", "column"), error.data.get("pointer", ""))
