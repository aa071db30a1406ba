"""Redaction of a text that arrives in pieces: text that could still become a secret is held back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypedDict

from agentops.base.redaction.redact import DEFAULT, NOTHING, REDACTED, ROUNDS, Redactor, storable
from agentops.base.redaction.secret_names import SecretSpan

MAX_PENDING = 32_768
CONTEXT = 512  # more than any detector looks back for a name, a command or a scheme
_EAGER = 256  # held text up to this length is searched at each piece, longer text only as it grows
_REST_OF_SECRET = re.compile(r"\A[^\s\"'<>,;]+")


class StreamState(TypedDict):
    """The state from which another process can continue a stream."""

    #: The end of the released text, redacted.
    context: str
    #: The text that is held back, unredacted.
    pending: str
    #: Whether an overlong secret was released, so that its rest is skipped.
    skip_rest: bool


class Stream:
    """Redacts a text that arrives in pieces. Text that further pieces could turn into a secret is held back.

    One per text, not thread-safe. The joined output equals `clean_text` of the whole text, unless a possible secret is
    longer than MAX_PENDING; it is then released unfinished.
    """

    def __init__(self, redactor: Redactor | None = None) -> None:
        self._redactor = (redactor or DEFAULT).fixed()
        self._max_pending = MAX_PENDING + self._redactor.longest
        self._context_text = ""  # the end of the released text, unredacted, as context
        self.pending_text = ""  # text that is held back
        self._search_from = 0  # the length of held text at which the search runs
        self._skip_rest = False  # an overlong secret was released, and its rest is skipped
        self.changes: frozenset[str] = NOTHING

    @classmethod
    def resumed(cls, redactor: Redactor, state: StreamState) -> Stream:
        """Return a stream that continues from the state of another one."""
        stream = cls(redactor)
        stream._context_text, stream.pending_text = state["context"], state["pending"]
        stream._skip_rest = state["skip_rest"]
        return stream

    def state(self) -> StreamState:
        """Return the state from which another process can continue."""
        context, _ = self._redactor.clean_text(self._context_text)
        return {"context": context, "pending": self.pending_text, "skip_rest": self._skip_rest}

    def feed(self, text: str) -> str:
        """Add a piece of text. Return the redacted text that can be released."""
        return self.feed_pieces([text])[0]

    def feed_pieces(self, pieces: Sequence[str], *, ended: bool = False) -> list[str]:
        """Add consecutive pieces. Return the redacted text of each that can be released.

        Text held back before is part of the first one, and the mark of a secret is in the piece where the secret
        begins. `ended`: the text ends with these pieces.
        """
        ends = []
        for piece in pieces:
            text, changes = storable(piece)
            self.changes |= changes
            self.pending_text += self._drop_rest(text) if self._skip_rest else text
            ends.append(len(self.pending_text))
        if not ended and len(self.pending_text) < self._search_from:
            return [""] * len(ends)
        released = self._release(ended=ended)
        if ended:
            self._context_text, self._search_from, self._skip_rest = "", 0, False
        return self._redacted_pieces(*released, ends)

    def flush(self) -> str:
        """End the text. Return the remaining redacted text."""
        return self.feed_pieces([""], ended=True)[0]

    def _release(self, *, ended: bool) -> tuple[str, list[SecretSpan]]:
        """Return the text that no longer has to be held back, and the secrets in it."""
        if not self._redactor.shapes:
            rest, self.pending_text = self.pending_text, ""
            return rest, []
        whole, past = self._context_text + self.pending_text, len(self._context_text)
        spans, texts = self._redactor.search(whole, past)
        cut = len(whole)
        if not ended and len(self.pending_text) <= self._max_pending:
            cut = max(_final_length(self._redactor, whole, spans, texts), past)
        elif not ended:
            self._skip_rest = bool(spans) and spans[-1].end == cut
        released = [
            span._replace(begin=span.begin - past, end=span.end - past) for span in spans if past <= span.begin < cut
        ]
        if released:
            self.changes |= {REDACTED}
        self._context_text, self.pending_text = _context(whole, cut, spans), whole[cut:]
        waiting = len(self.pending_text)
        self._search_from = min(
            waiting + 1 + max(waiting - _EAGER, 0) // 8, self._max_pending + 1
        )  # so that time stays linear
        return whole[past:cut], released

    def _redacted_pieces(self, text: str, spans: list[SecretSpan], ends: list[int]) -> list[str]:
        """Return the redacted text, split at the given ends."""
        pieces, begin, next_span = [], 0, 0
        for end in ends:
            parts: list[str] = []
            while next_span < len(spans) and spans[next_span].begin < end:
                span = spans[next_span]
                if span.begin >= begin:  # otherwise the secret began in an earlier piece, which has its mark
                    parts += text[begin : span.begin], self._redactor.mark_of(text, span)
                begin = min(span.end, end)
                if span.end > end:
                    break
                next_span += 1
            pieces.append("".join([*parts, text[begin:end]]))
            begin = end
        return pieces

    def _drop_rest(self, text: str) -> str:
        rest = _REST_OF_SECRET.sub("", text, count=1)
        self._skip_rest = not rest
        return rest


def _final_length(redactor: Redactor, whole: str, spans: list[SecretSpan], texts: list[str]) -> int:
    """Return the length of the prefix that further text cannot change."""
    cut = _before(spans, min(map(redactor.unfinished, texts)))
    for _ in range(ROUNDS if cut < len(whole) else 0):
        # If the following text becomes a secret, a preceding token ends there, before the NUL that replaces the secret.
        earlier = _before(redactor.search(f"{whole[:cut]}\0")[0], cut)
        if earlier == cut:
            break
        cut = _before(spans, earlier)
    return cut


def _before(spans: list[SecretSpan], cut: int) -> int:
    for span in reversed(spans):
        if span.begin < cut <= span.end:
            cut = span.begin
    return cut


def _context(whole: str, cut: int, spans: list[SecretSpan]) -> str:
    """Return the end of the released text as context. It does not start within a secret."""
    begin = max(cut - CONTEXT, 0)
    for span in spans:
        if span.begin < begin < span.end:
            begin = max(span.begin, cut - MAX_PENDING)
    return whole[begin:cut]
