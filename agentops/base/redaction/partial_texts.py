"""Redaction of a text that arrives in pieces, and of a part of a longer text.

Of a text that arrives in pieces, the end that further text could turn into a secret is held back. In a part of a longer
text, secrets that its borders truncate are masked too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypedDict

from agentops.base.redaction.redact import DEFAULT, NOTHING, REDACTED, ROUNDS, Redactor, placeholder, storable
from agentops.base.redaction.secret_names import SecretSpan

#: Maximum characters that are held back.
MAX_PENDING = 32_768
#: Characters of released text that are searched with later text. No detector looks further back for evidence.
CONTEXT = 512
#: Held text up to this length is searched with each piece. Longer text is searched after it has grown by an eighth.
_EAGER = 256
_REST_OF_SECRET = re.compile(r"\A[^\s\"'<>,;]+")


class StreamState(TypedDict):
    """The state from which another process can continue a text."""

    #: The end of the released text, redacted.
    context: str
    #: The text that is held back, unredacted.
    pending: str
    #: Whether an overlong secret was released, so that its rest is skipped.
    skip_rest: bool


class Stream:
    """Redacts one text that arrives in pieces. Text that further pieces could turn into a secret is held back.

    The joined output equals `clean_text` of the whole text, unless a possible secret is longer than MAX_PENDING. That
    is released early: if it is already recognised, it is replaced, and its rest is skipped. Not thread-safe.
    """

    def __init__(self, redactor: Redactor | None = None) -> None:
        self._redactor = (redactor or DEFAULT).fixed()
        self._max_pending = MAX_PENDING + self._redactor.longest
        #: The end of the released text, unredacted.
        self._context_text = ""
        #: The text that is held back.
        self.pending_text = ""
        #: The length of held text from which it is searched.
        self._search_from = 0
        #: Whether an overlong secret was released, so that its rest is skipped.
        self._skip_rest = False
        #: The kinds of replacements so far.
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
        """Add a piece of text, and return the redacted text that can be released."""
        return self.feed_pieces([text])[0]

    def feed_pieces(self, pieces: Sequence[str], *, ended: bool = False) -> list[str]:
        """Add consecutive pieces, and return the redacted text of each that can be released.

        Text that was held back before belongs to the first piece. The placeholder of a secret is in the piece in which
        the secret begins. `ended`: the text ends with these pieces.
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
        """End the text, and return the redacted text that was held back."""
        return self.feed_pieces([""], ended=True)[0]

    def _release(self, *, ended: bool) -> tuple[str, list[SecretSpan]]:
        """Remove from the held text what can be released. Return it unredacted, with the places of its secrets."""
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
        held = len(self.pending_text)
        # The held text must grow by an eighth before the next search, so that the time of all searches stays linear.
        self._search_from = min(held + 1 + max(held - _EAGER, 0) // 8, self._max_pending + 1)
        return whole[past:cut], released

    def _redacted_pieces(self, text: str, spans: list[SecretSpan], ends: list[int]) -> list[str]:
        """Return the redacted text, split at the given ends."""
        pieces, begin, next_span = [], 0, 0
        for end in ends:
            parts: list[str] = []
            while next_span < len(spans) and spans[next_span].begin < end:
                span = spans[next_span]
                if span.begin >= begin:  # otherwise the secret began in an earlier piece, which has its placeholder
                    parts += text[begin : span.begin], self._redactor.placeholder_of(text, span)
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
    cut = _cut_before_secrets(spans, min(map(redactor.unfinished, texts)))
    for _ in range(ROUNDS if cut < len(whole) else 0):
        # If the text from `cut` on becomes a secret, NUL replaces it in the next round. A token before it then ends at
        # `cut`, so that text before it may have to be held back too.
        earlier = _cut_before_secrets(redactor.search(f"{whole[:cut]}\0")[0], cut)
        if earlier == cut:
            break
        cut = _cut_before_secrets(spans, earlier)
    return cut


def _cut_before_secrets(spans: list[SecretSpan], cut: int) -> int:
    """Return `cut`, or the start of the secrets that `cut` would truncate or that end there."""
    for span in reversed(spans):
        if span.begin < cut <= span.end:
            cut = span.begin
    return cut


def _context(whole: str, cut: int, spans: list[SecretSpan]) -> str:
    """Return the end of the released text `whole[:cut]` as context, which must not start within a secret."""
    begin = max(cut - CONTEXT, 0)
    for span in spans:
        if span.begin < begin < span.end:
            begin = max(span.begin, cut - MAX_PENDING)
    return whole[begin:cut]


def mask(text: str, before: str = "", after: str = "", redactor: Redactor = DEFAULT) -> str:
    """Return the text with its secrets replaced by placeholders.

    `before` and `after` are the surroundings of the text. A secret that begins or ends there is replaced as a whole, so
    that the placeholder does not reveal the part within the text.
    """
    redactor = redactor.fixed()
    if not text or not redactor.shapes:
        return text
    whole, begin, end = before + text + after, len(before), len(before) + len(text)
    for _ in range(ROUNDS):
        spans = redactor.spans(whole)
        if not spans:
            break
        whole, begin, end = _replace_spans(whole, spans, begin, end)
    return whole[begin:end]


def _replace_spans(whole: str, spans: list[SecretSpan], begin: int, end: int) -> tuple[str, int, int]:
    """Return the text with the spans replaced by placeholders, and the new range of the part `begin` to `end`.

    The new range includes placeholders of secrets that extend over its borders.
    """
    parts: list[str] = []
    done = shift = 0
    new_begin, new_end = begin, end
    for span in spans:
        replacement = placeholder(span.kind, whole[span.begin : span.end])
        parts += whole[done : span.begin], replacement
        done, replacement_begin = span.end, span.begin + shift
        shift += len(replacement) - (span.end - span.begin)
        if span.end <= begin:
            new_begin = begin + shift
        elif span.begin < begin:
            new_begin = replacement_begin
        if span.end <= end:
            new_end = end + shift
        elif span.begin < end:
            new_end = replacement_begin + len(replacement)
    return "".join([*parts, whole[done:]]), new_begin, new_end
