"""The bodies of OTLP/HTTP: requests in protobuf or JSON, and responses in the same encoding."""

from __future__ import annotations

from base64 import b64encode
from binascii import unhexlify
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, TypeAlias

from google.protobuf.json_format import MessageToJson, ParseDict, ParseError
from google.protobuf.message import DecodeError, Message
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from agentops.base.http import strict_json
from agentops.base.redaction.redact import BARE
from agentops.base.refusals import Refusal

#: Limits of a JSON body, whose size was checked before. Values of attributes may be long texts.
JSON_LIMITS = strict_json.Limits(nodes=200_000, string=5 * 1024 * 1024)
#: Maximum fields in a protobuf body. An empty message takes two bytes there, and a hundred in memory.
MAX_MESSAGES = 400_000
#: Byte fields that OTLP/JSON writes in hexadecimal digits instead of base64.
_HEX = {"traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id"}
#: Maximum characters of an error message in a response.
_LONGEST_MESSAGE = 2_000
#: The nesting level of spans, log records and metrics.
_SPAN_LEVEL = 3
#: The bytes of fields of fixed size, by protobuf's wire type.
_FIXED = {1: 8, 5: 4}


class Signal(StrEnum):
    """The kinds of bodies, in the terms of OpenTelemetry."""

    TRACES = "traces"
    LOGS = "logs"
    METRICS = "metrics"


class Encoding(StrEnum):
    """The media types of requests and responses."""

    PROTOBUF = "application/x-protobuf"
    JSON = "application/json"


#: Codes of google.rpc.Status, by HTTP status.
_RPC_CODES = {400: 3, 401: 16, 403: 7, 404: 5, 408: 4, 411: 3, 413: 8, 415: 3, 422: 3, 429: 8, 503: 14}
#: The code for any other HTTP status.
_UNKNOWN = 2
#: The classes of a request and of its response, and the field of the response that counts rejected entries.
_KINDS: dict[Signal, tuple[Any, Any, str]] = {
    Signal.TRACES: (ExportTraceServiceRequest, ExportTraceServiceResponse, "rejected_spans"),
    Signal.LOGS: (ExportLogsServiceRequest, ExportLogsServiceResponse, "rejected_log_records"),
    Signal.METRICS: (ExportMetricsServiceRequest, ExportMetricsServiceResponse, "rejected_data_points"),
}
#: An OTLP request. Its classes are created at run time, without types.
ExportRequest: TypeAlias = Any


def decode(signal: Signal, encoding: Encoding, body: bytes) -> ExportRequest:
    """Return the request in a body. Raises `Refusal` with the code `invalid_otlp`, or `NotJson`."""
    request = _KINDS[signal][0]()
    if encoding is Encoding.JSON:
        return _from_json(request, body)
    if _count_messages(body) > MAX_MESSAGES:
        raise Refusal(f"the body has more than {MAX_MESSAGES} messages", code="invalid_otlp")
    try:
        request.ParseFromString(body)
    except (DecodeError, RecursionError):
        raise Refusal(f"the body is not a protobuf message {type(request).__name__}", code="invalid_otlp") from None
    return request


def encode_success(signal: Signal, encoding: Encoding, *, rejected: int = 0, message: str = "") -> bytes:
    """Return the response to an accepted request, with the number of its rejected entries and the reasons."""
    _, response_class, rejected_field = _KINDS[signal]
    answer = response_class()
    if rejected or message:
        setattr(answer.partial_success, rejected_field, rejected)
        answer.partial_success.error_message = message[:_LONGEST_MESSAGE]
    return _encode(answer, encoding)


def encode_error(encoding: Encoding, http_status: int, message: str) -> bytes:
    """Return the response to a refused request: a google.rpc.Status."""
    text = BARE.clean_text(message)[0][:_LONGEST_MESSAGE]
    return _encode(Status(code=_RPC_CODES.get(http_status, _UNKNOWN), message=text), encoding)


def count_points(request: ExportRequest) -> int:
    """Return the number of data points of a request with metrics."""
    metrics = (metric for of in request.resource_metrics for scope in of.scope_metrics for metric in scope.metrics)
    kinds = (getattr(metric, metric.WhichOneof("data") or "", None) for metric in metrics)
    return sum(len(kind.data_points) for kind in kinds if kind is not None)


def _encode(message: Message, encoding: Encoding) -> bytes:
    if encoding is Encoding.PROTOBUF:
        return bytes(message.SerializeToString())
    return str(MessageToJson(message, indent=None)).encode()


def _from_json(request: ExportRequest, body: bytes) -> ExportRequest:
    """Fill `request` from a JSON body, and return it. Raises `Refusal` or `NotJson`."""
    document, _ = BARE.clean(strict_json.parse(body, JSON_LIMITS))
    if not isinstance(document, dict):
        raise Refusal("the body must be a JSON object", code="invalid_otlp")
    try:
        return ParseDict(_with_base64(document), request, ignore_unknown_fields=True)
    except (ParseError, TypeError, ValueError, AttributeError, RecursionError):
        # The message of the error itself would repeat the input.
        raise Refusal(f"the body is not the JSON form of {type(request).__name__}", code="invalid_otlp") from None


def _with_base64(value: Any) -> Any:
    """Return a JSON value with its IDs in base64, as protobuf's parser expects them."""
    if isinstance(value, list):
        return [_with_base64(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    return {name: _id(item) if name in _HEX else _with_base64(item) for name, item in value.items()}


def _id(value: object) -> str:
    try:
        return b64encode(unhexlify(value)).decode()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise Refusal("an ID of a trace or a span must be a text of hexadecimal digits", code="invalid_otlp") from None


def _count_messages(body: bytes) -> int:
    """Return the number of fields on the four outer levels of a body, at most one more than allowed.

    Invalid protobuf is counted as far as it can be read: the parser refuses it later.
    """
    count = 0
    #: The begin, the end and the level of messages whose fields are not counted yet.
    waiting = [(0, len(body), 0)]
    while waiting:
        begin, end, level = waiting.pop()
        for field, inner, inner_end in _entries(body, begin, end):
            count += 1
            if count > MAX_MESSAGES:
                return count
            # Field 2 of a resource has the scopes; field 2 of a scope has the spans, log records or metrics.
            if level == 0 or (level < _SPAN_LEVEL and field == 2):
                waiting.append((inner, inner_end, level + 1))
    return count


def _entries(body: bytes, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the number of each field, and where its content begins and ends: only fields with a length have content."""
    at = begin
    while at < end:
        tag, at = _varint(body, at, end)
        field, kind, size = tag >> 3, tag & 7, 0
        if kind == 0:
            _, at = _varint(body, at, end)
        elif kind == 2:
            size, at = _varint(body, at, end)
        else:
            at += _FIXED.get(kind, end)
        if not field or at + size > end:
            return
        yield field, at, at + size
        at += size


def _varint(body: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the number at a position, and the position after it; 0 and `end` if the number is invalid."""
    value = shift = 0
    while at < end and shift < 64:
        byte = body[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    return 0, end
