"""Ingest over HTTP: authentication, errors, and the result for each event."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client
from pytest_django import Settings

from agentops.accounts.memberships import archive_project
from agentops.accounts.models import ApiKey, Project
from runs.models import AgentRun
from tests.support.api import REFUSED, STARTED, URL, Runner, event
from tests.support.factories import make_agent, make_person, make_project, make_run, with_key
from timeline.events import RESERVED_TYPES
from timeline.models import Event

pytestmark = pytest.mark.django_db
SECRETS = ["first-secret-of-the-runner", "second-secret-of-the-runner"]


@pytest.fixture
def project(db: None) -> Project:
    return make_project("outside")


@pytest.fixture
def send(project: Project) -> Runner:
    return Runner(project)


# --- Callers --------------------------------------------------------------------------------------------------------


def test_without_a_credential_nothing_is_stored(project: Project) -> None:
    answer = Client().post(URL, json.dumps(STARTED), content_type="application/json")

    assert (answer.status_code, answer.json()["code"]) == (401, "auth_required")
    assert "WWW-Authenticate" in answer.headers
    assert not AgentRun.objects.exists()


@pytest.mark.parametrize("scopes", [["read"], ["write"], ["read", "write"]])
def test_a_key_requires_the_scope_ingest(send: Runner, project: Project, scopes: list[str]) -> None:
    answer = send(STARTED, headers=with_key(project, *scopes))

    assert (answer.status_code, answer.json()["code"]) == (403, "scope_required")


def test_an_ingest_key_has_no_other_permission(project: Project) -> None:
    headers = with_key(project, "ingest")

    assert Client().get(f"/api/projects/{project.slug}/agent-runs", headers=headers).status_code in (403, 404)


def test_a_session_does_not_authenticate(project: Project) -> None:
    client = Client()
    client.force_login(make_person(project))

    assert client.post(URL, json.dumps(STARTED), content_type="application/json").status_code == 401


@pytest.mark.parametrize(
    "value", ["", "Bearer", "Bearer x", "Bearer " + "a" * 100_000, "Bearer aok_live_\x00", "Basic eA=="]
)
def test_other_credentials_are_invalid(send: Runner, value: str) -> None:
    answer = send(STARTED, headers={"Authorization": value})

    assert (answer.status_code, answer.json()["code"]) in [(401, "auth_invalid"), (401, "auth_required")]


def test_a_key_in_the_url_is_ignored(project: Project) -> None:
    key = with_key(project, "ingest")["Authorization"].removeprefix("Bearer ")

    answer = Client().post(f"{URL}?api_key={key}", json.dumps(STARTED), content_type="application/json")

    assert (answer.status_code, answer.json()["code"]) == (401, "auth_required")


def test_a_revoked_key_is_refused(project: Project, send: Runner) -> None:
    headers = with_key(project, "ingest")
    ApiKey.objects.update(revoked_at="2020-01-01T00:00:00Z")

    assert send(STARTED, headers=headers).json()["code"] == "auth_revoked"


def test_each_of_the_runner_secrets_is_valid_here_and_nowhere_else(send: Runner, settings: Settings) -> None:
    settings.AGENT_RUNNER_SECRET, settings.AGENT_RUNNER_PROJECT = SECRETS, "outside"

    answers = [send(STARTED, headers={"x-agent-runner-secret": secret}) for secret in SECRETS]
    wrong = send(STARTED, headers={"x-agent-runner-secret": SECRETS[0] + "x"})
    elsewhere = Client().get("/api/projects", headers={"x-agent-runner-secret": SECRETS[0]})

    assert [answer.status_code for answer in answers] == [200, 200]
    assert (wrong.status_code, wrong.json()["code"], elsewhere.status_code) == (401, "auth_invalid", 401)
    assert AgentRun.objects.get().project.slug == "outside"


def test_an_archived_project_is_read_only_for_runner_secrets(send: Runner, settings: Settings) -> None:
    settings.AGENT_RUNNER_SECRET, settings.AGENT_RUNNER_PROJECT = SECRETS, "outside"
    archive_project(Project.objects.get(slug="outside"), actor="test")
    secret = {"x-agent-runner-secret": SECRETS[0]}
    session = {"method": "PATCH", "url": "/api/projects/outside/agent/sessions/s1"}

    answers = [send(STARTED), send(STARTED, headers=secret), send({"status": "running"}, headers=secret, **session)]

    assert [(each.status_code, each.json()["code"]) for each in answers] == [(403, "project_archived")] * 3
    assert not AgentRun.objects.exists()


def test_no_runner_secret_is_valid_if_the_settings_have_none(send: Runner) -> None:
    assert send(STARTED, headers={"x-agent-runner-secret": ""}).status_code == 401


def test_a_run_of_another_project_is_unknown(send: Runner) -> None:
    foreign = make_run(make_agent(make_project("other")))

    unknown = send(event(runId=str(uuid4())))
    of_others = send(event(runId=str(foreign.pk)))

    assert (of_others.status_code, of_others.json()["code"]) == (404, "run_not_found")
    assert of_others.json()["detail"] == unknown.json()["detail"]


# --- Bodies -----------------------------------------------------------------------------------------------------------


def test_bodies_are_read_by_the_parser_of_the_api(send: Runner) -> None:
    for (code, status), bodies in REFUSED.items():
        answer = send(bodies[-1])
        assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert send(b"", headers=None).status_code == 401
    assert send(b"").json()["code"] == "empty_body"
    assert send(b"[]").json()["code"] == "object_expected"
    assert send(b"{}", content_type="text/plain").json()["code"] == "unsupported_media_type"


@pytest.mark.parametrize(
    ("document", "status", "code"),
    [
        ({"events": None}, 422, "events_required"),
        ({"events": {}}, 422, "events_required"),
        ({"events": []}, 422, "events_empty"),
        ({"events": [STARTED] * 501}, 413, "batch_too_large"),
        ({"events": [STARTED], "more": 1}, 422, "unknown_field"),
        ({}, 422, "events_required"),
        ({"runId": "r1"}, 422, "required"),
        (event(type=None), 422, "required"),
        (event("RUN.STARTED"), 422, "unknown_event_type"),
        (event("run.begun"), 422, "unknown_event_type"),
        (event("x" * 10_000), 422, "unknown_event_type"),
        *((event(type_), 403, "reserved_event_type") for type_ in sorted(RESERVED_TYPES)),
        (event(event_id=""), 422, "invalid_identifier"),
        (event(event_id="a\x00b"), 422, "invalid_identifier"),
        (event(event_id=7), 422, "invalid_identifier"),
        *((event(event_id=odd), 422, "invalid_identifier") for odd in ("a b", "é", "a/b", "a" * 129, "１")),
        *(
            (event(**{name: odd}), 422, "invalid_identifier")
            for name in ("runId", "type", "event_id", "nodeId")
            for odd in ("a\ud800", "a\x00", "a\x1b[2J", "a\r\nb", "\u202ea", "")
        ),
        (event(runId="../x"), 404, "run_not_found"),
        (event(runId="{01a206fa-45db-776f-a14c-5d3ca4ecb2dc}"), 404, "run_not_found"),
        *(
            (event(**{name: 1}), 422, "unknown_field")
            for name in ("colour", "project_id", "epoch", "late", "id", "created_at", "__proto__", "log_id")
        ),
        (event(run_id="r1"), 422, "duplicate_field"),
        (event(payload=[1]), 422, "invalid_payload"),
        (event("run.paused", {}), 422, "required"),
        (event(phase="resting"), 422, "invalid_value"),
        (event(step=-1), 422, "invalid_value"),
        (event(step=True), 422, "invalid_value"),
        (event(runKind="task"), 422, "invalid_value"),
        *((event(seq=seq), 422, "invalid_client_seq") for seq in (-1, "7", 1.5, True)),
        (event(seq=2**70), 422, "number_out_of_range"),
        *(
            (event(ts=ts), 422, "invalid_timestamp")
            for ts in (
                "2026-02-30T00:00:00Z",
                "10000-01-01T00:00:00Z",
                "1767225600",
                "now",
                "",
                1.5,
                True,
                [],
                2**60,
                "２０２６-11-23T12:00:00Z",
                "2026-06-30T23:59:60Z",
                "0001-01-01T00:00:00+14:00",
            )
        ),
    ],
)
def test_events_that_are_refused(send: Runner, document: Any, status: int, code: str) -> None:
    answer = send(document)

    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert not Event.objects.exists()


INDIA = timezone(timedelta(hours=5, minutes=30))
#: A minute before these tests were collected.
RECENTLY = datetime.now(UTC) - timedelta(minutes=1)


@pytest.mark.parametrize(
    ("ts", "is_far"),
    [
        ("1970-01-01T00:00:00Z", True),
        ("9999-12-31T23:59:59Z", True),
        (1_767_225_600_000, True),
        pytest.param(RECENTLY.astimezone(INDIA).isoformat(), False, id="another zone"),
        pytest.param(f"{RECENTLY:%Y-%m-%d %H:%M}", False, id="no zone"),
    ],
)
def test_times_far_from_now_are_stored_and_reported(send: Runner, ts: Any, is_far: bool) -> None:
    send(STARTED)
    answer = send(event(ts=ts))

    assert answer.status_code == 200
    assert Event.objects.get(type="x.note").ts is not None
    assert answer.json().get("clock_skew", False) is is_far


def test_what_the_server_sets_is_accepted_and_dropped(send: Runner) -> None:
    answer = send({"events": [STARTED, event(seq=70, phase="completed", source="worker")]})

    assert [one["seq"] for one in answer.json()["results"]] == [2, 3]
    stored = Event.objects.get(type="x.note")
    assert (stored.seq, stored.phase, stored.source) == (3, "running", "ingest")


def test_nul_and_lone_surrogates_are_replaced(send: Runner) -> None:
    send(STARTED)
    assert send(event(payload={"a": "x\x00y\ud800"})).status_code == 200

    stored = Event.objects.get(type="x.note")
    assert (stored.payload["a"], stored.sanitized) == ("x\ufffdy\ufffd", "nul,surrogate")


# --- Results --------------------------------------------------------------------------------------------------------


def test_a_repeat_gets_the_first_number(send: Runner) -> None:
    first = send({"events": [STARTED, event(event_id="a"), event(event_id="a"), event(event_id="b")]})
    again = send({"events": [event(event_id="b"), event(event_id="c"), STARTED]})

    assert [(one["status"], one["seq"]) for one in first.json()["results"]] == [
        ("accepted", 2),
        ("accepted", 3),
        ("duplicate", 3),
        ("accepted", 4),
    ]
    assert [(one["status"], one["seq"]) for one in again.json()["results"]] == [
        ("duplicate", 4),
        ("accepted", 5),
        ("duplicate", 2),
    ]
    assert (again.status_code, again.json()["duplicate"]) == (200, 2)


def test_the_same_id_with_another_body_is_a_conflict(send: Runner) -> None:
    send({"events": [STARTED, event(event_id="a", payload={"n": 1})]})

    alone = send(event(event_id="a", payload={"n": 2}))
    in_batch = send({"events": [event(event_id="a", payload={"n": 2}), event(event_id="a", payload={"n": 1})]})

    assert (alone.status_code, alone.json()["code"], alone.json()["seq"]) == (409, "event_id_conflict", 3)
    assert (in_batch.status_code, [one["status"] for one in in_batch.json()["results"]]) == (
        207,
        ["rejected", "duplicate"],
    )
    assert Event.objects.get(event_id="a").payload == {"n": 1}


def test_invalid_events_of_a_batch_are_named_and_the_others_stored(send: Runner) -> None:
    answer = send({"events": [STARTED, None, "x", [], event(step="1"), event()]})

    assert answer.status_code == 207
    results = answer.json()["results"]
    assert [one.get("code") for one in results] == [
        None,
        "event_object_expected",
        "event_object_expected",
        "event_object_expected",
        "invalid_value",
        None,
    ]
    assert (results[4]["pointer"], answer.json()["rejected"]) == ("/step", 4)
    assert send({"events": [None]}).status_code == 422


def test_events_before_the_start_of_an_unknown_run_are_rejected(send: Runner) -> None:
    answer = send({"events": [event(), STARTED, event()]})

    assert [one.get("code") for one in answer.json()["results"]] == ["run_not_found", None, None]


def test_events_after_the_end_are_late_and_change_no_status(send: Runner) -> None:
    send({"events": [STARTED, event("run.completed", {"result": "ok"})]})
    answer = send(
        {"events": [event("message.added", {"role": "user", "content": "x"}), event("run.failed", {"errorType": "e"})]}
    )

    assert [one["late"] for one in answer.json()["results"]] == [True, True]
    run = AgentRun.objects.get()
    assert (run.status, run.messages.count(), Event.objects.filter(late=True).count()) == ("completed", 0, 2)


def test_a_native_run_accepts_notes_only(send: Runner, project: Project) -> None:
    run = make_run(make_agent(project))

    note = send(event("file.changed", {"path": "a.py"}, runId=str(run.pk)))
    status = send(event("run.completed", runId=str(run.pk)))

    assert (note.status_code, status.status_code, status.json()["code"]) == (200, 409, "run_is_native")


def test_too_many_events_of_a_run_are_refused_and_others_are_not(send: Runner, settings: Settings) -> None:
    settings.AGENTOPS_RATE_RUN_EVENTS = 5
    send({"events": [STARTED, *(event() for _ in range(4))]})

    refused, other = send(event()), send({**STARTED, "runId": "r2"})

    assert (refused.status_code, refused.json()["code"], other.status_code) == (429, "rate_limited", 200)
    assert int(refused.headers["Retry-After"]) >= 1


def test_a_batch_over_the_limit_uses_none_of_it(send: Runner, settings: Settings) -> None:
    """Neither do the events of other runs in the batch, nor an event over the size limit."""
    settings.AGENTOPS_RATE_RUN_EVENTS = 5
    other = {**STARTED, "runId": "r2"}
    refused = [
        send({"events": [other] * 3 + [STARTED] * 6}),
        send(event("x.acme.note", payload={"text": "x" * 300_000})),
        send({"events": [other] * 501}),
    ]

    stored = [send({"events": [first, *(event(runId=first["runId"]) for _ in range(4))]}) for first in (STARTED, other)]

    assert [answer.status_code for answer in refused] == [429, 413, 413]
    assert [answer.status_code for answer in stored] == [200, 200]
    assert send(event()).status_code == 429


def test_too_many_requests_of_a_key_are_refused(send: Runner, settings: Settings) -> None:
    settings.AGENTOPS_RATE_INGEST = 2

    assert [send(STARTED).status_code for _ in range(3)] == [200, 200, 429]
