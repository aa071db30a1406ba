"""Tool outputs above 256 KiB: their size and digest. Also the text of an output, as people download it.

The row of the call holds the whole output: see docs/decisions/whole-outputs.md.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

#: Bytes above which the size and the digest of an output are stored with it.
LIMIT = 256 * 1024


@dataclass(frozen=True)
class OutputFacts:
    """The stored facts about a long output, available without reading it."""

    #: Bytes of the output's text in UTF-8.
    size: int
    #: The digest of these bytes, hexadecimal.
    sha256: str


def text_of(output: Any) -> str:
    """Return an output as text. A list of texts and media becomes JSON."""
    if isinstance(output, str):
        return output
    return json.dumps(output, ensure_ascii=False, separators=(",", ":"))


def facts_of(output: Any) -> OutputFacts | None:
    """Return the size and the digest of a long output; None for others."""
    # Most outputs are short, and need not be encoded: a character has at most four bytes.
    if output is None or (isinstance(output, str) and len(output) * 4 <= LIMIT):
        return None
    data = text_of(output).encode("utf-8", "surrogatepass")
    return OutputFacts(len(data), hashlib.sha256(data).hexdigest()) if len(data) > LIMIT else None
