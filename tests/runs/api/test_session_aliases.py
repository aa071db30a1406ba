"""Sessions and jobs: output lines by PATCH, reading them, and events under the older URLs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from agentops.accounts import redaction_changes
from agentops.accounts.models import Project
from runs.external.ingest import Sender, record
from runs.models import AgentRun
from runs.upkeep import invariants, replay_check
from tests.support.factories import drive, make_agent, make_person, make_project, make_run, with_key
from timeline import log

pytestmark = pytest.mark.django_db
SESSION = "/api/projects/outside/agent/sessions/s1"

Patch = Callable[..., Any]


@pytest.fixture
def project(db: None) -> Project:
    return make_project("outside")


@pytest.fixture
def reader(project: Project) -> Client:
    return Client(headers=with_key(project, "read"))


@pytest.fixture
def patch(project: Project) -> Patch:
    headers = with_key(project, "ingest")

    def send(document: dict[str, Any], url: str = SESSION) -> Any:
        return Client().patch(url, document, content_type="application/json", headers=headers)

    return send


def line(type_: str, text: str = "") -> dict[str, Any]:
    return {"outputLine": {"type": type_, "text": text}}


def the_run() -> AgentRun:
    return AgentRun.objects.get(external_id="s1")


def events() -> list[tuple[str, dict[str, Any]]]:
    return [(event.type, event.payload) for event in log.events_of(the_run().pk)][2:]


def test_lines_become_events_and_are_read_back(patch: Patch, reader: Client) -> None:
    lines = [
        ("step", "Read the code"),
        ("info", "3 files"),
        ("stdout", "ok\n"),
        ("stderr", "warning"),
        ("error", "boom"),
        ("done", "All done"),
    ]
    answers = [patch({"status": "running"}), *(patch(line(*each)) for each in lines)]
    patch({"changed_files": ["a.py"]})

    assert [answer.status_code for answer in answers] == [200] * 7
    run = the_run()
    assert answers[-1].json() == {"id": str(run.pk), "status": "completed"}
    assert reader.get(SESSION).json() == {
        "id": str(run.pk),
        "status": "completed",
        "output": [{"type": type_, "text": text} for type_, text in lines],
        "changed_files": ["a.py"],
    }
    assert [type_ for type_, _ in events()] == [
        "run.phase",
        "run.phase",
        "tool.output",
        "tool.output",
        "error",
        "run.completed",
        "file.changed",
    ]
    assert (run.result, run.status_reason) == ("All done", "")
    assert [one for one in invariants.check(run.pk) if not one.warning_only] == []
    assert replay_check.differences(run.pk) == []


def test_a_line_can_start_and_end_a_session(patch: Patch) -> None:
    answer = patch({**line("step", "Begin"), "status": "running", "changed_files": ["a", "b"]})
    ended = patch({**line("done"), "status": "completed"})

    assert (answer.json()["status"], ended.json()["status"]) == ("running", "completed")
    assert [type_ for type_, _ in events()] == ["file.changed", "file.changed", "run.phase", "run.completed"]


def test_repeated_files_are_stored_once(patch: Patch, reader: Client) -> None:
    for files in (["a"], ["a", "b"], ["a", "b"]):
        assert patch({"status": "running", "changed_files": files}).status_code == 200

    assert [payload for _, payload in events()] == [{"path": "a"}, {"path": "b"}]
    assert reader.get(SESSION).json()["changed_files"] == ["a", "b"]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ("queued", "queued"),
        ("pending", "queued"),
        ("waiting", "waiting"),
        ("paused", "paused"),
        ("done", "completed"),
        ("error", "failed"),
        ("failed", "failed"),
        ("cancelled", "stopped"),
    ],
)
def test_session_statuses_map_to_run_statuses(patch: Patch, sent: str, status: str) -> None:
    patch({"status": "running"})

    assert patch({"status": sent}).json()["status"] == status
    assert the_run().status == status


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ({"outputLine": {"type": "shout", "text": "a"}}, "invalid_choice"),
        ({"outputLine": {"type": "info"}}, "required"),
        ({"outputLine": {"type": "info", "text": 7}}, "invalid"),
        ({"outputLine": "info"}, "invalid"),
        ({"status": "gone"}, "invalid_choice"),
        ({"changed_files": "a"}, "not_a_list"),
        ({"changed_files": [""]}, "blank"),
        ({"lines": []}, "unknown_field"),
    ],
)
def test_invalid_bodies_are_refused(patch: Patch, document: dict[str, Any], code: str) -> None:
    patch({"status": "running"})
    answer = patch(document)

    assert (answer.status_code, answer.json()["code"]) == (422, code)
    assert events() == []


def test_an_unknown_session_is_only_created_by_its_status(patch: Patch, reader: Client) -> None:
    answers = [patch(line("info", "a")), patch({}), patch({"status": "completed"}), reader.get(SESSION)]

    assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(404, "run_not_found")] * 4
    assert not AgentRun.objects.exists()


def test_a_native_run_accepts_no_lines(patch: Patch, project: Project) -> None:
    run = make_run(make_agent(project))
    answer = patch(line("info", "a"), f"/api/projects/outside/agent/sessions/{run.pk}")

    assert (answer.status_code, answer.json()["code"]) == (409, "run_is_native")


def test_a_report_requires_the_scope_ingest_or_write(project: Project) -> None:
    person = Client()
    person.force_login(make_person(project))
    callers = {"read": 403, "ingest": 200, "write": 200}
    clients = {Client(headers=with_key(project, scope)): status for scope, status in callers.items()}

    for client, status in {**clients, person: 403, Client(): 401}.items():
        sent = client.patch(SESSION, {"status": "running"}, content_type="application/json")
        assert sent.status_code == status


def test_a_runner_secret_may_report_but_not_read(project: Project, settings: Settings) -> None:
    settings.AGENT_RUNNER_SECRET, settings.AGENT_RUNNER_PROJECT = ["the-secret-of-the-runner"], "outside"
    make_project("other")
    client = Client(headers={"x-agent-runner-secret": "the-secret-of-the-runner"})
    wrong = Client(headers={"x-agent-runner-secret": "another-secret-of-a-runner"})

    def status(sender: Client, project: str) -> tuple[int, str]:
        url = f"/api/projects/{project}/agent/sessions/s1"
        answer = sender.patch(url, {"status": "running"}, content_type="application/json")
        return answer.status_code, answer.json().get("code", answer.json().get("status"))

    assert status(client, "outside") == status(client, str(project.pk)) == (200, "running")
    assert status(client, "other") == status(client, "nowhere") == (404, "project_not_found")
    assert status(wrong, "outside") == (401, "auth_invalid")
    for url in (SESSION, f"{SESSION}/events"):
        assert client.get(url).status_code == 401
    assert AgentRun.objects.get().external.sender == "runner"


def test_a_line_from_a_runner_secret_is_redacted_by_the_project_s_rules(
    project: Project, settings: Settings, django_capture_on_commit_callbacks: Any
) -> None:
    settings.AGENT_RUNNER_SECRET, settings.AGENT_RUNNER_PROJECT = ["the-secret-of-the-runner"], "outside"
    with django_capture_on_commit_callbacks(execute=True):
        redaction_changes.add_secret(project, "billing", "Quiet-Harbour-72", actor="test")
    client = Client(headers={"x-agent-runner-secret": "the-secret-of-the-runner"})

    document = {"status": "running", **line("info", "with Quiet-Harbour-72")}
    assert client.patch(SESSION, document, content_type="application/json").status_code == 200

    [(_, payload)] = events()
    assert "Quiet-Harbour" not in str(payload)
    assert "[REDACTED:" in payload["message"]


def test_lines_count_towards_the_rate_limits_of_ingest(patch: Patch, project: Project, settings: Settings) -> None:
    """The limit per run, shared with its other events, and the limit per key."""
    settings.AGENTOPS_RATE_RUN_EVENTS = 4
    patch({"status": "running"})
    other = {"runId": "s1", "type": "x.note"}
    sent = Client().post(
        "/api/internal/agent-events", other, content_type="application/json", headers=with_key(project, "ingest")
    )

    answers = [patch({**line("info", "a"), "changed_files": ["a"]}), patch(line("info", "b")), patch({})]

    assert (sent.status_code, [answer.status_code for answer in answers]) == (200, [200, 429, 200])
    assert answers[1].json()["code"] == "rate_limited"
    assert int(answers[1]["Retry-After"]) >= 1
    assert len(events()) == 3
    settings.AGENTOPS_RATE_INGEST = 2
    assert [patch({}).status_code for _ in range(3)][-1] == 429


def test_a_report_is_stored_completely_or_not_at_all(patch: Patch, project: Project) -> None:
    patch({"status": "running"})
    long = patch({**line("stdout", "\N{GRINNING FACE}" * 70_000), "changed_files": ["a"], "status": "paused"})
    native = make_run(make_agent(project))
    of_worker = patch(
        {**line("info", "a"), "changed_files": ["a"]}, f"/api/projects/outside/agent/sessions/{native.pk}"
    )

    assert (long.status_code, long.json()["code"]) == (413, "event_too_large")
    assert (of_worker.status_code, of_worker.json()["code"]) == (409, "run_is_native")
    assert (events(), the_run().status) == ([], "running")
    assert not log.events_of(native.pk).filter(type="file.changed").exists()


# --- URLs -----------------------------------------------------------------------------------------------------------


def test_events_are_the_same_under_each_url(project: Project, reader: Client) -> None:
    run = drive(make_run(make_agent(project)))
    for query in ("?limit=5", "?limit=5&dialect=agent"):
        own = reader.get(f"/api/projects/outside/agent-runs/{run.pk}/events{query}").json()
        for url in (f"/api/projects/outside/agent/sessions/{run.pk}/events", f"/api/jobs/{run.pk}/events"):
            page = reader.get(f"{url}{query}").json()
            assert page["results"] == own["results"]
            assert page["next"].startswith(url)
            assert reader.get(page["next"]).status_code == 200


def test_runs_can_be_named_by_the_id_of_their_runner(patch: Patch, reader: Client) -> None:
    patch({"status": "running"})
    for url in (f"{SESSION}/events", "/api/jobs/s1/events"):
        assert [event["type"] for event in reader.get(url).json()["results"]] == ["run.created", "run.started"]
    for url in (f"{SESSION}/events/stream", "/api/jobs/s1/events/stream"):
        assert reader.get(url)["Content-Type"].startswith("text/event-stream")


@pytest.mark.parametrize("name", ["s2", "%00", "01a1f86c-1b1a-72f0-b808-0c8f1390c3f4", "x" * 300])
def test_unknown_names_are_refused(reader: Client, patch: Patch, name: str) -> None:
    for url in (f"/api/jobs/{name}/events", f"/api/projects/outside/agent/sessions/{name}"):
        answer = reader.get(url)
        assert (answer.status_code, answer.json()["code"]) == (404, "run_not_found"), url
    assert patch(line("info"), f"/api/projects/outside/agent/sessions/{name}").status_code in (404, 422)


def test_jobs_of_other_projects_are_unknown_and_ambiguous_jobs_are_refused(project: Project, reader: Client) -> None:
    for one in (project, make_project("other")):
        record(Sender(one, "key:test"), [{"runId": "both", "type": "run.started"}])
    foreign = AgentRun.objects.get(project__slug="other")

    assert reader.get("/api/jobs/both/events").json()["results"][0]["runId"] != str(foreign.pk)
    assert reader.get(f"/api/jobs/{foreign.pk}/events").status_code == 404
    assert Client().get("/api/jobs/both/events").status_code == 401
    superuser = Client()
    superuser.force_login(User.objects.create_superuser("boss"))
    assert superuser.get("/api/jobs/both/events").json()["code"] == "ambiguous_run"
