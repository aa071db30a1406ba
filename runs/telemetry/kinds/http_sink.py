"""Sends envelopes to a URL, in batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from runs.telemetry import guarded_posts
from runs.telemetry.envelope_options import EnvelopeKind, EnvelopeOptions, envelopes_of
from runs.telemetry.outgoing_json import encode
from runs.telemetry.sink_kind import OutgoingEvent, Receipt, SinkTarget


class HttpOptions(EnvelopeOptions):
    """The options of an HTTP sink."""

    url: guarded_posts.SinkUrl
    #: The most events of a request. With 1 the body is an envelope, otherwise an array of envelopes.
    batch_size: Annotated[int, Field(ge=1, le=500)] = 100


class HttpSink(EnvelopeKind):
    """POST requests with JSON: an array of envelopes in the order of the log."""

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
        if target.options.batch_size == 1:
            return [encode(envelope) for envelope in envelopes]
        return [encode(envelopes)] if envelopes else []

    def send(self, target: SinkTarget, requests: Sequence[bytes]) -> Receipt:
        """Send the requests one after the other."""
        receipt = Receipt()
        headers = {**target.secrets.get("headers", {}), "Content-Type": "application/json"}
        for body in requests:
            receipt = guarded_posts.receipt_of(guarded_posts.post(target.options.url, body, headers))
        return receipt
