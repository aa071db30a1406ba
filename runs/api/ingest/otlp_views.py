"""OTLP/HTTP: `/v1/traces`, `/v1/logs` and `/v1/metrics`, and the addresses that Langfuse's SDKs use.

Answers, errors too, are in the encoding of the request, as the protocol requires.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt

from agentops.http.storage_faults import fault_of
from agentops.projects.access import Principal
from agentops.projects.rate_limits import limits
from runs.api.ingest.otlp_requests import body_of, caller_of, encoding_of
from runs.external.ingest import Sender
from runs.external.otlp.log_events import key_of
from runs.external.otlp.received import Rejections, logs_of, spans_of
from runs.external.otlp.recording import record_logs, record_spans
from runs.external.otlp.wire import (
    Encoding,
    ExportRequest,
    Signal,
    count_points,
    decode,
    encode_error,
    encode_success,
)

RETRY_AFTER_S = 5
_NO_METRICS = "metrics are not stored: tokens and cost are counted from traces and log events"


@method_decorator(csrf_exempt, name="dispatch")
class OtlpView(View):
    """An address of OTLP. It is not in the OpenAPI document: the protocol describes it."""

    schema = None
    http_method_names = ["post"]
    signal: ClassVar[Signal]

    def post(self, request: HttpRequest) -> HttpResponse:
        encoding = Encoding.JSON if request.content_type == Encoding.JSON else Encoding.PROTOBUF
        try:
            limits.count_address(request)
            principal, project = caller_of(request)
            limits.count_ingest(request, principal)
            encoding = encoding_of(request)
            decoded = decode(self.signal, encoding, body_of(request))
            rejections = Rejections()
            message = self.record(decoded, Sender(project, principal.actor), principal, rejections)
        except Exception as error:
            return _refused(error, encoding)
        content = encode_success(
            self.signal, encoding, rejected=rejections.count, message=message or rejections.message()
        )
        return HttpResponse(content, content_type=encoding)

    def record(self, decoded: ExportRequest, sender: Sender, principal: Principal, rejections: Rejections) -> str:
        """Store the entries of a request, and return what to say besides the reasons of those that were rejected."""
        raise NotImplementedError

    def count_entries(self, principal: Principal, groups: Counter[str]) -> None:
        """Count the entries of each trace or session like the events of a run. Raises `RateLimited`."""
        for group, entries in groups.items():
            name = f"{principal.project_id}/otlp/{group}".encode(errors="replace")
            limits.count_run_events(self.request, hashlib.sha256(name).hexdigest(), entries)


class OtlpTraces(OtlpView):
    """Store the spans of agents, model calls and tool calls as runs."""

    signal = Signal.TRACES

    def record(self, decoded: ExportRequest, sender: Sender, principal: Principal, rejections: Rejections) -> str:
        spans = spans_of(decoded, rejections)
        self.count_entries(principal, Counter(span.trace_id for span in spans))
        record_spans(sender, spans, rejections)
        return ""


class OtlpLogs(OtlpView):
    """Store the log events of coding agents as runs."""

    signal = Signal.LOGS

    def record(self, decoded: ExportRequest, sender: Sender, principal: Principal, rejections: Rejections) -> str:
        logs = logs_of(decoded, rejections)
        self.count_entries(principal, Counter(key for record in logs if (key := key_of(record))))
        record_logs(sender, logs, rejections)
        return ""


class OtlpMetrics(OtlpView):
    """Accept metrics, so that exporters of all signals need no other address, and drop them."""

    signal = Signal.METRICS

    def record(self, decoded: ExportRequest, sender: Sender, principal: Principal, rejections: Rejections) -> str:
        points = count_points(decoded)
        rejections.add(_NO_METRICS, points)
        return _NO_METRICS if points else ""


class LangfuseProjects(View):
    """The project of a key, which Langfuse's SDKs ask for to check their credentials."""

    schema = None
    http_method_names = ["get", "head"]

    def get(self, request: HttpRequest) -> HttpResponse:
        limits.count_address(request)
        principal, project = caller_of(request)
        limits.count_principal(request, principal)
        organization = {"id": "agentops", "name": "agentops"}
        row: dict[str, Any] = {
            "id": str(project.pk),
            "name": project.name,
            "organization": organization,
            "metadata": {},
        }
        return JsonResponse({"data": [row]})


def _refused(error: Exception, encoding: Encoding) -> HttpResponse:
    """Return the answer of a request that was refused. Other errors are raised again."""
    status: Any = getattr(error, "status", None)
    headers: dict[str, str] = dict(getattr(error, "headers", {}))
    text = str(error)
    if (fault := fault_of(error)) is not None:
        status, text, headers = 503, fault.advice, {"Retry-After": str(RETRY_AFTER_S)}
    elif not isinstance(getattr(error, "code", None), str) or not isinstance(status, int) or not 400 <= status < 500:
        raise error
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return HttpResponse(encode_error(encoding, status, text), status=status, content_type=encoding, headers=headers)


#: By the last part of their address.
OTLP_VIEWS: dict[Signal, Callable[..., HttpResponseBase]] = {
    Signal.TRACES: OtlpTraces.as_view(),
    Signal.LOGS: OtlpLogs.as_view(),
    Signal.METRICS: OtlpMetrics.as_view(),
}
