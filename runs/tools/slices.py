"""A slice of a file or response, decoded with its surroundings, so that secrets at its borders are recognised."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from dataclasses import dataclass

from runs.tools.output import as_output, is_text

#: Bytes before and after a slice that are searched for secrets. The longest secrets, private keys, have a quarter of
#: it.
CONTEXT = 64 * 1024


@dataclass(frozen=True)
class Slice:
    """A slice of bytes, decoded as UTF-8 together with its surroundings, so that no character is cut."""

    before: str
    text: str
    after: str
    raw: bytes
    #: The end of the slice as an offset in bytes. A character cut by the limit is left out.
    end: int

    @classmethod
    def of(cls, data: bytes, begin: int, limit: int) -> Slice:
        """Return the slice of at most `limit` bytes of `data` from offset `begin`."""
        stop = max(begin, min(begin + limit, len(data)))
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        before = decoder.decode(data[:begin])
        text = decoder.decode(data[begin:stop], final=stop >= len(data))
        stop -= len(decoder.getstate()[0])
        return cls(before, text, decoder.decode(data[stop:], final=True), data[begin:stop], stop)

    def mask_events(self, mask: Callable[[str, str, str], str]) -> str:
        """Return the slice with its secrets masked. For binary data, return a note with the size.

        The note contains a hash only for complete contents: the hash of a few bytes would reveal them.
        """
        if is_text(self.text):
            # NUL ends a secret like a newline does. The slice itself contains none.
            return mask(self.text, self.before.replace("\0", "\n"), self.after.replace("\0", "\n"))
        if self.before or self.after:
            return f"[{len(self.raw)} bytes that are not text]"
        return as_output(self.raw)[0]
