"""Sends envelopes to a URL, in batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from runs.telemetry import guarded_posts
from runs.telemetry.envelope_options import EnvelopeKind, EnvelopeOptions, envelopes_of
from runs.telemetry.outgoing_json import encode
from runs.telemetry.sink_kind import OutgoingEvent, Receipt, SinkTarget

#: Bytes of a request above which further envelopes go into the next request. A single envelope may be larger.
MAX_BODY = 2**20


class HttpOptions(EnvelopeOptions):
    """The options of an HTTP sink."""

    url: guarded_posts.SinkUrl
    #: Maximum events of a request. With 1 the body is an envelope, otherwise an array of envelopes.
    batch_size: Annotated[int, Field(ge=1, le=500)] = 100


class HttpSink(EnvelopeKind):
    """POST requests with JSON: an array of envelopes in the order of the log.

    A batch is divided into requests of about 1 MiB, because hook events contain whole results. If a request fails, the
    whole batch is repeated, with the same `payload.id`.
    """

    name = "http"
    title = "envelopes as JSON to a URL"
    options_class = HttpOptions
    secret_names: ClassVar[Mapping[str, bool]] = {"headers": False}

    def check_secrets(self, secrets: Mapping[str, Any]) -> None:
        """Check the headers. Raises `InvalidSink`."""
        guarded_posts.check_headers(secrets.get("headers", {}))

    def size_of_batch(self, target: SinkTarget) -> int:
        """Return the most events of a request."""
        return int(target.options.batch_size)

    def render(self, target: SinkTarget, events: Sequence[OutgoingEvent], message_id: str) -> Sequence[bytes]:
        """Return the bodies of the requests."""
        envelopes = [each for own in envelopes_of(target, events) for each in own]
        bodies = [encode(envelope) for envelope in envelopes]
        return bodies if target.options.batch_size == 1 else list(_arrays(bodies))

    def send(self, target: SinkTarget, requests: Sequence[bytes]) -> Receipt:
        """Send the requests one after the other."""
        receipt = Receipt()
        headers = {**target.secrets.get("headers", {}), "Content-Type": "application/json"}
        for body in requests:
            receipt = guarded_posts.receipt_of(guarded_posts.post(target.options.url, body, headers))
        return receipt


def _arrays(envelopes: Sequence[bytes]) -> Iterator[bytes]:
    """Yield JSON arrays of these envelopes, of at most `MAX_BODY` bytes if no single envelope is larger."""
    waiting: list[bytes] = []
    size = 1
    for envelope in envelopes:
        if waiting and size + len(envelope) + 1 > MAX_BODY:
            yield b"[" + b",".join(waiting) + b"]"
            waiting, size = [], 1
        waiting.append(envelope)
        size += len(envelope) + 1
    if waiting:
        yield b"[" + b",".join(waiting) + b"]"
