"""Create, pause, stop and commands through the API: effects, errors, permissions, and audit entries."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from django.conf import settings as django_settings
from django.core.management import call_command
from django.db import connection, connections
from django.test import Client
from pytest_django import Settings

from agentops.accounts.models import AuditEntry, Role
from runs.lifecycle import inbox, transitions
from runs.models import AgentRun, RunCommand
from runs.statuses import RunStatus
from runs.worker.worker import Worker
from tests.support.api import JSON, Program, counts, pointers, program, refused
from tests.support.factories import (
    drive,
    key_prefix,
    make_agent,
    make_person,
    make_project,
    make_run,
    session_of,
    signed_in,
    with_key,
)
from tests.support.run_checks import check, events
from timeline.events.run import RunCompleted
from timeline.models import Source

UNKNOWN = "01a1f86c-1b1a-72f0-b808-0c8f1390c3f4"


@pytest.fixture
def alpha(db: None) -> Program:
    project = make_project("alpha")
    make_agent(project, slug="player", max_steps=40)
    return program(project)


@pytest.fixture
def run(alpha: Program) -> AgentRun:
    return make_run(make_agent(alpha.project))


def now(run: AgentRun) -> AgentRun:
    return AgentRun.objects.get(pk=run.pk)


def completed(run: AgentRun) -> AgentRun:
    claimed = transitions.claim(run.pk, "worker")
    assert claimed is not None
    transitions.move(claimed.run, RunStatus.COMPLETED, RunCompleted(), source=Source.WORKER, epoch=claimed.epoch)
    return now(run)


def trail() -> list[tuple[str, str, str]]:
    entries = AuditEntry.objects.filter(action__startswith="run.").order_by("created_at")
    return [(entry.action, entry.actor, entry.object_id) for entry in entries]


# --- Create -----------------------------------------------------------------------------------------------------


def test_create_starts_a_run(alpha: Program) -> None:
    body = {"agent_id": "player", "prompt": "Go\non", "title": " A  title ", "labels": ["b", " a ", "b"]}
    answer = alpha.post("", body | {"max_steps": 7, "parent_run_id": None})

    run = AgentRun.objects.get()
    assert (answer.status_code, answer["Location"]) == (201, f"/api/projects/alpha/agent-runs/{run.pk}")
    assert answer.json() == alpha.client.get(answer["Location"], headers=alpha.headers).json()
    assert (
        answer.json().items()
        >= {
            "id": str(run.pk),
            "status": "queued",
            "agent_id": "player",
            "prompt": "Go\non",
            "title": "A title",
            "labels": ["b", "a"],
            "max_steps": 7,
        }.items()
    )
    assert trail() == [("run.created", f"key:{key_prefix(alpha.headers)}", str(run.pk))]
    check(run)


def test_omitted_fields_get_their_defaults(alpha: Program) -> None:
    """Null also selects the default."""
    for body in ({}, {"prompt": None, "max_steps": None, "title": "", "labels": []}):
        made = alpha.post("", {"agent_id": "player"} | body).json()
        assert (made["max_steps"], made["labels"]) == (40, [])
        assert made["prompt"]
        assert made["title"]
    make_agent(alpha.project, slug="speaker", provider="scripted", model="scripted-model", tools=[])
    answer = alpha.post("", {"agent_id": "speaker"})
    assert (refused(answer), pointers(answer)) == ((422, "message_empty"), {"/prompt": "message_empty"})


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        *[("max_steps", value, "invalid_max_steps") for value in (0, -1, 501, 2**31, "50", 1.5, 50.0, True, [1])],
        *[("agent_id", "nobody", "agent_not_found"), ("agent_id", "", "blank")],
        *[("agent_id", value, "invalid_identifier") for value in ("No Slug", "a\0b", "\ud800", "../player")],
        ("agent_id", "p" * 64, "max_length"),
        ("agent_id", None, "null"),
        *[("prompt", value, "message_empty") for value in ("", "  \n")],
        ("title", "x" * 201, "max_length"),
        ("labels", ["x"] * 33, "max_length"),
        ("labels", "x", "not_a_list"),
        *[("parent_run_id", value, "invalid") for value in ("x", 5, UNKNOWN.replace("-", ""), f"urn:uuid:{UNKNOWN}")],
        ("parent_run_id", UNKNOWN, "invalid_parent"),
    ],
    ids=lambda value: str(value)[:20].encode("unicode_escape").decode(),
)
def test_an_invalid_run_is_refused(alpha: Program, field: str, value: Any, code: str) -> None:
    before = counts()
    answer = alpha.post("", {"agent_id": "player", field: value})

    assert refused(answer) == (422, code)
    assert pointers(answer) == {f"/{field}": code}
    assert counts() == before


def test_an_agent_that_cannot_work_is_refused(alpha: Program) -> None:
    """The error contains the invalid name."""
    broken: dict[str, dict[str, Any]] = {
        "acme": {"provider": "acme"},
        "rm_rf": {"tools": ["rm_rf"]},
        "../../etc": {"fixture": "../../etc"},
    }
    for name, fields in broken.items():
        agent = make_agent(alpha.project, **fields)
        answer = alpha.post("", {"agent_id": agent.slug, "prompt": "Go."})
        assert refused(answer) == (422, "invalid_agent")
        assert name in answer.json()["detail"]
    assert not AgentRun.objects.exists()


def test_a_parent_and_its_limits(alpha: Program) -> None:
    """A foreign parent is unknown; at most two levels and twenty children."""
    foreign = make_run(make_agent(make_project("beta")))
    body = {"agent_id": "player", "prompt": "Go."}

    def child(parent: Any) -> Any:
        return alpha.post("", body | {"parent_run_id": str(parent)})

    unknown, other = child(UNKNOWN).json(), child(foreign.pk).json()
    assert {**other, "request_id": ""} == {**unknown, "request_id": ""}
    top = alpha.post("", body).json()["id"]
    middle = child(top).json()
    assert middle["parent_run_id"] == top
    low = child(middle["id"]).json()["id"]
    before = counts()
    assert refused(child(low)) == (422, "max_depth_exceeded")
    assert counts() == before

    for number in range(django_settings.AGENTOPS_MAX_CHILDREN - 1):
        made = child(top)
        assert made.status_code == 201, number
    # A child and the run that resumes it count as one child.
    inbox.pause(made.json()["id"], by="test")
    assert alpha.post(f"/{made.json()['id']}/resume").json()["parent_run_id"] == top
    assert refused(child(top)) == (422, "max_children_exceeded")


@pytest.mark.parametrize(
    ("lowered", "depth", "children"), [({"max_child_depth": 1}, 1, 9), ({"max_children": 1}, 2, 1)]
)
def test_an_agent_can_lower_the_limits_of_its_children(
    alpha: Program, settings: Settings, lowered: dict[str, int], depth: int, children: int
) -> None:
    settings.AGENTOPS_MAX_CHILDREN = 9
    top = make_run(make_agent(alpha.project, settings=lowered))
    body = {"agent_id": "player", "prompt": "Go."}
    first = alpha.post("", body | {"parent_run_id": str(top.pk)}).json()["id"]
    answers = [alpha.post("", body | {"parent_run_id": parent}).status_code for parent in (first, str(top.pk))]
    assert answers == [201 if depth > 1 else 422, 201 if children > 1 else 422]


@pytest.mark.django_db(transaction=True)
def test_concurrent_creations_do_not_exceed_the_limit_of_children(alpha: Program, settings: Settings) -> None:
    """Eight concurrent requests for one place."""
    settings.AGENTOPS_MAX_CHILDREN = 2
    parent = make_run(make_agent(alpha.project))
    body = {"agent_id": "player", "prompt": "Go.", "parent_run_id": str(parent.pk)}
    statuses: list[int] = []

    def ask() -> None:
        try:
            statuses.append(Program(alpha.project, alpha.headers).post("", body).status_code)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert sorted(statuses) == [201] * 2 + [422] * 6


# --- Pause, stop, commands --------------------------------------------------------------------------------------


def test_pause_and_stop(alpha: Program, run: AgentRun) -> None:
    """A repeated request has the same answer and writes no event."""
    for path, status in (("pause", "paused"), ("stop", "stopped")):
        first = alpha.post(f"/{run.pk}/{path}")
        before = counts()
        again = alpha.post(f"/{run.pk}/{path}", {})
        assert [(one.status_code, one.json()["status"]) for one in (first, again)] == [(200, status)] * 2
        assert counts() == before
    assert [action for action, _, _ in trail()] == ["run.stopped"]
    check(run)


def test_a_running_run_gets_a_command_for_its_worker(alpha: Program, run: AgentRun) -> None:
    assert transitions.claim(run.pk, "worker")
    for path in ("pause", "stop"):
        answer = alpha.post(f"/{run.pk}/{path}")
        assert (answer.status_code, answer.json()["status"]) == (202, "running")
    assert [(c.type, c.created_by) for c in inbox.pending_commands(run.pk)] == [
        (kind, f"key:{key_prefix(alpha.headers)}") for kind in ("pause", "stop")
    ]


def test_commands_are_recorded(alpha: Program, run: AgentRun) -> None:
    """The response is the recorded command."""
    sent = alpha.post(f"/{run.pk}/commands", {"type": "send", "message": "Hello\0", "key": "k-1"})
    replied = alpha.post(f"/{run.pk}/commands", {"type": "reply", "payload": {"message": "Yes"}})
    paused = alpha.post(f"/{run.pk}/commands", {"type": "pause", "key": "k-2"})

    assert [answer.status_code for answer in (sent, replied, paused)] == [202, 202, 202]
    first, second, third = sent.json(), replied.json(), paused.json()
    assert first["id"] == str(RunCommand.objects.get(type="send").pk)
    hello = "Hello\N{REPLACEMENT CHARACTER}"
    assert (first["type"], first["key"], first["payload"]) == ("send", "k-1", {"message": hello})
    assert (first["applied_at"], first["run_status"], first["run_id"]) == (None, "queued", str(run.pk))
    assert first["created_by"] == f"key:{key_prefix(alpha.headers)}"
    assert (second["key"], second["payload"]) == (None, {"message": "Yes"})
    assert third["run_status"] == "paused"
    assert third["applied_at"]
    received = [event.payload["type"] for event in events(run) if event.type == "command.received"]
    assert received == ["send", "reply", "pause"]
    assert alpha.post(f"/{run.pk}/commands", {"type": "pause"}).json() == {
        "id": None,
        "run_id": str(run.pk),
        "run_status": "paused",
        "type": "pause",
    }

    resumed = alpha.post(f"/{run.pk}/commands", {"type": "resume", "message": "Go on."})
    new = AgentRun.objects.get(resumed_from=run)
    assert (resumed.status_code, resumed.json()["id"]) == (201, str(new.pk))
    said = [message.content["parts"][0]["content"] for message in new.messages.order_by("position")]
    assert said == [hello, "Yes", "Go on."]
    check(new)


def test_a_command_key_records_a_command_once(alpha: Program, run: AgentRun) -> None:
    command = {"type": "send", "message": "Hello", "key": "k"}
    first = alpha.post(f"/{run.pk}/commands", command)
    before = counts()
    again = alpha.post(f"/{run.pk}/commands", command)

    assert (again.status_code, again.json()) == (200, first.json())
    for other in ({"message": "Other"}, {"type": "stop", "message": None}):
        answer = alpha.post(f"/{run.pk}/commands", command | other)
        assert (refused(answer), pointers(answer)) == ((409, "command_key_conflict"), {"/key": "command_key_conflict"})
    assert counts() == before
    # Keys with the prefix of recordings stay available to callers.
    assert alpha.post(f"/{run.pk}/commands", command | {"key": "recorded:1"}).status_code == 202
    assert not RunCommand.objects.filter(key="recorded:1").exists()


@pytest.mark.parametrize(
    ("body", "code", "pointer"),
    [
        ({}, "required", "/type"),
        ({"type": "dance"}, "invalid_choice", "/type"),
        ({"type": "SEND", "message": "x"}, "invalid_choice", "/type"),
        ({"type": ["send"], "message": "x"}, "invalid_choice", "/type"),
        ({"type": "send"}, "required", "/message"),
        ({"type": "reply", "message": None}, "required", "/message"),
        ({"type": "send", "message": " \n"}, "message_empty", "/message"),
        ({"type": "send", "message": 5}, "invalid", "/message"),
        ({"type": "send", "payload": {"text": "x"}}, "unknown_field", "/payload/text"),
        ({"type": "send", "payload": "x"}, "invalid", "/payload"),
        ({"type": "send", "message": "x", "payload": {"message": "y"}}, "repeated", "/payload"),
        ({"type": "stop", "message": "x"}, "unknown_field", "/message"),
        ({"type": "stop", "run": "x"}, "unknown_field", "/run"),
        ({"type": "stop", "key": ""}, "blank", "/key"),
        ({"type": "stop", "key": "a b"}, "invalid_identifier", "/key"),
        ({"type": "stop", "key": "k\n"}, "invalid_identifier", "/key"),
        ({"type": "stop", "key": "k\0"}, "invalid_identifier", "/key"),
        ({"type": "stop", "key": "k" * 121}, "max_length", "/key"),
        ({"type": "stop", "key": 5}, "invalid", "/key"),
    ],
    ids=range(19),
)
def test_invalid_commands_are_refused(
    alpha: Program, run: AgentRun, body: dict[str, Any], code: str, pointer: str
) -> None:
    before = counts()
    answer = alpha.post(f"/{run.pk}/commands", body)
    assert (refused(answer), pointers(answer)) == ((422, code), {pointer: code})
    assert counts() == before


def test_an_ended_run_takes_no_command(alpha: Program, run: AgentRun) -> None:
    """409 with the status of the run."""
    completed(run)
    before = counts()
    bodies = [{"type": kind, "message": "x"} for kind in ("send", "reply")] + [{"type": "stop"}, {"type": "pause"}]
    for path, body in [("commands", body) for body in bodies] + [("stop", {}), ("pause", {})]:
        answer = alpha.post(f"/{run.pk}/{path}", body)
        assert refused(answer) == (409, "run_terminal")
        assert answer.json()["run_status"] == "completed"
    assert counts() == before


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_stop_races_with_completion(alpha: Program) -> None:
    """There is one terminal event: an accepted stop stops the run, and a late stop is refused."""

    worker = Worker()

    def work(run: AgentRun) -> None:
        try:
            # Does nothing if the stop comes before the claim.
            worker.drive(run.pk)
        finally:
            connections.close_all()

    for round_ in range(8):
        run = make_run(make_agent(alpha.project))
        thread = threading.Thread(target=work, args=[run])
        thread.start()
        time.sleep(round_ * 0.02)
        answer = alpha.post(f"/{run.pk}/stop")
        thread.join(60)
        ends = [event.type for event in events(run) if event.type in ("run.completed", "run.stopped", "run.failed")]
        assert (answer.status_code, ends) in [
            (200, ["run.stopped"]),
            (202, ["run.stopped"]),
            (409, ["run.completed"]),
        ]
        check(run)
    worker.close(5)


# --- Permissions ------------------------------------------------------------------------------------------------

WRITES: list[tuple[str, Any]] = [
    ("", {"agent_id": "player", "prompt": "Go."}),
    ("/{run}/resume", {}),
    ("/{run}/pause", {}),
    ("/{run}/stop", {}),
    ("/{run}/commands", {"type": "send", "message": "x"}),
    ("/resume", {"ids": ["{run}"]}),
]


def on(path: str, run: object) -> str:
    return path.replace("{run}", str(run))


@pytest.mark.parametrize(("path", "body"), WRITES, ids=[path or "create" for path, _ in WRITES])
def test_only_permitted_callers_may_write(alpha: Program, run: AgentRun, path: str, body: Any) -> None:
    """Operators, admins, superusers and keys with the scope write may."""
    beta = make_project("beta")
    body = {"ids": [str(run.pk)]} if "ids" in body else body
    inbox.pause(run.pk, by="test")
    superuser = make_person()
    superuser.is_superuser = True
    superuser.save()
    before = counts()

    def ask(headers: dict[str, str], at: object = run.pk) -> Any:
        return Program(alpha.project, headers).post(on(path, at), body)

    strangers = [with_key(beta, "write"), signed_in(make_person(beta, Role.ADMIN)), signed_in(make_person())]
    for headers in strangers:
        assert refused(ask(headers))[0] == 404
    for headers in (with_key(alpha.project, "read"), with_key(alpha.project, "ingest")):
        assert refused(ask(headers)) == (403, "scope_required")
    assert refused(ask(signed_in(make_person(alpha.project, Role.VIEWER)))) == (403, "role_required")
    assert refused(ask({})) == (401, "auth_required")
    assert refused(ask({"Authorization": "Bearer nonsense"})) == (401, "auth_invalid")
    if "{run}" in path:
        assert refused(ask(alpha.headers, UNKNOWN)) == (404, "run_not_found")
        foreign = make_run(make_agent(beta))
        before = counts()
        assert refused(ask(alpha.headers, foreign.pk)) == (404, "run_not_found")
    assert counts() == before | {"AuditEntry": counts()["AuditEntry"]}
    people = [make_person(alpha.project, role) for role in (Role.OPERATOR, Role.ADMIN)]
    for headers in (alpha.headers, *map(signed_in, people), signed_in(superuser)):
        assert ask(headers).status_code in (200, 201, 202, 409)


@pytest.mark.parametrize(("path", "body"), WRITES, ids=[path or "create" for path, _ in WRITES])
def test_a_session_requires_a_csrf_token_and_a_key_does_not(
    alpha: Program, run: AgentRun, path: str, body: Any
) -> None:
    """403 without the token or from another site; GET changes nothing."""
    inbox.pause(run.pk, by="test")
    browser = Client(enforce_csrf_checks=True)
    person = make_person(alpha.project, Role.OPERATOR)
    browser.cookies[django_settings.SESSION_COOKIE_NAME] = session_of(person)
    browser.get("/p/alpha/runs")
    token = browser.cookies["csrftoken"].value
    body = {"ids": [str(run.pk)]} if "ids" in body else body
    before = counts()
    url = alpha.url(on(path, run.pk))

    def ask(**headers: str) -> Any:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return browser.post(url, body, content_type=JSON, headers=sent)

    for headers in ({}, {"X_CSRFToken": "x" * 32}, {"X_CSRFToken": token, "Origin": "https://evil.example"}):
        assert refused(ask(**headers)) == (403, "csrf_failed")
    for method in ("put", "patch", "delete", "trace"):
        answer = browser.generic(method.upper(), url, headers={"X-CSRFToken": token})
        assert answer.status_code == 405
        assert "POST" in answer["Allow"]
    if path:
        assert refused(browser.get(url)) == (405, "method_not_allowed")
    assert refused(ask(X_CSRFToken=token, X_HTTP_Method_Override="GET", Content_Type="text/plain"))[0] == 415
    assert counts() == before
    assert ask(X_CSRFToken=token).status_code in (200, 201, 202)


def test_an_unknown_parameter_is_refused(alpha: Program, run: AgentRun) -> None:
    assert refused(alpha.post(f"/{run.pk}/stop?force=1")) == (400, "unknown_parameter")
    assert now(run).status == "queued"


# --- One audit log for every interface ----------------------------------------------------------------------------


def test_every_interface_writes_the_same_audit_entries(alpha: Program) -> None:
    """Creating, resuming or stopping a run writes one entry each, with the actor, for pages, API and commands."""
    page = Client()
    page.force_login(make_person(alpha.project, Role.OPERATOR))
    page.get("/p/alpha/runs/new")
    form = {"agent": "player", "prompt": "Go.", "token": str(uuid4())}

    def by_page(run_id: str) -> None:
        page.post(f"/runs/{run_id}/resume")
        page.post(f"/runs/{AgentRun.objects.get(resumed_from=run_id).pk}/stop")

    def by_api(run_id: str) -> None:
        new = alpha.post(f"/{run_id}/resume").json()["id"]
        alpha.post(f"/{new}/stop")

    def by_command(run_id: str) -> None:
        call_command("agent", "resume", run_id)
        call_command("agent", "stop", str(AgentRun.objects.get(resumed_from=run_id).pk))

    doors: dict[str, Any] = {
        "user:": (lambda: page.post("/p/alpha/runs/new", form), by_page),
        "key:": (lambda: alpha.post("", {"agent_id": "player", "prompt": "Go."}), by_api),
        "cli:": (lambda: call_command("agent", "run", "player", "--project", "alpha", "--prompt", "Go."), by_command),
    }
    for actor, (create, steer) in doors.items():
        AuditEntry.objects.all()._raw_delete("default")
        create()
        run = AgentRun.objects.latest("created_at")
        inbox.pause(run.pk, by="test")
        steer(str(run.pk))
        assert [action for action, _, _ in trail()] == ["run.created", "run.resumed", "run.stopped"], actor
        assert all(who.startswith(actor) for _, who, _ in trail())
        assert trail()[0][2] == str(run.pk)


# --- Unavailable services -----------------------------------------------------------------------------------------


@pytest.fixture
def read_only(transactional_db: None) -> Iterator[None]:
    """Make the database refuse writes, like a full disk, a standby or a read-only mount."""
    on_postgres = connection.vendor == "postgresql"
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on" if on_postgres else "PRAGMA query_only = ON")
    yield
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = off" if on_postgres else "PRAGMA query_only = OFF")


@pytest.fixture
def full(transactional_db: None) -> Iterator[None]:
    """Make the disk full: SQLite limits its pages; on PostgreSQL, a trigger raises the server's error."""
    if connection.vendor == "sqlite":
        spoil, mend = ["PRAGMA max_page_count = 1"], ["PRAGMA max_page_count = 1073741823", "DROP TABLE ballast"]
        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE ballast (bytes BLOB)")
            while cursor.execute("PRAGMA freelist_count").fetchone()[0]:
                cursor.execute("INSERT INTO ballast VALUES (zeroblob(4000))")
    else:
        says = "RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'"
        spoil = [
            f"CREATE FUNCTION disk_is_full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {says}; END $$",
            "CREATE TRIGGER disk_is_full BEFORE INSERT ON timeline_log FOR EACH ROW EXECUTE FUNCTION disk_is_full()",
        ]
        mend = ["DROP TRIGGER disk_is_full ON timeline_log", "DROP FUNCTION disk_is_full"]
    with connection.cursor() as cursor:
        for statement in spoil:
            cursor.execute(statement)
    yield
    with connection.cursor() as cursor:
        for statement in mend:
            cursor.execute(statement)


@pytest.mark.django_db(transaction=True)
def test_a_full_disk_is_reported(alpha: Program, request: pytest.FixtureRequest) -> None:
    before = counts()
    request.getfixturevalue("full")

    answer = alpha.post("", {"agent_id": "player", "prompt": "Go. " * 5000})

    assert refused(answer) == (503, "storage_unavailable")
    assert (answer.json()["reason"], "disk of the database is full" in answer.json()["detail"]) == ("disk_full", True)
    assert answer["Retry-After"]
    assert counts() == before


@pytest.mark.parametrize(("path", "body"), WRITES, ids=[path or "create" for path, _ in WRITES])
@pytest.mark.django_db(transaction=True)
def test_storage_that_takes_no_writes(
    alpha: Program, run: AgentRun, request: pytest.FixtureRequest, path: str, body: Any
) -> None:
    """503 with Retry-After and nothing partly written, with and without an idempotency key."""
    inbox.pause(run.pk, by="test")
    body = {"ids": [str(run.pk)]} if "ids" in body else body
    before = counts()
    request.getfixturevalue("read_only")
    for headers in ({}, {"Idempotency_Key": "k"}):
        answer = alpha.post(on(path, run.pk), body, **headers)
        if path != "/{run}/pause":
            assert refused(answer) == (503, "storage_unavailable")
            assert (answer.json()["reason"], "read-only" in answer.json()["detail"]) == ("read_only", True)
            assert answer["Retry-After"]
    assert counts() == before
    assert now(run).status == "paused"


@pytest.fixture
def no_broker(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make Redis unavailable: hints, wake messages and caches go to a closed port."""
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    lost = Celery("lost", broker=settings.REDIS_URL, set_as_current=False)
    lost.conf.broker_transport_options = {"socket_connect_timeout": 1, "max_retries": 0}
    monkeypatch.setattr("agentops.celery.app", lost)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("no_broker")
def test_redis_down(alpha: Program) -> None:
    """The database is authoritative; a worker's sweep selects runs whose hints were lost."""
    made = alpha.post("", {"agent_id": "player"}, Idempotency_Key="k")
    run = AgentRun.objects.get(pk=made.json()["id"])
    assert (made.status_code, alpha.post(f"/{run.pk}/pause").status_code) == (201, 200)
    new = alpha.post(f"/{run.pk}/resume")
    assert new.status_code == 201
    assert alpha.post(f"/{new.json()['id']}/commands", {"type": "send", "message": "Hello"}).status_code == 202
    assert drive(AgentRun.objects.get(pk=new.json()["id"])).status == "completed"
