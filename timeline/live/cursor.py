"""Where a reader of a log stands: the cursor that a browser or an API client brings back."""

from __future__ import annotations

import re
from dataclasses import dataclass

from django.http import HttpRequest

#: "412", or "412.217123456" after the database was restored: the number of its incarnation.
PATTERN = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,10}))?", re.ASCII)


class InvalidStreamCursor(Exception):
    """What was sent as a cursor is none."""

    status = 400

    def __init__(self, code: str, where: str) -> None:
        super().__init__(f"{where} must be the seq of an event, as in 412 or 412.0")
        self.code = code


@dataclass(frozen=True, slots=True)
class StreamCursor:
    """The last event that a reader has, and the incarnation of the database that it was read from."""

    seq: int = 0
    incarnation: int = 0

    def __str__(self) -> str:
        return f"{self.seq}.{self.incarnation}" if self.incarnation else str(self.seq)

    def of(self, incarnation: int) -> bool:
        """Whether it can be gone on from in this incarnation; the beginning is the same in all."""
        return self.seq == 0 or self.incarnation == incarnation


def cursor_of(request: HttpRequest) -> StreamCursor:
    """`Last-Event-ID` wins over `?afterSeq=`: a browser that reconnects sends both, and only the header is fresh."""
    header = request.headers.get("Last-Event-ID")
    if header:
        return _parsed(header, "invalid_last_event_id", "Last-Event-ID")
    return _parsed(request.GET.get("afterSeq") or "0", "invalid_after_seq", "afterSeq")


def _parsed(text: str, code: str, where: str) -> StreamCursor:
    found = PATTERN.fullmatch(text)
    if found is None:
        raise InvalidStreamCursor(code, where)
    return StreamCursor(int(found[1]), int(found[2] or 0))
