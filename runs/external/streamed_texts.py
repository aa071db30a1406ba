"""Redacts the texts that runners stream. The deltas of an answer count as one text, so they cannot split a secret.

Text that may be the beginning of a secret is held back until the next delta: no log and no answer contains it before.
It is kept in the row of the external run, because another process may receive the next delta.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast
from uuid import UUID

from pydantic_ai.messages import ModelResponsePart, TextPart, ThinkingPart

from agentops.base.redaction.partial_texts import Stream
from agentops.base.redaction.redact import REDACTED
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
_TEXTS = (EventType.LLM_TEXT_DELTA, EventType.LLM_TEXT)
_THOUGHTS = (EventType.LLM_THINKING_DELTA, EventType.LLM_THINKING)
#: The types of events whose texts become the answer, if the program sends no message with the whole text.
TEXT_TYPES = (*_TEXTS, *_THOUGHTS)


def parts_of(pieces: Iterable[tuple[str, str]]) -> list[ModelResponsePart]:
    """Return the thinking and the text of an answer; empty without any. `pieces`: the type and the text of events."""
    collected = list(pieces)
    thinking = "".join(text for type_, text in collected if type_ in _THOUGHTS)
    text = "".join(text for type_, text in collected if type_ in _TEXTS)
    parts: list[ModelResponsePart] = [ThinkingPart(thinking)] if thinking else []
    return [*parts, TextPart(text)] if text else parts


@dataclass(frozen=True, slots=True)
class _Origin:
    """The block of an answer that a delta belongs to."""

    index: int | None
    node_id: str
    step: int | None

    def empty_delta(self, type_: str) -> Entry:
        """Return an empty delta of this block, which will get the text that was held back."""
        return Entry(_DELTAS[type_](text="", index=self.index), node_id=self.node_id, step=self.step, clean=True)


@dataclass
class _OpenText:
    """A text that is being received."""

    stream: Stream
    #: The block of its last delta.
    origin: _Origin | None = None
    #: The indexes of its deltas among the unwritten entries.
    places: list[int] = field(default_factory=list)


class StreamedTexts:
    """The texts of an answer in progress, by the type of their deltas.

    A text consists of all deltas of one type, even of several blocks: some runners count their deltas in `index`.
    """

    def __init__(self, log_id: UUID, stored: dict[str, Any]) -> None:
        """`stored`: the `state` of an earlier projection."""
        self._log_id = log_id
        self._stored = stored
        self._open: dict[str, _OpenText] = {}

    def entries_before(self, delta: Entry, place: int) -> Iterator[Entry]:
        """Note a delta that is about to become the entry at `place`.

        Yields an entry to insert before it, if text of another block was held back.
        """
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
        """Yield an entry for text that an earlier batch held back, to append before `end`. `place`: its index."""
        text = self._text(type_) if type_ in self._stored else None
        if text is not None and text.origin is not None and text.stream.pending_text and not text.places:
            yield text.origin.empty_delta(type_)
            text.places.append(place)

    def release(self, entries: list[Entry]) -> None:
        """Redact the deltas among entries that are about to be written."""
        for text in self._open.values():
            self._release(text, entries)

    def end(self, type_: str, entries: list[Entry]) -> None:
        """End the text of this type, and redact its deltas among the entries. Nothing is held back any more."""
        text = self._open.pop(type_, None)
        self._stored.pop(type_, None)
        if text is not None:
            self._release(text, entries, ended=True)

    def state(self) -> dict[str, Any]:
        """Return the open texts, for the next projection of the run."""
        return self._stored | {
            type_: {**text.stream.state(), "index": origin.index, "node_id": origin.node_id, "step": origin.step}
            for type_, text in self._open.items()
            if (origin := text.origin) is not None
        }

    def _text(self, type_: str) -> _OpenText:
        """Return the open text of this type. Opens a text if none is open."""
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
        """Replace the texts of unwritten deltas by the redacted text that can be stored."""
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
