"""Redacts the texts that runners stream: the deltas of an answer are one text, however they split its secrets.

What could still become a secret waits for the next delta, in the row of the external run if need be: another process
may receive it. It stands in no log and no answer until then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast
from uuid import UUID

from agentops.base.redaction.redact import REDACTED
from agentops.base.redaction.text_stream import Stream
from timeline import log
from timeline.events import EventType
from timeline.events.llm import LlmTextDelta, LlmThinkingDelta
from timeline.log import Entry

Delta = LlmTextDelta | LlmThinkingDelta
_DELTAS: dict[str, type[Delta]] = {
    EventType.LLM_TEXT_DELTA: LlmTextDelta,
    EventType.LLM_THINKING_DELTA: LlmThinkingDelta,
}
DELTA_TYPES = tuple(_DELTAS)


@dataclass(frozen=True, slots=True)
class _Origin:
    """The block that text which is held back belongs to."""

    index: int | None
    node_id: str
    step: int | None

    def empty_delta(self, type_: str) -> Entry:
        """Return a delta of the block that carries its held text only."""
        return Entry(_DELTAS[type_](text="", index=self.index), node_id=self.node_id, step=self.step, clean=True)


@dataclass
class _OpenText:
    """A text that is being received."""

    stream: Stream
    origin: _Origin | None = None
    #: The places of its deltas among the entries that are not written yet.
    places: list[int] = field(default_factory=list)


class StreamedTexts:
    """The texts of an answer that are being received, by the type of their deltas.

    A text is all that comes in deltas of one type, also of several blocks: so a runner that counts its deltas in
    `index` cannot split a secret either.
    """

    def __init__(self, log_id: UUID, stored: dict[str, Any]) -> None:
        self._log_id = log_id
        self._stored = stored
        self._open: dict[str, _OpenText] = {}

    def entries_before(self, delta: Entry, place: int) -> Iterator[Entry]:
        """Note a delta that becomes the entry at `place`, or after those returned: of held text of another block."""
        assert isinstance(delta.payload, Delta)
        text = self._text(delta.payload.event_type)
        origin = _Origin(delta.payload.index, delta.node_id, delta.step)
        if text.stream.pending_text and not text.places and text.origin not in (None, origin):
            yield text.origin.empty_delta(delta.payload.event_type)
            text.places.append(place)
            place += 1
        text.origin = origin
        text.places.append(place)

    def entries_of_rest(self, type_: str, place: int) -> Iterator[Entry]:
        """Return the entry for text that an earlier batch has held back, before the text of this type ends."""
        text = self._text(type_) if type_ in self._stored else None
        if text is not None and text.origin is not None and text.stream.pending_text and not text.places:
            yield text.origin.empty_delta(type_)
            text.places.append(place)

    def release(self, entries: list[Entry]) -> None:
        """Redact the deltas among entries that are about to be written."""
        for text in self._open.values():
            self._release(text, entries)

    def end(self, type_: str, entries: list[Entry]) -> None:
        """End the text of this type: nothing of it is held back any longer."""
        text = self._open.pop(type_, None)
        self._stored.pop(type_, None)
        if text is not None:
            self._release(text, entries, ended=True)

    def state(self) -> dict[str, Any]:
        """Return what a projection in another process continues from."""
        return self._stored | {
            type_: {**text.stream.state(), "index": origin.index, "node_id": origin.node_id, "step": origin.step}
            for type_, text in self._open.items()
            if (origin := text.origin) is not None
        }

    def _text(self, type_: str) -> _OpenText:
        text = self._open.get(type_)
        if text is None:
            redactor, state = log.redactor_of(self._log_id), self._stored.get(type_)
            if state is None:
                text = _OpenText(Stream(redactor))
            else:
                origin = _Origin(state["index"], state["node_id"], state["step"])
                text = _OpenText(Stream.resumed(redactor, state), origin)
            self._open[type_] = text
        return text

    def _release(self, text: _OpenText, entries: list[Entry], *, ended: bool = False) -> None:
        if not text.places:
            return
        payloads = [cast("Delta", entries[place].payload) for place in text.places]
        pieces = text.stream.feed_pieces([payload.text for payload in payloads], ended=ended)
        for place, payload, piece in zip(text.places, payloads, pieces, strict=True):
            if piece != payload.text:
                entry = entries[place]
                replaced = entry.replaced | ({REDACTED} if "[REDACTED:" in piece else set())
                entries[place] = replace(entry, payload=payload.model_copy(update={"text": piece}), replaced=replaced)
        text.places = []
