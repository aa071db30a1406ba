"""Bodies without a length under WSGI: Django takes them for empty ones, and whoever sends them would lose everything.

Roof: wraps the WSGI application.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from tempfile import SpooledTemporaryFile
from typing import Any

Environ = dict[str, Any]
Wsgi = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]

#: No body of ours is longer. One that is gets this much read and is then refused for its length.
MAX_BYTES = 5 * 1024 * 1024
KEPT_IN_MEMORY = 256 * 1024
PIECE = 64 * 1024


class ChunkedBodies:
    """Reads a chunked body to its end before Django sees the request, and says how long it is."""

    def __init__(self, application: Wsgi) -> None:
        self.application = application

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ.get("CONTENT_LENGTH") or "chunked" not in environ.get("HTTP_TRANSFER_ENCODING", "").lower():
            return self.application(environ, start_response)
        with SpooledTemporaryFile(KEPT_IN_MEMORY) as body:
            length = _copied(environ["wsgi.input"], body)
            body.seek(0)
            environ |= {"wsgi.input": body, "CONTENT_LENGTH": str(length)}
            # The views read the body before they answer, so it may go when they have.
            return self.application(environ, start_response)


def _copied(source: Any, target: Any) -> int:
    """Bytes copied: one more than allowed where there are more."""
    length = 0
    while length <= MAX_BYTES and (piece := source.read(min(PIECE, MAX_BYTES + 1 - length))):
        target.write(piece)
        length += len(piece)
    return length
