"""Sinks that send over HTTP: envelopes in batches, signed messages of Standard Webhooks, and traces by OTLP."""

from __future__ import annotations

import gzip
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from django.conf import settings
from django.urls import reverse
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from pydantic import Field

from agentops.base.http.receivers import signed_headers, signer_of
from runs.models.telemetry import TEST
from runs.telemetry import sink_kind
from runs.telemetry.envelope_dialects import EnvelopeKind, EnvelopeOptions, envelopes_of
from runs.telemetry.observing import NEEDED, observe
from runs.telemetry.otlp_encoding import requests_of
from runs.telemetry.sink_kind import (
    InvalidSink,
    OutgoingEvent,
    Receipt,
    SinkKind,
    SinkOptions,
    SinkTarget,
    encode,
    in_batches,
)
from timeline.events import EventType

#: Maximum bytes of a request with several envelopes. A single envelope may be larger.
MAX_BODY = 2**20


class HttpOptions(EnvelopeOptions):
    """The options of an HTTP sink."""

    url: sink_kind.SinkUrl
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
        sink_kind.check_headers(secrets.get("headers", {}))

    def size_of_batch(self, target: SinkTarget) -> int:
        """Return the maximum number of events of a request."""
        return int(target.options.batch_size)

    def render(self, target: SinkTarget, events: Sequence[OutgoingEvent], message_id: str) -> Sequence[bytes]:
        """Return the bodies of the requests."""
        envelopes = [each for own in envelopes_of(target, events) for each in own]
        bodies = [encode(envelope) for envelope in envelopes]
        if target.options.batch_size == 1:
            return bodies
        batches = in_batches(bodies, MAX_BODY - 1, lambda body: len(body) + 1)
        return [b"[" + b",".join(batch) + b"]" for batch in batches]

    def send(self, target: SinkTarget, requests: Sequence[bytes]) -> Receipt:
        """Send the requests one after the other."""
        receipt = Receipt()
        headers = {**target.secrets.get("headers", {}), "Content-Type": "application/json"}
        for body in requests:
            receipt = sink_kind.receipt_of(sink_kind.post(target.options.url, body, headers))
        return receipt


#: Maximum number of secrets of a webhook: during a rotation, the old and the new secret both sign.
MAX_SECRETS = 2


class WebhookOptions(SinkOptions):
    """The options of a webhook."""

    url: sink_kind.SinkUrl


class WebhookSink(SinkKind):
    """One signed request for each event, each with separate attempts."""

    name = "webhook"
    title = "signed messages (Standard Webhooks)"
    options_class = WebhookOptions
    secret_names: ClassVar[Mapping[str, bool]] = {"secrets": True}
    sends_each = True
    default_types = (
        *(EventType.RUN_STARTED, EventType.RUN_WAITING, EventType.RUN_PAUSED, EventType.RUN_RESUMED),
        *(EventType.RUN_COMPLETED, EventType.RUN_FAILED, EventType.RUN_STOPPED),
        *(EventType.APPROVAL_REQUESTED, EventType.APPROVAL_RESOLVED, EventType.ERROR, EventType.BUDGET_WARNING),
    )

    def check_secrets(self, secrets: Mapping[str, Any]) -> None:
        """Check that there are one or two secrets of the specified form. Raises `InvalidSink`."""
        values = secrets.get("secrets")
        if not isinstance(values, list) or not 1 <= len(values) <= MAX_SECRETS:
            raise InvalidSink(f"1 to {MAX_SECRETS} secrets are expected", "secrets")
        for value in values:
            try:
                signer_of(value)
            except ValueError as error:
                raise InvalidSink(str(error), "secrets") from None

    def render(
        self, target: SinkTarget, events: Sequence[OutgoingEvent], message_id: str
    ) -> Sequence[tuple[str, bytes]]:
        """Return the ID and the body of each message."""
        return [(message_id, encode(_message(event))) for event in events]

    def send(self, target: SinkTarget, requests: Sequence[tuple[str, bytes]]) -> Receipt:
        """Send each message, signed now with each secret."""
        receipt = Receipt()
        for message_id, body in requests:
            headers = signed_headers(target.secrets["secrets"], message_id, body)
            receipt = sink_kind.receipt_of(sink_kind.post(target.options.url, body, headers))
        return receipt


def _message(event: OutgoingEvent) -> dict[str, Any]:
    """Return the body of a webhook message, with a link to the run if the base URL of the site is set."""
    payload = event.envelope["payload"]
    data = {
        "run_id": payload.get("runId"),
        "agent_id": event.envelope["agent_id"],
        "session_id": event.envelope["session_id"],
        "flow_run_id": None if event.flow_run_id is None else str(event.flow_run_id),
        "event": payload,
    }
    if settings.AGENTOPS_BASE_URL and event.row.type != TEST:
        page = "runs:flow-run" if event.is_of_flow_run else "runs:detail"
        data["url"] = f"{settings.AGENTOPS_BASE_URL}{reverse(page, args=[event.row.log_id])}"
    return {"type": event.row.type, "timestamp": payload["ts"], "data": data}


# --- Traces ---

LANGFUSE_PATH = "/api/public/otel/v1/traces"
_HEADERS = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}


class OtlpOptions(SinkOptions):
    """The options of an OTLP sink."""

    #: The URL of the traces signal, such as https://collector.example.org/v1/traces.
    url: sink_kind.SinkUrl


class LangfuseOptions(SinkOptions):
    """The options of a Langfuse sink."""

    base_url: sink_kind.SinkUrl = "https://cloud.langfuse.com"
    public_key: str


class OtlpSink(SinkKind):
    """Spans with the GenAI names of OpenTelemetry, sent when the run, turn or call has ended."""

    name = "otlp"
    title = "traces to an OpenTelemetry collector"
    options_class: ClassVar[type[SinkOptions]] = OtlpOptions
    secret_names: ClassVar[Mapping[str, bool]] = {"headers": False}
    needed_types = NEEDED
    for_langfuse: ClassVar[bool] = False

    def check_secrets(self, secrets: Mapping[str, Any]) -> None:
        """Check the headers. Raises `InvalidSink`."""
        sink_kind.check_headers(secrets.get("headers", {}))

    def render(self, target: SinkTarget, events: Sequence[OutgoingEvent], message_id: str) -> Sequence[bytes]:
        """Return the requests, compressed."""
        return [gzip.compress(each, 6) for each in requests_of(observe(events), for_langfuse=self.for_langfuse)]

    def send(self, target: SinkTarget, requests: Sequence[bytes]) -> Receipt:
        """Send the requests one after the other, up to the first with rejected spans."""
        receipt = Receipt()
        for body in requests:
            answer = sink_kind.post(self.url_of(target), body, {**self.headers_of(target), **_HEADERS})
            receipt = sink_kind.receipt_of(answer)
            refused = _refused(answer.body)
            if refused:
                return Receipt(receipt.status, receipt.response, refused)
        return receipt

    def url_of(self, target: SinkTarget) -> str:
        """Return the URL for requests."""
        return str(target.options.url)

    def headers_of(self, target: SinkTarget) -> dict[str, str]:
        """Return the headers that the receiver requires."""
        return dict(target.secrets.get("headers", {}))


class LangfuseOtlpSink(OtlpSink):
    """Spans in the form that Langfuse 3 and newer display best: with turns, types, levels and costs."""

    name = "langfuse_otlp"
    title = "traces to Langfuse by OTLP"
    options_class = LangfuseOptions
    secret_names: ClassVar[Mapping[str, bool]] = {"secret_key": True}
    for_langfuse = True

    def check_secrets(self, secrets: Mapping[str, Any]) -> None:
        """Check the secret key. Raises `InvalidSink`."""
        SinkKind.check_secrets(self, secrets)

    def url_of(self, target: SinkTarget) -> str:
        """Return the URL for requests."""
        return f"{target.options.base_url.rstrip('/')}{LANGFUSE_PATH}"

    def headers_of(self, target: SinkTarget) -> dict[str, str]:
        """Return the headers that the receiver requires."""
        return {**langfuse_credentials(target), "x-langfuse-ingestion-version": "4"}


def langfuse_credentials(target: SinkTarget) -> dict[str, str]:
    """Return the header with the keys of a Langfuse project."""
    pair = f"{target.options.public_key}:{target.secrets['secret_key']}"
    return {"Authorization": f"Basic {b64encode(pair.encode()).decode()}"}


def _refused(body: bytes) -> list[str]:
    """Return a text about the spans that the receiver rejected although it accepted the request; empty if none."""
    try:
        partial = ExportTraceServiceResponse.FromString(body).partial_success
    except DecodeError:
        return []  # a JSON answer, which reports success
    return [f"{partial.rejected_spans} spans: {partial.error_message}"] if partial.rejected_spans else []
