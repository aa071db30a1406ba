"""`…/agent-runs/{run}/fixture` and `…/flow-runs/{run}/fixtures` in the API and on pages, and `/api/schema/fixtures`."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest
from django.test import Client
from jsonschema import Draft202012Validator
from pytest_django import Settings

from agentops.accounts.models import Role
from runs.fixtures.fixture_files import load_named, parse
from runs.fixtures.format import conversation
from runs.models import AgentRun
from runs.queries import flow_fixtures
from runs.worker.worker import Worker
from tests.support.factories import drive, make_agent, make_person, make_run, with_key
from tests.support.flows import make_flow_run, play

pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> AgentRun:
    return drive(make_run(make_agent()))


def test_the_api_and_the_page_return_the_same_file(run: AgentRun) -> None:
    client = Client(headers=with_key(run.project))
    address = f"/api/projects/{run.project.slug}/agent-runs/{run.pk}/fixture"
    person = Client()
    person.force_login(make_person(run.project, Role.VIEWER))

    answer = client.get(address)
    download = person.get(f"/runs/{run.pk}/fixture")

    assert (answer.status_code, answer["Content-Type"]) == (200, "application/json")
    assert client.get(address, headers={"If-None-Match": answer["ETag"]}).status_code == 304
    assert download.content == answer.content
    assert download["Content-Disposition"] == f'attachment; filename="run-{run.pk}.fixture.json"'
    assert conversation(parse(answer.content)) == conversation(load_named("claude-code-5c"))
    schema = client.get("/api/schema/fixtures").json()
    assert Draft202012Validator(schema).is_valid(answer.json())
    assert f'href="/runs/{run.pk}/fixture"' in person.get(f"/runs/{run.pk}").content.decode()


def test_a_run_without_an_answer_has_no_fixture() -> None:
    run = make_run()
    client = Client(headers=with_key(run.project))
    person = Client()
    person.force_login(make_person(run.project, Role.VIEWER))

    refused = client.get(f"/api/projects/{run.project.slug}/agent-runs/{run.pk}/fixture")

    assert (refused.status_code, refused.json()["code"]) == (409, "nothing_recorded")
    page = person.get(f"/runs/{run.pk}/fixture")
    assert (page.status_code, "no answer of a model yet" in page.content.decode()) == (409, True)
    assert f"/runs/{run.pk}/fixture" not in person.get(f"/runs/{run.pk}").content.decode()


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("no_hints")
def test_a_flow_run_returns_a_fixture_for_each_agent_node(
    worker: Worker, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.AGENTOPS_TOOL_ROOTS = [str(tmp_path)]
    agent = make_agent()
    nodes = [
        {"id": "work", "type": "agent", "agent": agent.slug, "prompt": "Go"},
        {"id": "list", "type": "tool", "tool": "list_dir", "arguments": {"path": "."}}
        | {"settings": {"root": str(tmp_path)}},
    ]
    flow_run = make_flow_run({"nodes": nodes, "edges": [{"from": "work", "to": "list"}]}, agent.project)
    client, person = Client(headers=with_key(agent.project)), Client()
    person.force_login(make_person(agent.project, Role.VIEWER))
    address = f"/api/projects/{agent.project.slug}/flow-runs/{flow_run.pk}/fixtures"
    page, download = f"/flow-runs/{flow_run.pk}", f"/flow-runs/{flow_run.pk}/fixtures"
    early = client.get(address)

    assert (early.status_code, early.json()["code"]) == (409, "nothing_recorded")
    assert (person.get(download).status_code, download in person.get(page).content.decode()) == (409, False)
    play(flow_run, worker)
    answer, archive = client.get(address), zipfile.ZipFile(io.BytesIO(person.get(download).content))

    assert (answer.status_code, list(answer.json()["fixtures"])) == (200, ["work"])
    assert archive.namelist() == ["sample/work.json", "sample/notes.txt"]
    recorded = parse(archive.read("sample/work.json"))
    assert recorded == parse(json.dumps(answer.json()["fixtures"]["work"]))
    assert [call.response.parts for call in recorded.answers] == [
        call.response.parts for call in load_named("claude-code-5c").answers
    ]
    assert answer.json()["notes"] == ["node list is not recorded: a flow that plays this calls its tool again"]
    assert archive.read("sample/notes.txt").decode() == answer.json()["notes"][0] + "\n"
    assert f'href="{download}"' in person.get(page).content.decode()
    assert client.get(address, headers={"If-None-Match": answer["ETag"]}).status_code == 304
    # Requests that need thousands of queries must use the command.
    monkeypatch.setattr(flow_fixtures, "MAX_VISITS_OF_A_REQUEST", 0)
    refused = client.get(address)
    assert (refused.status_code, refused.json()["code"]) == (409, "too_many_visits")
    assert f"record_fixtures --flow-run {flow_run.pk}" in refused.json()["detail"]
    assert person.get(download).status_code == 409
