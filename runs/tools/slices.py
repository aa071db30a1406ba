"""A part of a file or an answer as text, with enough of what stands around it to see the secrets at its borders."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from dataclasses import dataclass

from runs.tools.output import as_output, is_text

#: Bytes looked at before and after a part: private keys, the longest secrets, have a quarter of that.
CONTEXT = 64 * 1024


@dataclass(frozen=True)
class Slice:
    """A part of some bytes, decoded together with the rest, so that no character is cut in two."""

    before: str
    text: str
    after: str
    raw: bytes
    #: Where the part ends in the bytes: before a character that its end would have cut.
    end: int

    @classmethod
    def of(cls, data: bytes, begin: int, limit: int) -> Slice:
        """The `limit` bytes of `data` from `begin` on."""
        stop = max(begin, min(begin + limit, len(data)))
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        before = decoder.decode(data[:begin])
        text = decoder.decode(data[begin:stop], final=stop >= len(data))
        stop -= len(decoder.getstate()[0])
        return cls(before, text, decoder.decode(data[stop:], final=True), data[begin:stop], stop)

    def told(self, mask: Callable[[str, str, str], str]) -> str:
        """The part with its secrets masked; of one that is no text, only its size.

        A hash is given of whole contents alone: that of a few bytes would give them away.
        """
        if is_text(self.text):
            # NUL separates what it stands between; in the part itself it would be no text.
            return mask(self.text, self.before.replace("\0", "\n"), self.after.replace("\0", "\n"))
        if self.before or self.after:
            return f"[{len(self.raw)} bytes that are not text]"
        return as_output(self.raw)[0]
