"""Careless and hostile senders get an answer in their encoding, no server error, and nothing is partially stored."""

from __future__ import annotations

import gzip
import json
import random
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from pytest_django import Settings

from agentops.accounts.access import SYSTEM
from agentops.accounts.keys import revoke
from agentops.accounts.models import ApiKey
from agentops.accounts.redaction_changes import add_secret
from runs.external.otlp import received
from runs.models import AgentRun, OtlpGroup, OtlpItem
from tests.support.factories import make_project, with_key
from tests.support.otlp import (
    JSON,
    PROTOBUF,
    TRACE,
    Exporter,
    Span,
    agent,
    as_json,
    chat,
    pairs,
    said,
    summary,
    tool,
    traces,
)

pytestmark = pytest.mark.django_db
GOOD = traces(agent(1), chat(2, 1))
BODY = GOOD.SerializeToString()


@pytest.fixture
def exporter() -> Exporter:
    return Exporter(make_project("otel"))


def status_of(answer: Any) -> tuple[int, int, str]:
    """Return the HTTP status and the status of the body, which is a google.rpc.Status in the encoding of the answer."""
    if answer["Content-Type"] == JSON:
        body = answer.json()
        return answer.status_code, body.get("code", 0), body.get("message", "")
    status = Status.FromString(answer.content)
    return answer.status_code, status.code, status.message


# --- Callers --------------------------------------------------------------------------------------------------------


def test_authentication_and_scopes(exporter: Exporter) -> None:
    key = exporter.headers["Authorization"].removeprefix("Bearer ")
    client = Client()

    def send(authorization: str | None, path: str = "/v1/traces") -> Any:
        headers = {} if authorization is None else {"Authorization": authorization}
        return client.post(path, BODY, content_type=PROTOBUF, headers=headers)

    def basic(user: str, password: str) -> str:
        return "Basic " + b64encode(f"{user}:{password}".encode()).decode()

    for path in ("/v1/traces", "/api/public/otel/v1/traces"):
        assert [send(one, path).status_code for one in (f"Bearer {key}", f"bearer {key}", basic("pk", key))] == [
            200
        ] * 3
    missing = send(None)
    assert status_of(missing)[:2] == (401, 16)
    assert missing["WWW-Authenticate"] == "Bearer"
    wrong = [
        "Bearer nonsense",
        f"Bearer {key}x",
        "Basic %%%",
        "Basic " + "A" * 9,
        basic(key, "x"),
        f"Digest {key}",
        "Bearer \xff",
    ]
    assert {status_of(send(one))[:2] for one in wrong} == {(401, 16)}
    read_key = with_key(exporter.project, "read", "write")["Authorization"]
    assert status_of(send(read_key))[:2] == (403, 7)
    assert client.get(f"/v1/traces?api_key={key}").status_code == 405
    revoke(ApiKey.objects.get(scopes=["ingest"]), actor=SYSTEM)
    assert status_of(send(f"Bearer {key}"))[:2] == (401, 16)


def test_the_check_of_langfuses_sdk(exporter: Exporter) -> None:
    key = exporter.headers["Authorization"].removeprefix("Bearer ")
    basic = "Basic " + b64encode(f"any:{key}".encode()).decode()
    answer = Client().get("/api/public/projects", headers={"Authorization": basic})

    [project] = answer.json()["data"]
    assert (project["id"], project["name"]) == (str(exporter.project.pk), exporter.project.name)
    assert set(project) == {"id", "name", "organization", "metadata"}
    assert Client().get("/api/public/projects").status_code == 401
    assert Client().get("/api/public/projects", headers=with_key(exporter.project, "read")).status_code == 403


def test_rates_are_limited(exporter: Exporter, settings: Settings) -> None:
    settings.AGENTOPS_RATE_RUN_EVENTS = 5
    answers = [exporter.post(BODY) for _ in range(3)]

    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert status_of(answers[2])[1] == 8
    assert 0 < int(answers[2]["Retry-After"]) <= 60
    other_trace = traces(agent(1, trace=TRACE[::-1]))
    assert exporter.post(other_trace.SerializeToString()).status_code == 200
    settings.AGENTOPS_RATE_INGEST = 1
    assert {exporter.post(BODY).status_code for _ in range(3)} == {429}


# --- Bodies ---------------------------------------------------------------------------------------------------------

DEEP = '{"a":' * 100 + "1" + "}" * 100
NESTED: Any = {"stringValue": "x"}
for _ in range(40):
    NESTED = {"arrayValue": {"values": [NESTED]}}
SPAN = {"traceId": TRACE, "spanId": "00f067aa0ba902b7", "name": "x", "startTimeUnixNano": "1795000000000000000"}


def in_json(span: Any) -> bytes:
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()


REFUSED: dict[str, tuple[int, str, bytes, dict[str, str]]] = {
    "truncated": (400, PROTOBUF, BODY[:-3], {}),
    "no protobuf": (400, PROTOBUF, b"\xff\xfe not protobuf", {}),
    "a protobuf group that never ends": (400, PROTOBUF, b"\x0b" * 5000, {}),
    "deep protobuf": (400, PROTOBUF, b"", {}),
    "many empty messages": (400, PROTOBUF, b"\x0a\x00" * 500_000, {}),
    "many empty spans": (400, PROTOBUF, b"", {}),
    "invalid UTF-8 in a name": (400, PROTOBUF, BODY.replace(b"chat", b"\xff\xfe\xff\xff", 1), {}),
    "JSON called protobuf": (400, PROTOBUF, as_json(GOOD), {}),
    "protobuf called JSON": (400, JSON, BODY, {}),
    "no JSON": (400, JSON, b"{", {}),
    "a list": (400, JSON, b"[]", {}),
    "deep JSON": (400, JSON, DEEP.encode(), {}),
    "a number that is not finite": (400, JSON, b'{"resourceSpans": NaN}', {}),
    "a wrong type": (400, JSON, b'{"resourceSpans": {"a": 1}}', {}),
    "null among spans": (400, JSON, in_json(None), {}),
    "an ID of another type": (400, JSON, in_json(SPAN | {"spanId": 5}), {}),
    "an ID that is no hexadecimal number": (400, JSON, in_json(SPAN | {"spanId": "zz"}), {}),
    "a negative time": (400, JSON, in_json(SPAN | {"startTimeUnixNano": -1}), {}),
    "a time that does not fit": (400, JSON, in_json(SPAN | {"startTimeUnixNano": "99999999999999999999999"}), {}),
    "a duplicate key": (400, JSON, b'{"resourceSpans": [], "resourceSpans": []}', {}),
    "a BOM": (400, JSON, b"\xef\xbb\xbf{}", {}),
    "a gzip bomb": (413, PROTOBUF, b"", {"Content-Encoding": "gzip"}),
    "no gzip": (400, PROTOBUF, BODY, {"Content-Encoding": "gzip"}),
    "half a gzip": (400, PROTOBUF, gzip.compress(BODY)[:-9], {"Content-Encoding": "gzip"}),
    "gzip twice": (400, PROTOBUF, gzip.compress(gzip.compress(BODY)), {"Content-Encoding": "gzip"}),
    "another encoding": (415, PROTOBUF, BODY, {"Content-Encoding": "br"}),
    "too large": (413, PROTOBUF, b"\0" * (5 * 1024 * 1024 + 1), {}),
    "another type": (415, "text/plain", BODY, {}),
    "another charset": (415, f"{JSON}; charset=zlib", b"{}", {}),
}


def deep_protobuf() -> bytes:
    span = Span(3)
    request = traces(span)
    value = request.resource_spans[0].scope_spans[0].spans[0].attributes.add(key="k").value
    for _ in range(90):
        value = value.array_value.values.add()
    value.string_value = "x"
    return request.SerializeToString()


def length_prefixed(field: int, inner: bytes) -> bytes:
    size, prefix = len(inner), bytearray([field << 3 | 2])
    while size > 127:
        prefix.append(size & 127 | 128)
        size >>= 7
    return bytes([*prefix, size]) + inner


#: Slow to build, and each worker of the suite loads this module, so only the test that sends one builds it.
MADE = {
    "deep protobuf": deep_protobuf,
    "many empty spans": lambda: length_prefixed(1, length_prefixed(2, b"\x12\x00" * 500_000)),
    "a gzip bomb": lambda: gzip.compress(b"\0" * 50_000_000),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_body_that_is_refused(exporter: Exporter, case: str) -> None:
    status, content_type, body, headers = REFUSED[case]
    body = MADE[case]() if case in MADE else body
    answer = exporter.post(body, content_type=content_type, **headers)

    assert status_of(answer)[0] == status, answer.content[:300]
    assert status_of(answer)[1] in (3, 8)
    assert status_of(answer)[2]
    assert (answer["Content-Type"] == JSON) is content_type.startswith(JSON)
    assert not OtlpGroup.objects.exists()
    assert exporter.post(BODY).status_code == 200


def test_other_methods_are_refused(exporter: Exporter) -> None:
    for method in ("get", "put", "delete", "patch"):
        answer = getattr(Client(), method)("/v1/traces", headers=exporter.headers)
        assert (answer.status_code, answer["Allow"]) == (405, "POST")


def test_an_empty_request_is_accepted(exporter: Exporter) -> None:
    assert exporter.post(b"{}", content_type=JSON).content == b"{}"
    assert exporter.post(gzip.compress(BODY), **{"Content-Encoding": "gzip"}).content == b""


# --- Spans ----------------------------------------------------------------------------------------------------------


def test_rejected_spans_are_counted_and_named_and_the_others_stored(exporter: Exporter) -> None:
    request = traces(agent(1), chat(2, 1), *(chat(number, 1) for number in range(3, 9)))
    spans = request.resource_spans[0].scope_spans[0].spans
    spans[2].trace_id, spans[3].trace_id = b"", b"\0" * 16
    spans[4].span_id, spans[5].parent_span_id = b"\1" * 9, b"\1"
    spans[6].attributes.extend(pairs({"big": "x" * 2_100_000}))
    spans[7].attributes.extend(pairs({str(number): number for number in range(1_001)}))
    spans.add().CopyFrom(spans[0])
    spans[8].name = "another span with the same ID"
    answer = exporter.post(request.SerializeToString())

    partial = ExportTraceServiceResponse.FromString(answer.content).partial_success
    assert (answer.status_code, partial.rejected_spans) == (200, 7)
    for reason in (
        "2 rejected: a trace ID",
        "a span ID",
        "parent span",
        "characters",
        "1000 attributes",
        "with this ID",
    ):
        assert reason in partial.error_message
    exporter.settle()
    [run] = exporter.runs()
    assert run.input_tokens == 10
    # The ID is taken, also for later requests.
    again = exporter.post(as_json(traces(agent(1, agent="changed"))), content_type=JSON).json()
    assert again["partialSuccess"]["rejectedSpans"] == "1"


def test_a_rejected_resource_does_not_reset_the_count_of_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(received, "MAX_ENTRIES", 2)
    monkeypatch.setattr(received, "MAX_ATTRIBUTES", 20)
    request, rejected, third = traces(agent(1), chat(2, 1)), traces(agent(3)), traces(agent(4), chat(5, 4))
    rejected.resource_spans[0].resource.attributes.extend(pairs({str(number): number for number in range(21)}))
    for other in (rejected, third):
        request.resource_spans.extend(other.resource_spans)
    report = received.ExportReport()

    assert len(received.spans_of(request, report)) == 2
    assert report.codes == {"entry_too_large": 1, "too_many_entries": 2}


def asked(sent: Any, answered: Any = None, id_: int = 1) -> Span:
    more = {"gen_ai.input.messages": sent} | ({} if answered is None else {"gen_ai.output.messages": answered})
    return chat(id_, more=more)


STRANGE: dict[str, list[Span]] = {
    "a cycle of parents": [agent(1, 2), chat(2, 3), tool(3, 1)],
    "its own parent": [chat(1, 1), tool(2, 2), agent(3, 3)],
    "a chain of two thousand": [chat(2001, 2000), *(Span(n, n - 1) for n in range(2, 2001)), agent(1)],
    "three hundred agents": [agent(1), *(agent(n, n - 1) for n in range(2, 301)), chat(500, 300)],
    "it ends before it begins": [chat(1, took=-500)],
    "times of 1970": [chat(1, at=-1_795_000_000 + 1)],
    "times of 2500": [chat(1, at=15_000_000_000)],
    "no name and no attributes of a model": [Span(1, name="", attributes={"gen_ai.operation.name": "chat"})],
    "NUL everywhere": [
        chat(1, input=said("us\0er", "a\0b"), output=said("assistant", "\0", {"id": "\0", "name": "\0"})),
        tool(2, tool="\0", more={"gen_ai.tool.call.id": "a\0"}),
    ],
    "lone surrogates in JSON": [asked('[{"role": "user", "parts": [{"type": "text", "content": "\\ud800"}]}]')],
    "messages of other forms": [asked('{"x": [1, {"y": null}]}', "[[1], 2]"), asked([1, {"a": "b"}], 5, id_=2)],
    "calls with the same ID, or none": [
        chat(1, output=said("assistant", "x", {"id": "c", "name": "a"}, {"id": "c", "name": "b"}, {"name": "d"})),
        chat(2, output=said("assistant", "x", {"id": "e" * 999, "name": "f" * 999})),
    ],
    "tokens that are none": [
        chat(1, tokens=(-5, 2**62)),
        chat(2, more={"gen_ai.usage.input_tokens": "7", "gen_ai.usage.cost": "NaN"}),
    ],
    "costs without bounds": [chat(1, more={"gen_ai.usage.cost": 1e300}), chat(2, more={"gen_ai.usage.cost": -1.0})],
    "numbers that are not finite": [chat(1, more={"x": float("nan"), "gen_ai.usage.input_tokens": float("inf")})],
    "indexes without bounds": [
        chat(1, more={"gen_ai.prompt.99999999999.role": "user", "gen_ai.prompt.x.y": 1, "gen_ai.prompt": "p"}),
        chat(2, more={"llm.input_messages.0": "x", "llm.input_messages.0.message": 1}),
    ],
    "a session ID of any text": [chat(1, more={"session.id": "<script>" * 99})],
}


@pytest.mark.slow
@pytest.mark.parametrize("case", STRANGE)
def test_strange_spans_leave_consistent_runs(exporter: Exporter, case: str) -> None:
    exporter.send(*STRANGE[case])
    exporter.send(*STRANGE[case][::-1])
    exporter.settle(700)

    runs = exporter.runs()
    assert runs
    assert {run.status for run in runs} <= {"completed", "waiting", "failed"}
    assert not OtlpItem.objects.filter(filed_under=None).exists()
    assert not OtlpGroup.objects.exclude(due_at=None).exists()
    assert all(0 <= run.input_tokens <= 2**40 and summary(run) for run in runs)


def test_no_secret_is_stored(exporter: Exporter) -> None:
    """Neither in runs nor in spans waiting for the rest of their trace."""
    secret = "ghp_" + "0a1B" * 9
    exporter.send(
        chat(2, 1, input=said("user", f"use {secret}"), more={"session.id": secret}), tool(3, 1, error=secret)
    )
    for _ in range(2):
        stored = json.dumps(
            [list(OtlpItem.objects.values_list("facts", "response_id")), list(OtlpGroup.objects.values_list("key"))]
        )
        assert secret not in stored
        exporter.settle()
    exporter.send(agent(1))
    exporter.settle()
    [run] = exporter.runs()
    assert "[REDACTED:" in str(run.prompt)
    assert secret not in str(
        [run.session_id, list(run.messages.values_list("content")), list(run.tool_calls.values_list("output"))]
    )


def test_a_session_id_made_longer_by_masking_blocks_no_other_trace(exporter: Exporter) -> None:
    """It is cut to the length of its column, which PostgreSQL enforces; otherwise all later traces would wait."""
    other = Exporter(make_project("other"))
    keys = ",".join(f"AKIA{number:016d}".replace("0", "Q") for number in range(6))
    exporter.send(chat(2, 1))
    exporter.settle()
    exporter.send(agent(1, more={"session.id": keys}))
    other.send(agent(1), chat(2, 1))

    exporter.settle()

    [run], [next_run] = exporter.runs(), other.runs()
    assert run.session_id.startswith("[REDACTED:")
    assert len(run.session_id) == 128
    assert next_run.status == "completed"


@pytest.mark.breaks_invariants("a counter is set by hand")
def test_a_trace_refused_by_the_database_blocks_no_other(exporter: Exporter) -> None:
    """On PostgreSQL: its step counter is at the maximum of its column, which SQLite does not enforce."""
    other = Exporter(make_project("other"))
    exporter.send(chat(2, 1))
    exporter.settle()
    AgentRun.objects.update(step_count=2**31 - 1)
    exporter.send(chat(3, 1))
    other.send(agent(1), chat(2, 1))

    exporter.settle()

    [run] = other.runs()
    assert run.status == "completed"


def test_each_project_has_its_own_redaction_rules(
    exporter: Exporter, django_capture_on_commit_callbacks: Callable[..., Any]
) -> None:
    """When spans are received, and when a worker processes traces of several projects one after the other."""
    other = Exporter(make_project("other"))
    with django_capture_on_commit_callbacks(execute=True):
        add_secret(exporter.project, "harbour", "blue-harbour-77", actor="test")
    for each in (exporter, other):
        each.send(
            chat(1, input=said("user", "go to blue-harbour-77"), output=said("assistant", "blue-harbour-77 it is"))
        )
    exporter.settle()

    [masked], [plain] = exporter.runs(), other.runs()
    assert str(masked.prompt).startswith("go to [REDACTED:harbour:")
    assert "blue-harbour-77" not in str(list(masked.messages.values_list("content")))
    assert (plain.prompt, plain.summary) == ("go to blue-harbour-77", "blue-harbour-77 it is")


def test_corrupted_bodies_get_an_answer(exporter: Exporter) -> None:
    """Bodies with random bytes changed are accepted or refused, and accepted ones can be processed."""
    chance = random.Random(7)
    full = traces(agent(1), chat(2, 1, input=said("user", "x"), output=said("assistant", "y")), tool(3, 1))
    for body, content_type in ((full.SerializeToString(), PROTOBUF), (as_json(full), JSON)):
        for _ in range(60):
            changed = bytearray(body)
            for _ in range(chance.randrange(1, 6)):
                changed[chance.randrange(len(changed))] = chance.randrange(256)
            assert exporter.post(bytes(changed), content_type=content_type).status_code in (200, 400, 422)
    exporter.settle(700)
    exporter.runs()
    assert not OtlpItem.objects.filter(filed_under=None, group__run__isnull=False).exists()
    assert ExportTraceServiceRequest.FromString(BODY) == GOOD


def test_costs_that_add_up_to_infinity_are_unknown(exporter: Exporter) -> None:
    """No database stores infinity in JSON."""
    costs = {"langfuse.observation.cost_details": '{"input": 1e308, "output": 1e308}'}
    exporter.send(agent(1), chat(2, 1, output=said("assistant", "y"), more=costs))
    exporter.settle()

    [run] = exporter.runs()
    assert (run.step_count, run.cost_source) == (1, "computed")


def test_a_key_in_the_address_is_no_key_and_in_no_log(exporter: Exporter, caplog: pytest.LogCaptureFixture) -> None:
    key = exporter.headers["Authorization"].removeprefix("Bearer ")
    for path in ("/v1/traces", "/v1/logs", "/api/public/otel/v1/traces"):
        answer = Client().post(f"{path}?api_key={key}&key={key}", BODY, content_type=PROTOBUF)
        assert answer.status_code == 401
        assert key not in caplog.text + answer.content.decode("latin-1")


@pytest.mark.slow
def test_attributes_shared_by_all_spans_are_not_stored_with_each(exporter: Exporter) -> None:
    """A resource, a scope and a session of 1 MiB each: 200 spans must not store 600 MiB."""
    long = "x" * 1024 * 1024
    request = traces(agent(1), *(chat(number, 1) for number in range(2, 201)))
    [resource] = request.resource_spans
    for name in ("host.name", "service.name", "session.id", "gen_ai.conversation.id"):
        resource.resource.attributes.add(key=name).value.string_value = long[: 1024 * 400]
    resource.scope_spans[0].scope.name = long
    assert exporter.post(request.SerializeToString()).status_code == 200
    assert OtlpItem.objects.count() == 200
    assert sum(len(json.dumps(facts)) for facts in OtlpItem.objects.values_list("facts", flat=True)) < len(long)
