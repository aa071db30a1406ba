"""Runs of agents of packages that are started by the form of the site, a schedule, the API and a flow."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client

from agentops.accounts.models import Project, Role
from runs.actions.schedules.starting import start_due_schedules
from runs.models import Agent, AgentRun
from runs.worker.in_process import HumanAnswers, drive_flow_to_rest, drive_to_rest
from runs.worker.packaged.catalogue import AGENTS
from runs.worker.worker import Worker, announce
from tests.support.clients import FrontEnd, of, types
from tests.support.factories import make_person, with_key
from tests.support.flows import make_flow_run
from tests.support.pages import parse
from tests.support.project_rows import SetClock, make_schedule, runs_of
from tests.support.web_server import WebThread


@pytest.fixture
def operator(shop: Project) -> Client:
    client = Client()
    client.force_login(make_person(shop, Role.OPERATOR))
    return client


def text_of(client: Client, url: str) -> str:
    page = parse(client.get(url).content.decode().partition("<body")[2].partition(">")[2].partition("</body>")[0])
    return " ".join(page.words.split())


def test_the_form_of_the_site_starts_a_run(shop: Project, operator: Client, worker: Worker) -> None:
    form = operator.get("/p/shop/runs/new?agent=counting", follow=True).content.decode()
    [token] = re.findall(r'name="token" value="([0-9a-f-]{36})"', form)
    answer = operator.post("/p/shop/runs/new", {"agent": "counting", "prompt": "3", "token": token})
    assert answer.status_code == 302
    run = AgentRun.objects.get()
    shown = text_of(operator, answer["Location"])
    assert "No worker has the agent counting" in shown
    assert "Install the package with this agent for the workers, and restart them." in shown
    announce("worker", ["default"], 4, agents=AGENTS.versions())
    assert "No worker has the agent" not in text_of(operator, answer["Location"])

    run = drive_to_rest(run.pk, worker)
    assert (run.status, json.loads(run.result)) == ("completed", ["0", "1", "2"])
    shown = text_of(operator, answer["Location"])
    assert "package code version 1" in shown
    assert "step 2" in shown


def test_the_page_of_the_agent_lists_its_workers(shop: Project, operator: Client) -> None:
    assert "No worker has the agent support." in text_of(operator, "/p/shop/agents/support")
    announce("worker-1", ["default"], 4, agents=AGENTS.versions())
    shown = text_of(operator, "/p/shop/agents/support")
    assert "Providerpackage" in shown
    assert "Code version1" in shown
    assert "worker-1" in shown


def test_a_schedule_starts_a_run(shop: Project, worker: Worker, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    clock = SetClock(monkeypatch, datetime(2026, 6, 1, 9, 0, 30, tzinfo=UTC))
    agent = Agent.objects.get(project=shop, slug="counting")
    schedule = make_schedule(shop, agent, prompt="2")
    clock.set("2026-06-01 09:01:10")
    assert start_due_schedules() == 1
    [run] = runs_of(schedule)

    assert drive_to_rest(run.pk, worker).result == '[\n  "0",\n  "1"\n]'


def test_a_program_starts_a_run(shop: Project, worker: Worker, client: Any) -> None:
    headers = with_key(shop, "read", "write")
    body = {"agent_id": "counting", "prompt": "1"}
    answer = client.post("/api/projects/shop/agent-runs", body, content_type="application/json", headers=headers)
    assert (answer.status_code, answer.json()["source"]) == (201, "native")
    drive_to_rest(AgentRun.objects.get().pk, worker)
    listed = client.get("/api/projects/shop/agent-runs?source=native", headers=headers).json()["results"]
    assert [(run["status"], run["source"]) for run in listed] == [("completed", "native")]
    run = client.get(f"/api/projects/shop/agent-runs/{listed[0]['id']}", headers=headers).json()
    assert (run["source"], run["code_version"]) == ("native", 1)
    assert client.get("/api/projects/shop/agent-runs?source=remote", headers=headers).json()["results"] == []


def test_a_front_end_starts_a_run(shop: Project, worker: Worker, web: WebThread) -> None:
    agent = Agent.objects.get(project=shop, slug="counting")
    events = FrontEnd(web, agent, worker, with_key(shop, "read", "write")).run("2")

    assert types(events)[0 :: len(types(events)) - 1] == ["RUN_STARTED", "RUN_FINISHED"]
    assert [event.tool_call_name for event in of(events, "TOOL_CALL_START")] == ["step 0", "step 1"]


def test_a_node_of_a_flow_is_a_run(shop: Project, worker: Worker) -> None:
    nodes = [{"id": "count", "type": "agent", "agent": "counting", "prompt": "2"}]
    flow_run = make_flow_run({"nodes": nodes}, shop)
    ended = drive_flow_to_rest(flow_run.pk, worker, answers=HumanAnswers({"nodes": nodes}, {}), by="test")

    assert ended.status == "completed"
    assert AgentRun.objects.get().is_packaged
