"""Finish reasons in the API and on the command line: of messages, as reasons of pauses, in filters and policies."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client

from agentops.accounts.models import Project
from runs.actions import agent_definitions
from runs.models import AgentRun
from runs.providers.streaming_provider import AnswerEnd
from tests.support.engine import TOOLS, saying
from tests.support.factories import drive, make_agent, make_project, make_run
from tests.support.scripted_model import PLAYS

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_hints")]
ALPHA = "/api/projects/alpha"
FAULTS = {"answer_cut": ("max_tokens", "length"), "answer_refused": ("refusal", "content_filter")}
faults = pytest.mark.parametrize("reason", list(FAULTS))


@pytest.fixture
def project() -> Project:
    return make_project("alpha")


@pytest.fixture
def boss(project: Project) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    return client


def ended(project: Project, end: str) -> AgentRun:
    name = f"of-the-api-{end}"
    PLAYS[name] = saying(["Half", AnswerEnd(end)])
    agent = make_agent(project, provider="scripted", model="scripted-model", settings={"play": name}, tools=TOOLS)
    return drive(make_run(agent, "Go."))


def read(client: Client, path: str) -> Any:
    answer = client.get(f"{ALPHA}{path}")
    assert answer.status_code == 200, answer.content
    return answer.json()


def send(client: Client, method: str, path: str, body: Any) -> Any:
    return client.generic(method, f"{ALPHA}{path}", json.dumps(body), content_type="application/json")


@pytest.mark.parametrize(
    ("end", "name"),
    [("max_tokens", "length"), ("refusal", "content_filter"), ("end_turn", "stop"), ("of tomorrow", None)],
)
def test_a_message_has_its_finish_reason(project: Project, boss: Client, end: str, name: str | None) -> None:
    run = ended(project, end)
    rows = read(boss, f"/agent-runs/{run.pk}/messages")["results"]

    assert [row["finish_reason"] for row in rows] == [None, name]
    assert read(boss, f"/agent-runs/{run.pk}/messages/{rows[-1]['id']}")["finish_reason"] == name


@faults
def test_the_run_and_its_error_have_the_reason(project: Project, boss: Client, reason: str) -> None:
    run = ended(project, FAULTS[reason][0])
    row = read(boss, f"/agent-runs/{run.pk}")
    [error] = read(boss, f"/agent-runs/{run.pk}/errors")["results"]

    assert (row["status"], row["status_reason"], row["error_type"]) == ("paused", reason, reason)
    assert (error["error_type"], error["context"], error["step_number"]) == (reason, "llm_complete", 1)
    in_dialect = read(boss, f"/agent-runs/{run.pk}/events?dialect=agent&limit=200")["results"]
    assert [event["type"] for event in in_dialect][-2:] == ["agent:error", "run.paused"]


@faults
def test_filters_select_the_runs(project: Project, boss: Client, reason: str) -> None:
    runs = {each: str(ended(project, end).pk) for each, (end, _) in FAULTS.items()}
    ended(project, "end_turn")

    assert [row["id"] for row in read(boss, f"/agent-runs?reason={reason}")["results"]] == [runs[reason]]
    dry = send(boss, "POST", "/agent-runs/resume", {"filter": {"status_reason": reason}, "dry_run": True}).json()
    assert [row["id"] for row in dry["resumed"]] == [runs[reason]]


@faults
def test_the_command_line_lists_the_reasons(project: Project, reason: str) -> None:
    run, output = ended(project, FAULTS[reason][0]), io.StringIO()
    call_command("agent", "messages", str(run.pk), "--json", stdout=output)

    assert [row["finish_reason"] for row in json.loads(output.getvalue())] == [None, FAULTS[reason][1]]


def test_an_agent_has_the_policies(project: Project, boss: Client) -> None:
    policies = {"on_cut": {"action": "resume", "attempts": 3}, "on_refused": "accept"}
    definition = {"agent_id": "writer", "provider": "fixture", "model": "claude-code-5c", "policies": policies}
    agent_definitions.apply(project, definition, by="test")

    assert read(boss, "/agents/writer")["policies"] == policies
