"""OTLP/HTTP: `/v1/traces`, `/v1/logs` and `/v1/metrics`, and the URLs that Langfuse's SDKs use.

The API key, the content type, and the size and compression of the body are checked before the body is parsed.
Exporters send an API key as a Bearer token, Langfuse's SDKs as the password of Basic authentication. All answers, also
errors, have the encoding of the request, as the protocol requires.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt

from agentops.accounts import keys, rate_limits
from agentops.accounts.access import Action, Principal, principal_for_key, project_for, project_of_key
from agentops.accounts.errors import AuthInvalid, AuthRequired
from agentops.accounts.models import ApiKey, Project
from agentops.accounts.requests import address_of
from agentops.base.database.statements import fault_of
from agentops.base.refusals import Refusal
from runs.api.ingest.ingest_view import count_events, count_refusal
from runs.api.problems import echo
from runs.api.requests.bodies import MAX_BYTES, decompress, read_stream
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

_BEARER, _BASIC = "bearer ", "basic "
_ACCEPTED = ", ".join(Encoding)


def key_of(request: HttpRequest) -> ApiKey:
    """Return the API key that authenticates a request. Raises `Refusal`."""
    header = request.headers.get("Authorization")
    if header is None:
        raise AuthRequired("send an API key with the scope ingest, as a Bearer token or as the password of Basic")
    return keys.authenticate(_token(header))


def caller_of(request: HttpRequest, key: ApiKey) -> tuple[Principal, Project]:
    """Return the principal of a key, and its project. Raises `Refusal` if the key lacks the scope `ingest`."""
    principal = principal_for_key(key, ip=address_of(request) or None)
    project = project_of_key(key, str(key.project_id), Action.INGEST)
    return principal, project or project_for(principal, key.project_id, Action.INGEST)


def encoding_of(request: HttpRequest) -> Encoding:
    """Return the encoding of the body, which is also that of the answer. Raises `Refusal`."""
    try:
        encoding = Encoding(request.content_type or "")
    except ValueError:
        text = f"the body must be {_ACCEPTED}, not {echo(request.content_type or '')}"
        raise Refusal(text, code="unsupported_media_type", status=415, headers={"Accept-Post": _ACCEPTED}) from None
    charset = (request.content_params or {}).get("charset", "utf-8")
    if encoding is Encoding.JSON and charset.lower() not in ("utf-8", "utf8"):
        raise Refusal(f"JSON must be in UTF-8, not in {echo(charset)}", code="unsupported_charset", status=415)
    return encoding


def body_of(request: HttpRequest) -> bytes:
    """Return the decompressed body, which may be sent in chunks. Raises `Refusal`."""
    length = request.META.get("CONTENT_LENGTH") or ""
    if length and not (length.isascii() and length.isdigit() and len(length) < 20):
        raise Refusal(f"{echo(length)} is not a valid Content-Length", code="bad_length")
    if length and int(length) > MAX_BYTES:
        raise Refusal("the body is too large: send smaller batches", code="body_too_large", status=413)
    stream: Any = request
    if not length and request.META.get("HTTP_TRANSFER_ENCODING"):
        # Under WSGI, Django treats a body without a length as empty, so it is read from the server's stream.
        if not request.META.get("wsgi.input_terminated"):
            raise Refusal("this server requires a Content-Length", code="length_required", status=411)
        stream = request.META["wsgi.input"]
    return decompress(request, read_stream(stream, int(length or 0)))


def _token(header: str) -> str:
    """Return the API key in a header. Raises `AuthInvalid`."""
    if header.lower().startswith(_BEARER):
        return header[len(_BEARER) :].strip()
    if not header.lower().startswith(_BASIC):
        raise AuthInvalid
    try:
        credentials = b64decode(header[len(_BASIC) :].strip(), validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        raise AuthInvalid from None
    return credentials.partition(":")[2]


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
        """Store the entries of a request, and report the rejected ones to `report`.

        Return the message of the answer; if it is empty, the message is the reasons of the rejections.
        """
        raise NotImplementedError

    def count_entries(self, principal: Principal, groups: Counter[str]) -> None:
        """Count entries for the rate limits, each trace or session like a run. Raises `RateLimited`."""
        assert principal.project_id is not None  # the principal is an API key
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
    """Accept metrics and drop them, so that an exporter can use the same URL for all signals."""

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
        row = {"id": str(project.pk), "name": project.name, "organization": organization, "metadata": {}}
        return JsonResponse({"data": [row]})


def _count(key: ApiKey | None, report: ExportReport, refusal: Exception | None = None) -> None:
    """Count the entries by outcome for the ingest page; a refused request counts once, with its code.

    Metrics are not counted, because the site drops them on purpose.
    """
    if refusal is not None:
        count_refusal(refusal, f"key:{key.prefix}" if key else "", key.project_id if key else None)
    if key is None:
        return
    outcomes = {ACCEPTED: report.accepted, DUPLICATE: report.known, UNKNOWN_OPERATION: report.unknown_operations}
    if refusal is None:
        outcomes |= report.codes
    outcomes = {code: count for code, count in outcomes.items() if count and code != _METRICS}
    ingest_counts.count(key.project_id, f"key:{key.prefix}", outcomes)


def _refused(error: Exception, encoding: Encoding) -> HttpResponse:
    """Return the answer for a refusal or a failed database. Other errors are raised again."""
    if (fault := fault_of(error)) is not None:
        status, text, headers = 503, fault.advice, {"Retry-After": str(RETRY_AFTER_S)}
    elif isinstance(error, Refusal):
        status, text, headers = error.status, str(error), dict(error.headers)
    else:
        raise error
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return HttpResponse(encode_error(encoding, status, text), status=status, content_type=encoding, headers=headers)


#: The last part of the URL → the view.
OTLP_VIEWS: dict[Signal, Callable[..., HttpResponseBase]] = {
    Signal.TRACES: OtlpTraces.as_view(),
    Signal.LOGS: OtlpLogs.as_view(),
    Signal.METRICS: OtlpMetrics.as_view(),
}


app_name = "otlp"
urlpatterns = [path(f"v1/{signal}", view, name=signal) for signal, view in OTLP_VIEWS.items()]
