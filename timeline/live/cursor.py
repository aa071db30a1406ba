"""The cursor of a log stream, which browsers and API clients send to continue."""

from __future__ import annotations

import re
from dataclasses import dataclass

from django.http import HttpRequest

from agentops.base.refusals import Refusal

#: "412", or after a restore of the database "412.217123456" with the number of the incarnation.
PATTERN = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,10}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class StreamCursor:
    """The sequence number of the last event that a reader has, and the incarnation of the database."""

    seq: int = 0
    incarnation: int = 0

    def __str__(self) -> str:
        return f"{self.seq}.{self.incarnation}" if self.incarnation else str(self.seq)

    def is_valid_in(self, incarnation: int) -> bool:
        """Return whether the cursor is valid in this incarnation. The start of a log is always valid."""
        return self.seq == 0 or self.incarnation == incarnation


def cursor_of(request: HttpRequest) -> StreamCursor:
    """Return the cursor of a request. Raises a `Refusal` if it is invalid.

    `Last-Event-ID` takes precedence over `?afterSeq=`: a reconnecting browser sends both, and only the header is
    current.
    """
    header = request.headers.get("Last-Event-ID")
    if header:
        return _parse(header, "invalid_last_event_id", "Last-Event-ID")
    return _parse(request.GET.get("afterSeq") or "0", "invalid_after_seq", "afterSeq")


def _parse(text: str, code: str, where: str) -> StreamCursor:
    match = PATTERN.fullmatch(text)
    if match is None:
        raise Refusal(f"{where} must be the seq of an event, as in 412 or 412.0", code=code)
    return StreamCursor(int(match[1]), int(match[2] or 0))
