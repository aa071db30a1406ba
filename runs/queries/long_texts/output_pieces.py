"""The whole output of a tool call in pieces, for downloads: no more than a few pieces are in memory at once."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from django.db.models.functions import Substr

from runs.models import AgentRunToolCall
from runs.queries.long_texts.text_functions import IsJsonText, JsonText
from timeline.redaction.redact import DEFAULT as REDACTOR
from timeline.redaction.redact import Redactor
from timeline.redaction.text_stream import Stream

#: Characters that one query reads. A database reads the whole value for each of them.
PIECE = 1024 * 1024
#: Characters that are masked at once: much less than a stream holds back for a secret that is not at its end.
SLICE = 8 * 1024


class OutputGone(Exception):
    """The call was deleted while its output was sent. Whoever reads it must not take it for whole."""


def long_output(run_id: UUID, call_id: UUID) -> Iterator[str] | None:
    """Return the output of a call in pieces, if it is a text above 256 KiB. None for any other call.

    Each piece is a query of its own, so no transaction is open while a slow reader gets the others. The secrets in the
    pieces are not masked: see `masked`.
    """
    calls = AgentRunToolCall.objects.filter(run=run_id, pk=call_id, output_bytes__isnull=False)
    is_text = calls.annotate(is_text=IsJsonText("output")).values_list("is_text", flat=True).first()
    return _pieces(call_id) if is_text else None


def masked(pieces: Iterator[str]) -> Iterator[str]:
    """Return the pieces with their secrets masked, also those across borders of pieces."""
    # Now, because the projects in scope are those of the request, which ends before the last piece is read.
    return _masked(pieces, REDACTOR.fixed())


def _masked(pieces: Iterator[str], redactor: Redactor) -> Iterator[str]:
    stream = Stream(redactor)
    for piece in pieces:
        slices = (piece[begin : begin + SLICE] for begin in range(0, len(piece), SLICE))
        yield "".join(map(stream.feed, slices))
    yield stream.flush()


def _pieces(call_id: UUID) -> Iterator[str]:
    begin, piece = 1, "x" * PIECE
    while len(piece) == PIECE:
        values = AgentRunToolCall.objects.filter(pk=call_id).values_list(Substr(JsonText("output"), begin, PIECE))
        row = values.first()
        if row is None:
            raise OutputGone(f"the call {call_id} was deleted")
        piece = row[0]
        begin += PIECE
        yield piece
