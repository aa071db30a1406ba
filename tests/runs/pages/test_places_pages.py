"""Test pages and API for queues and places: the place a queued run waits for, and queues without a worker."""

from __future__ import annotations

import html
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from agentops.accounts.access import SYSTEM
from agentops.accounts.models import AuditEntry, Project, Role
from runs.actions import agent_definitions
from runs.lifecycle import transitions
from runs.models import Agent, WorkerProcess
from runs.worker import worker
from tests.support.factories import make_agent, make_person, make_project, make_run
from tests.support.pages import form_values

EDIT = "/p/alpha/agents/reviewer/edit"


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


@pytest.fixture
def admin(project: Project) -> Client:
    client = Client()
    client.force_login(make_person(project, Role.ADMIN))
    return client


def text_of(answer: Any) -> str:
    return " ".join(html.unescape(answer.content.decode()).split())


def claim(run: Any) -> None:
    assert transitions.claim(run.pk, "worker")


# --- Waiting for a place ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "kind", "sentence"),
    [
        ((1, None), "agent", "waits for the only place of agent reviewer"),
        ((None, 1), "project", "waits for the only place of project alpha"),
        ((1, 1), "agent", "waits for the only place of agent reviewer"),
        ((2, 2), None, ""),
    ],
)
def test_a_queued_run_shows_the_place_it_waits_for(
    project: Project, admin: Client, limits: tuple[int | None, int | None], kind: str | None, sentence: str
) -> None:
    agent = make_agent(project, slug="reviewer", max_running=limits[0])
    Project.objects.update(max_running=limits[1])
    running, waiting = make_run(agent), make_run(agent)
    claim(running)

    page = text_of(admin.get(f"/runs/{waiting.pk}"))
    rows = text_of(admin.get("/p/alpha/runs"))
    answer = admin.get(f"/api/projects/alpha/agent-runs/{waiting.pk}").json()
    listed = {row["id"]: row["waiting_for"] for row in admin.get("/api/projects/alpha/agent-runs").json()["results"]}

    assert ("Limit of running runs reached" in page) == bool(sentence)
    assert sentence in page
    assert sentence in rows
    assert (answer["waiting_for"], answer["queue"], answer["priority"]) == (kind, "default", 5)
    assert listed == {str(waiting.pk): kind, str(running.pk): None}


def test_several_places_are_counted(project: Project, admin: Client) -> None:
    agent = make_agent(project, slug="reviewer", max_running=2)
    runs = [make_run(agent) for _ in range(3)]
    claim(runs[0])
    claim(runs[1])

    assert "waits for one of 2 places of agent reviewer" in text_of(admin.get(f"/runs/{runs[2].pk}"))


def test_the_query_count_does_not_grow_with_waiting_runs(project: Project, admin: Client) -> None:
    agent = make_agent(project, slug="reviewer", max_running=1)
    claim(make_run(agent))

    def cost() -> int:
        with CaptureQueriesContext(connection) as queries:
            assert admin.get("/p/alpha/runs").status_code == 200
        return len(queries)

    make_run(agent)
    before = cost()
    for _ in range(3):
        make_run(agent)
    assert cost() == before


# --- Queues without a worker ------------------------------------------------------------------------------------------


def test_pages_report_a_queue_without_a_worker(project: Project, admin: Client) -> None:
    agent = make_agent(project, slug="reviewer", queue="gpu")
    run = make_run(agent)
    assert "no worker serves the queue gpu" not in text_of(admin.get("/p/alpha/agents"))
    sentence, pages = "No worker serves the queue gpu", (f"/runs/{run.pk}", "/p/alpha/agents/reviewer")

    # Without any worker, the run's page reports this after a few seconds.
    assert all(sentence not in text_of(admin.get(page)) for page in pages)
    worker.announce("host:1:a", ["default"], 4)
    assert all(sentence in text_of(admin.get(page)) for page in pages)
    assert "no worker serves the queue gpu" in text_of(admin.get("/p/alpha/agents"))
    worker.announce("host:2:b", ["gpu", "default"], 1)
    assert all(sentence not in text_of(admin.get(page)) for page in pages)
    worker.leave("host:2:b")
    assert all(sentence in text_of(admin.get(page)) for page in pages)


def test_an_expired_worker_serves_no_queue(db: None) -> None:
    worker.announce("host:1:a", ["default"], 4)
    worker.announce("host:2:b", ["gpu"], 2)
    started_at = WorkerProcess.objects.get(pk="host:2:b").started_at
    worker.announce("host:2:b", ["gpu", "default"], 3)
    renewed = WorkerProcess.objects.get(pk="host:2:b")
    assert (renewed.started_at, renewed.concurrency) == (started_at, 3)
    assert [each.name for each in worker.serving("default")] == ["host:1:a", "host:2:b"]

    WorkerProcess.objects.filter(pk="host:1:a").update(seen_at="2020-01-01T00:00:00Z")

    assert [each.name for each in worker.serving("default")] == ["host:2:b"]
    assert WorkerProcess.objects.served_queues() == {"default", "gpu"}
    worker.announce("host:2:b", ["gpu"], 3)
    assert [each.name for each in WorkerProcess.objects.all()] == ["host:2:b"]


# --- Settings ---------------------------------------------------------------------------------------------------------


def test_changing_the_queue_of_an_agent_creates_no_version(project: Project, admin: Client) -> None:
    agent = make_agent(project, slug="reviewer", settings={"pace": 0})
    run = make_run(agent)
    values = form_values(admin.get(EDIT).content.decode(), "agent-form")
    assert (values["queue"], values["priority"], values["max_running"]) == ("default", "5", "")

    preview = admin.post(EDIT, {**values, "do": "preview", "queue": "gpu"})
    saved = admin.post(EDIT, {**values, "do": "save", "queue": "gpu", "priority": "0", "max_running": "3"})

    assert (preview.status_code, saved.status_code) == (200, 303)
    assert "gpu" in text_of(preview)
    agent.refresh_from_db()
    run.refresh_from_db()
    assert (agent.placement, agent.version) == ({"queue": "gpu", "priority": 0, "max_running": 3}, 1)
    assert (run.queue, run.priority) == ("gpu", 0)
    assert "at most 3" in text_of(admin.get("/p/alpha/agents/reviewer"))
    entry = AuditEntry.objects.get(action="agent.changed")
    assert entry.before == {"queue": "default", "priority": 5, "max_running": None}
    values = form_values(admin.get(EDIT).content.decode(), "agent-form")
    assert admin.post(EDIT, {**values, "do": "save", "max_running": ""}).status_code == 303
    assert Agent.objects.get(slug="reviewer").max_running is None


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("queue", "upkeep", "reserved"),
        ("queue", "A b", "not a valid slug"),
        ("queue", "x" * 64, "not a valid slug"),
        ("priority", "10", "less than or equal to 9"),
        ("priority", "-1", "greater than or equal to 0"),
        ("max_running", "0", "greater than or equal to 1"),
        ("max_running", "some", "valid integer"),
    ],
)
def test_the_form_refuses_an_invalid_placement_at_its_field(
    project: Project, admin: Client, name: str, text: str, error: str
) -> None:
    agent = make_agent(project, slug="reviewer", settings={"pace": 0})
    values = form_values(admin.get(EDIT).content.decode(), "agent-form")

    answer = admin.post(EDIT, {**values, "do": "save", name: text})

    assert answer.status_code == 422
    assert error in text_of(answer)
    assert form_values(answer.content.decode(), "agent-form")[name] == text
    agent.refresh_from_db()
    assert agent.placement == {"queue": "default", "priority": 5, "max_running": None}


def test_the_api_shows_the_placement_of_an_agent(project: Project, admin: Client) -> None:
    make_agent(project, slug="reviewer", queue="gpu", max_running=2)

    for row in (
        admin.get("/api/projects/alpha/agents/reviewer").json(),
        admin.get("/api/projects/alpha/agents").json()["results"][0],
    ):
        assert (row["queue"], row["priority"], row["max_running"]) == ("gpu", 5, 2)


@pytest.mark.parametrize("value", [{"queue": None}, {"priority": None}, {"priority": True}, {"max_running": 1.5}])
def test_a_definition_with_a_placement_of_another_type_is_refused(project: Project, value: dict[str, Any]) -> None:
    definition = {"agent_id": "reviewer", "provider": "fixture", "model": "claude-code-5c", **value}

    [problem] = agent_definitions.problems_of(project, definition)

    assert problem.data["pointer"] == f"/{next(iter(value))}"
    with pytest.raises(type(problem)):
        agent_definitions.apply(project, definition, by=SYSTEM)


def test_an_admin_limits_the_runs_of_a_project(project: Project, admin: Client) -> None:
    values = {"name": "Alpha", "description": ""}

    assert admin.post("/p/alpha/settings", {**values, "max_running": "7"}).status_code == 303
    project.refresh_from_db()
    assert project.max_running == 7
    assert 'value="7"' in admin.get("/p/alpha/settings").content.decode()
    assert admin.post("/p/alpha/settings", {**values, "max_running": "0"}).status_code == 422
    assert admin.post("/p/alpha/settings", {**values, "max_running": ""}).status_code == 303
    project.refresh_from_db()
    assert project.max_running is None
