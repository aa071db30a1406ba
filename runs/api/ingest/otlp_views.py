"""OTLP/HTTP: `/v1/traces`, `/v1/logs` and `/v1/metrics`, and the addresses that Langfuse's SDKs use.

Answers, errors too, are in the encoding of the request, as the protocol requires.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt

from agentops.accounts import rate_limits
from agentops.accounts.access import Principal
from agentops.accounts.models import ApiKey
from agentops.base.http.storage_faults import fault_of
from agentops.base.refusals import Refusal
from runs.api.ingest.ingest_view import count_events, count_refusal
from runs.api.ingest.otlp_requests import body_of, caller_of, encoding_of, key_of
from runs.external import ingest_counts
from runs.external.ingest import Sender
from runs.external.ingest_counts import ACCEPTED, DUPLICATE, UNKNOWN_OPERATION
from runs.external.otlp.log_events import key_of as session_key_of
from runs.external.otlp.received import ExportReport, logs_of, spans_of
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
_METRICS = "metrics_dropped"
_NO_METRICS = "metrics are not stored: tokens and cost are counted from traces and log events"


@method_decorator(csrf_exempt, name="dispatch")
class OtlpView(View):
    """A view of OTLP. It is not in the OpenAPI document, because the protocol describes it."""

    schema = None
    http_method_names = ["post"]
    signal: ClassVar[Signal]

    def post(self, request: HttpRequest) -> HttpResponse:
        encoding = Encoding.JSON if request.content_type == Encoding.JSON else Encoding.PROTOBUF
        key: ApiKey | None = None
        report = ExportReport()
        try:
            rate_limits.count_address(request)
            key = key_of(request)
            principal, project = caller_of(request, key)
            rate_limits.count_ingest(request, principal)
            encoding = encoding_of(request)
            decoded = decode(self.signal, encoding, body_of(request))
            message = self.record(decoded, Sender(project, principal.actor), principal, report)
        except Exception as error:
            _count(key, report, error)
            return _refused(error, encoding)
        _count(key, report)
        content = encode_success(self.signal, encoding, rejected=report.rejected, message=message or report.message())
        return HttpResponse(content, content_type=encoding)

    def record(self, decoded: ExportRequest, sender: Sender, principal: Principal, report: ExportReport) -> str:
        """Store the entries of a request. Returns the message of the answer; empty for the default: the rejection
        reasons.
        """
        raise NotImplementedError

    def count_entries(self, principal: Principal, groups: Counter[str]) -> None:
        """Count the entries of each trace or session like the events of a run. Raises `RateLimited`."""
        assert principal.project_id is not None  # an API key's
        count_events(self.request, principal.project_id, {f"otlp/{group}": number for group, number in groups.items()})


class OtlpTraces(OtlpView):
    """Store the spans of agents, model calls and tool calls as runs."""

    signal = Signal.TRACES

    def record(self, decoded: ExportRequest, sender: Sender, principal: Principal, report: ExportReport) -> str:
        spans = spans_of(decoded, report)
        self.count_entries(principal, Counter(span.trace_id for span in spans))
        record_spans(sender, spans, report)
        return ""


class OtlpLogs(OtlpView):
    """Store the log events of coding agents as runs."""

    signal = Signal.LOGS

    def record(self, decoded: ExportRequest, sender: Sender, principal: Principal, report: ExportReport) -> str:
        logs = logs_of(decoded, report)
        self.count_entries(principal, Counter(key for record in logs if (key := session_key_of(record))))
        record_logs(sender, logs, report)
        return ""


class OtlpMetrics(OtlpView):
    """Accept metrics, so that exporters of all signals need no other address, and drop them."""

    signal = Signal.METRICS

    def record(self, decoded: ExportRequest, sender: Sender, principal: Principal, report: ExportReport) -> str:
        if points := count_points(decoded):
            report.reject(_METRICS, _NO_METRICS, points)
        return _NO_METRICS if points else ""


class LangfuseProjects(View):
    """The project of a key. Langfuse's SDKs request it to check their credentials."""

    schema = None
    http_method_names = ["get", "head"]

    def get(self, request: HttpRequest) -> HttpResponse:
        rate_limits.count_address(request)
        principal, project = caller_of(request, key_of(request))
        rate_limits.count_principal(request, principal)
        organization = {"id": "agentops", "name": "agentops"}
        row: dict[str, Any] = {
            "id": str(project.pk),
            "name": project.name,
            "organization": organization,
            "metadata": {},
        }
        return JsonResponse({"data": [row]})


def _count(key: ApiKey | None, report: ExportReport, refusal: Exception | None = None) -> None:
    """Count entries by outcome, and a refused request once, for the ingest page.

    Metrics are not counted: the site drops them on purpose.
    """
    if refusal is not None:
        count_refusal(refusal, f"key:{key.prefix}" if key else "", key.project_id if key else None)
    if key is None:
        return
    rejected = report.codes if refusal is None else {}
    outcomes = {
        ACCEPTED: report.accepted, DUPLICATE: report.known, UNKNOWN_OPERATION: report.unknown_operations, **rejected
    }  # fmt: skip
    outcomes = {code: count for code, count in outcomes.items() if count and code != _METRICS}
    ingest_counts.count(key.project_id, f"key:{key.prefix}", outcomes)


def _refused(error: Exception, encoding: Encoding) -> HttpResponse:
    """Return the answer to a refused request. Other errors are raised again."""
    if (fault := fault_of(error)) is not None:
        status, text, headers = 503, fault.advice, {"Retry-After": str(RETRY_AFTER_S)}
    elif isinstance(error, Refusal):
        status, text, headers = error.status, str(error), dict(error.headers)
    else:
        raise error
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return HttpResponse(encode_error(encoding, status, text), status=status, content_type=encoding, headers=headers)


#: By the last part of their URL.
OTLP_VIEWS: dict[Signal, Callable[..., HttpResponseBase]] = {
    Signal.TRACES: OtlpTraces.as_view(),
    Signal.LOGS: OtlpLogs.as_view(),
    Signal.METRICS: OtlpMetrics.as_view(),
}
