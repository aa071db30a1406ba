"""Ingest from hostile and faulty senders: a refused request changes nothing, and the rest is stored as sent."""

from __future__ import annotations

import gzip
import json
import logging
import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from agentops.accounts.models import ApiKey, Project
from runs.models import AgentRun
from runs.upkeep import invariants, replay_check
from tests.support.api import STARTED, URL, Runner, counts, event, refused
from tests.support.factories import make_agent, make_person, make_project, make_run, with_key
from tests.support.pages import ParsedPage
from tests.support.secret_samples import SETTINGS, TOKENS
from timeline.models import Event

pytestmark = pytest.mark.django_db
JSON = "application/json"
KIB = 1024
#: The first and last time that the calendar supports.
FIRST, LAST = "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"


@pytest.fixture
def project(db: None) -> Project:
    return make_project("outside")


@pytest.fixture
def send(project: Project) -> Runner:
    return Runner(project)


def of_run(project: Project) -> AgentRun:
    return AgentRun.objects.get(project=project, external_id="r1")


def check(run: AgentRun) -> None:
    assert [one for one in invariants.check(run.pk) if not one.warning_only] == []
    assert replay_check.differences(run.pk) == []


def lines_about_requests(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# --- Refusals before parsing ------------------------------------------------------------------------------------------


REFUSED: list[tuple[dict[str, Any], bytes, tuple[int, str]]] = [
    *(
        ({"content_type": kind}, b"{}", (415, "unsupported_media_type"))
        for kind in ("text/plain", "", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded")
    ),
    *(
        ({"content_type": f"{JSON}; charset={charset}"}, b"{}", (415, "unsupported_charset"))
        for charset in ("zlib", "bz2", "rot13", "utf-16", "utf-7", "unicode_escape", "bogus")
    ),
    *(({"HTTP_CONTENT_ENCODING": coding}, b"{}", (415, "unsupported_encoding")) for coding in ("br", "zstd")),
    ({"HTTP_CONTENT_ENCODING": "gzip"}, gzip.compress(b" " * (6 * KIB**2)), (413, "decompressed_too_large")),
    ({"HTTP_CONTENT_ENCODING": "gzip"}, gzip.compress(b"{}") + b"x", (400, "bad_encoding")),
    ({"HTTP_CONTENT_ENCODING": "gzip"}, gzip.compress(gzip.compress(b"{}")), (400, "bad_encoding")),
    ({}, b" " * (6 * KIB**2), (413, "body_too_large")),
    ({"CONTENT_LENGTH": str(6 * KIB**2)}, b"{}", (413, "body_too_large")),
    ({}, json.dumps(event(payload={"a": "x" * 200_001})).encode(), (413, "string_too_long")),
    *(({"method": method}, b"", (405, "method_not_allowed")) for method in ("GET", "PUT", "DELETE", "TRACE")),
    ({"headers": {"Authorization": "Bearer " + "a" * 10_000_000}}, b"{}", (401, "auth_invalid")),
    ({"headers": {"x-agent-runner-secret": "\xff\x00" * 10_000}}, b"{}", (401, "auth_invalid")),
]


@pytest.mark.parametrize(("options", "body", "answer"), REFUSED, ids=range(len(REFUSED)))
def test_a_refusal_changes_nothing_and_logs_one_line(
    send: Runner, options: dict[str, Any], body: bytes, answer: tuple[int, str], caplog: pytest.LogCaptureFixture
) -> None:
    send(STARTED)
    before = counts()
    caplog.clear()

    assert refused(send(body, **options)) == answer

    [line] = lines_about_requests(caplog)
    assert URL in line
    assert counts() == before
    assert send(event()).status_code == 200


def test_a_method_in_a_header_is_ignored(send: Runner) -> None:
    answer = send(STARTED, headers={**send.headers, "X-HTTP-Method-Override": "DELETE"})

    assert (answer.status_code, answer.json()["status"]) == (200, "accepted")


def test_a_key_that_was_sent_as_a_parameter_is_in_no_log(send: Runner, caplog: pytest.LogCaptureFixture) -> None:
    key = send.headers["Authorization"].removeprefix("Bearer ")

    answer = send(STARTED, url=f"{URL}?api_key={key}", headers=None)

    assert refused(answer) == (401, "auth_required")
    assert lines_about_requests(caplog)
    assert key not in caplog.text + answer.content.decode()


def test_an_expired_key_is_refused(send: Runner) -> None:
    ApiKey.objects.update(expires_at=timezone.now())

    assert refused(send(STARTED)) == (401, "auth_revoked")


# --- Batches --------------------------------------------------------------------------------------------------------


def test_of_a_batch_for_several_runs_the_own_ones_are_stored(send: Runner) -> None:
    foreign = make_run(make_agent(make_project("other")))
    before = Event.objects.filter(log=foreign.pk).count()

    answer = send({"events": [STARTED, event(runId=str(foreign.pk)), {**STARTED, "runId": "r2"}, event(runId="r2")]})

    results = answer.json()["results"]
    assert (answer.status_code, [one.get("code") for one in results]) == (207, [None, "run_not_found", None, None])
    assert [one["seq"] for one in results] == [2, None, 2, 3]
    assert Event.objects.filter(log=foreign.pk).count() == before


def test_reserved_types_are_refused_within_a_batch_too(send: Runner) -> None:
    forged = ("run.recovered", "run.rolled_back", "run.resumed", "policy.applied", "hook.decided")
    answer = send({"events": [STARTED, *(event(type_) for type_ in forged)]})

    codes = [one.get("code") for one in answer.json()["results"]]
    assert (answer.status_code, codes) == (207, [None, *["reserved_event_type"] * 5])


def test_an_event_that_is_too_large_leaves_its_neighbours(send: Runner) -> None:
    large = event(payload={"a": ["x" * 100_000] * 3}, event_id="large")
    fits = event(payload={"a": "x" * 199_000, "b": "y" * 60_000}, event_id="fits")
    wide = event("tool.output", {"text": "\N{GRINNING FACE}" * 70_000})
    dialect = {"runId": "r1", "type": "agent:text", "content": "é" * 140_000}

    batch = send({"events": [STARTED, large, fits, wide, dialect]})
    alone = send(large)

    codes = [one.get("code") for one in batch.json()["results"]]
    assert (batch.status_code, codes) == (207, [None, "event_too_large", None, "event_too_large", "event_too_large"])
    assert refused(alone) == (413, "event_too_large")
    assert Event.objects.get(event_id="fits").payload["b"] == "y" * 60_000


def test_a_thousand_repeats_are_one_event(send: Runner) -> None:
    send(STARTED)
    for _ in range(2):
        answer = send({"events": [event(event_id="a", payload={"n": 1})] * 500})
    other_body = send({"events": [event(event_id="b"), event(event_id="b", payload={"n": 2}), event(event_id="b")]})

    assert {(one["seq"], one["duplicate"]) for one in answer.json()["results"]} == {(3, True)}
    assert [(one["status"], one["seq"]) for one in other_body.json()["results"]] == [
        ("accepted", 4),
        ("rejected", 4),
        ("duplicate", 4),
    ]
    assert Event.objects.filter(type="x.note").count() == 2


def test_the_start_of_a_run_that_has_ended_is_late(send: Runner) -> None:
    send({"events": [STARTED, event("run.failed", {"errorType": "e"})]})
    answer = send(event("run.started", {"agent": "other"}, seq=1))

    assert (answer.json()["late"], answer.json()["seq"]) == (True, 4)
    assert AgentRun.objects.get().status == "failed"


def test_a_run_that_is_being_deleted_is_not_opened_again(send: Runner, project: Project) -> None:
    """Its ID becomes available again when its row is deleted."""
    send(STARTED)
    run = of_run(project)
    AgentRun.objects.filter(pk=run.pk).update(removed_at=timezone.now())
    writer = Client(headers=with_key(project, "write"))
    body = {"agent_id": "coder", "source": "external", "external_id": "r1"}

    opened = writer.post("/api/projects/outside/agent-runs", body, content_type=JSON)

    assert refused(send(STARTED)) == refused(opened) == (409, "external_id_conflict")
    assert refused(send(event())) == refused(send(event(runId=str(run.pk)))) == (404, "run_not_found")
    AgentRun._base_manager.filter(pk=run.pk).update(removed_at=None)


# --- Values ---------------------------------------------------------------------------------------------------------


@pytest.mark.every_database
def test_times_in_any_order_and_of_any_year_are_shown(send: Runner, project: Project) -> None:
    turn = {"toolCalls": [{"id": "c", "name": "read"}], "usage": {"inputTokens": 1}}
    answer = send(
        {
            "events": [
                {**STARTED, "ts": "9999-12-31T23:59:59.999999Z"},
                event("llm.turn.end", turn, ts="0001-01-01T00:00:00Z"),
                event("tool.start", {"callId": "c", "toolName": "read"}, ts="9999-12-31T00:00:00Z"),
                event("tool.end", {"callId": "c", "output": "x", "durationMs": 2**62}, ts="1970-01-01T00:00:00Z"),
                event("error", {"error": "boom"}, ts=-62_135_596_800_000),
                event("run.completed", {"result": "ok"}, ts="1900-01-01 00:00"),
            ]
        }
    )

    assert answer.status_code == 200, answer.json()
    assert all(one["clock_skew"] for one in answer.json()["results"])
    run = of_run(project)
    check(run)
    seen_by_all(project, run)


@pytest.mark.parametrize(
    "events",
    [
        [{**STARTED, "ts": FIRST}, event("run.completed", {"result": "ok"}, ts=LAST)],
        [{**STARTED, "ts": LAST}, event("retry.scheduled", {"what": "llm", "delayMs": 1}, ts=LAST)],
        [{**STARTED, "ts": FIRST}, event("llm.turn.end", {"text": "hi", "durationMs": 1}, ts=FIRST)],
        [STARTED, event("run.waiting", {"reason": "timer", "until": FIRST.replace("Z", "+14:00")})],
    ],
    ids=["as long as the calendar", "retried after it", "answered before it", "waiting until before it"],
)
def test_a_run_at_the_limits_of_the_calendar_can_be_shown_and_exported(
    send: Runner, project: Project, events: list[dict[str, Any]]
) -> None:
    assert send({"events": events}).status_code == 200
    run = of_run(project)
    seen_by_all(project, run)

    client = Client()
    client.force_login(make_person(project))
    for page in ("waterfall", "cost", "tree", "head", "export/html"):
        assert client.get(f"/runs/{run.pk}/{page}").status_code == 200, page
    client.force_login(User.objects.create_superuser("root"))
    assert client.get(f"/admin/runs/agentrun/{run.pk}/change/").status_code == 200


def seen_by_all(project: Project, run: AgentRun) -> str:
    """Read every list of the API, and return the page of the run."""
    client = Client()
    client.force_login(make_person(project))
    base = f"/api/projects/{project.slug}/agent-runs"
    parts = ("", "/messages", "/tool-calls", "/events", "/events?dialect=agent", "/errors", "/usage", "/replay")
    for url in (base, *(f"{base}/{run.pk}{part}" for part in parts), f"/p/{project.slug}/runs"):
        assert client.get(url).status_code == 200, url
    page = client.get(f"/runs/{run.pk}")
    assert page.status_code == 200
    return str(page.content.decode())


@pytest.mark.every_database
def test_text_that_means_something_elsewhere_is_plain_text(send: Runner, project: Project) -> None:
    texts = [
        "{{7*7}}",
        "${jndi:ldap://x}",
        "%s%n%s",
        "' OR 1=1; --",
        "\x1b]8;;http://x\x07",
        "<script>alert(1)</script>",
    ]
    odd = {"__proto__": {"admin": True}, "constructor": 1, "$where": "1", **{text: text for text in texts}}
    send(
        {
            "events": [
                STARTED,
                event(payload=odd),
                event("error", {"error": texts[-1]}),
                *(event("message.added", {"role": "user", "content": text}) for text in texts),
            ]
        }
    )

    run = of_run(project)
    check(run)
    assert Event.objects.get(type="x.note").payload == odd
    contents = [message.content["parts"][0]["content"] for message in run.messages.order_by("position")]
    assert contents == texts
    page = seen_by_all(project, run)
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_secrets_of_every_kind_are_masked_in_all_rows(send: Runner, project: Project) -> None:
    told = {f"token-{name}": (f"use {make()} now",) * 2 for name, make in TOKENS.items() if name != "telegram"}
    secrets = {name: text[0].split(" ")[1] for name, text in told.items()}
    told |= {name: SETTINGS[name]() for name in ("bearer", "basic", "aws_secret", "cookie")}
    secrets |= {name: told[name][1] for name in ("bearer", "basic", "aws_secret", "cookie")}
    events = [
        one
        for text, _ in told.values()
        for one in (
            event(payload={"nested": [{"text": text}]}),
            event("message.added", {"role": "user", "content": text}),
        )
    ]
    answer = send({"events": [STARTED, *events]})

    assert answer.status_code == 200
    run = of_run(project)
    stored = str([*Event.objects.values(), *run.messages.values(), *AgentRun.objects.values()])
    assert [name for name, secret in secrets.items() if secret in stored] == []
    assert len(re.findall(r"\[REDACTED:\w+:[0-9a-f]{8}", stored)) >= 2 * len(told)


def test_tool_events_without_a_partner_are_stored_and_shown(send: Runner, project: Project) -> None:
    """An end without a start, a second end, two starts: each call has one row and one card."""
    answer = send(
        {
            "events": [
                STARTED,
                event("tool.end", {"callId": "orphan", "toolName": "read", "output": "one"}),
                event("tool.end", {"callId": "orphan", "toolName": "read", "output": "two"}),
                event("tool.start", {"callId": "twice", "toolName": "write"}),
                event("tool.start", {"callId": "twice", "toolName": "write"}),
                event("tool.output", {"callId": "nowhere", "text": "lost"}),
            ]
        }
    )

    assert answer.status_code == 200
    run = of_run(project)
    check(run)
    calls = run.tool_calls.order_by("step_number").values_list("call_id", "status", "output")
    assert list(calls) == [("orphan", "completed", "one"), ("twice", "running", None)]
    page = seen_by_all(project, run)
    assert "one" in page


def test_token_counts_above_any_real_answer_are_stored_without_a_cost(send: Runner, project: Project) -> None:
    project.settings = {"prices": [{"model": "*", "input": "999999", "output": "1"}]}
    project.save(update_fields=["settings"])
    usage = {"inputTokens": 10**12, "outputTokens": 10**12}
    turns = [event("llm.turn.end", {"text": "So.", "model": "gpt-5", "usage": usage}) for _ in range(3)]
    answer = send({"events": [STARTED, *turns]})

    assert answer.status_code == 200
    run = of_run(project)
    assert (run.input_tokens, run.cost_usd) == (3 * 10**12, None)
    check(run)


def test_batches_in_another_order_are_numbered_as_they_arrive(send: Runner, project: Project) -> None:
    """Each event keeps its timestamp, and a result is matched to its call at any distance from its start."""

    def call(kind: str, call_id: str, second: int, **payload: Any) -> dict[str, Any]:
        at = f"2026-01-01T00:00:{second:02}Z"
        return event(kind, {"callId": call_id, "toolName": "read", **payload}, event_id=f"{kind}-{call_id}", ts=at)

    send({"events": [STARTED, call("tool.start", "a", 1), call("tool.start", "b", 2)]})
    send({"events": [call("tool.end", "b", 5, output="of b")]})
    send({"events": [call("tool.end", "a", 3, output="of a"), event(ts="2025-12-31T00:00:00Z", event_id="old")]})

    run = of_run(project)
    check(run)
    rows = Event.objects.filter(log=run.pk, event_id__isnull=False).exclude(event_id="start").order_by("seq")
    assert [(row.event_id, row.ts.second) for row in rows] == [
        ("tool.start-a", 1),
        ("tool.start-b", 2),
        ("tool.end-b", 5),
        ("tool.end-a", 3),
        ("old", 0),
    ]
    assert [row.seq for row in rows] == sorted(row.seq for row in rows)
    assert dict(run.tool_calls.values_list("call_id", "output")) == {"a": "of a", "b": "of b"}
    page = ParsedPage(seen_by_all(project, run))
    for one in run.tool_calls.all():
        words = page.element(f"call-{one.pk}").words
        assert [text for text in ("of a", "of b") if text in words] == [one.output]


def test_the_rate_limit_leaves_what_was_accepted(send: Runner, settings: Settings) -> None:
    settings.AGENTOPS_RATE_RUN_EVENTS = 10
    accepted = send({"events": [STARTED, *(event(event_id=f"e{n}") for n in range(8))]})
    limited = send({"events": [event(event_id=f"e{n}") for n in range(8, 12)]})

    assert (accepted.status_code, *refused(limited)) == (200, 429, "rate_limited")
    assert int(limited["Retry-After"]) >= 1
    assert list(Event.objects.order_by("seq").values_list("seq", flat=True)) == [*range(1, 11)]


@pytest.mark.parametrize("name", ["runKind", "run_kind"])
def test_the_kind_of_a_run_comes_from_its_start(send: Runner, project: Project, name: str) -> None:
    """Later events do not change it; the log, the API and the job URL use it."""
    send({"events": [{**STARTED, name: "job"}, event(**{name: "session"}), event()]})

    run = of_run(project)
    assert (run.run_kind, set(Event.objects.values_list("run_kind", flat=True))) == ("job", {"job"})
    reader = Client(headers=with_key(project, "read"))
    [listed] = reader.get("/api/projects/outside/agent-runs").json()["results"]
    assert listed["run_kind"] == "job"
    events = reader.get("/api/jobs/r1/events").json()["results"]
    assert {one["runKind"] for one in events} == {"job"}
