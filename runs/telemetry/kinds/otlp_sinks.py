"""Send runs as traces by OTLP/HTTP: to any collector, and to Langfuse."""

from __future__ import annotations

import gzip
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from runs.models.telemetry import TEST
from runs.telemetry import guarded_posts
from runs.telemetry.sink_kind import OutgoingEvent, Receipt, SinkKind, SinkOptions, SinkTarget
from runs.telemetry.traces.observing import NEEDED, observe, test_observation
from runs.telemetry.traces.otlp_encoding import requests_of

LANGFUSE_PATH = "/api/public/otel/v1/traces"
_HEADERS = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}


class OtlpOptions(SinkOptions):
    """The options of an OTLP sink."""

    #: The URL of the traces signal, such as https://collector.example.org/v1/traces.
    url: guarded_posts.SinkUrl


class LangfuseOptions(SinkOptions):
    """The options of a Langfuse sink."""

    base_url: guarded_posts.SinkUrl = "https://cloud.langfuse.com"
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
        guarded_posts.check_headers(secrets.get("headers", {}))

    def render(self, target: SinkTarget, events: Sequence[OutgoingEvent], message_id: str) -> Sequence[bytes]:
        """Return the requests, compressed."""
        is_test = events[0].row.type == TEST
        observations = [test_observation(events[0])] if is_test else observe(events)
        return [gzip.compress(each, 6) for each in requests_of(observations, for_langfuse=self.for_langfuse)]

    def send(self, target: SinkTarget, requests: Sequence[bytes]) -> Receipt:
        """Send the requests one after the other."""
        receipt = Receipt()
        for body in requests:
            answer = guarded_posts.post(self.url_of(target), body, {**self.headers_of(target), **_HEADERS})
            receipt = guarded_posts.receipt_of(answer)
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
    """Return the message about rejected spans in the answer to an accepted request."""
    try:
        partial = ExportTraceServiceResponse.FromString(body).partial_success
    except DecodeError:
        return []  # a JSON answer, which reports success
    return [f"{partial.rejected_spans} spans: {partial.error_message}"] if partial.rejected_spans else []
