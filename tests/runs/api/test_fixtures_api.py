"""`…/agent-runs/{run}/fixture`, the same file from the page of a run, and `/api/schema/fixtures`."""

from __future__ import annotations

import pytest
from django.test import Client
from jsonschema import Draft202012Validator

from agentops.projects.models import Role
from runs.fixtures.fixture_files import parse
from runs.fixtures.format import conversation
from runs.fixtures.library import load
from runs.models import AgentRun
from tests.support.accounts import make_person, with_key
from tests.support.factories import drive, make_agent, make_run

pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> AgentRun:
    return drive(make_run(make_agent()))


def test_the_api_and_the_page_give_the_same_file(run: AgentRun) -> None:
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
    assert conversation(parse(answer.content)) == conversation(load("claude-code-5c"))
    schema = client.get("/api/schema/fixtures").json()
    assert Draft202012Validator(schema).is_valid(answer.json())
    assert f'href="/runs/{run.pk}/fixture"' in person.get(f"/runs/{run.pk}").content.decode()


def test_a_run_without_an_answer_has_none() -> None:
    run = make_run()
    client = Client(headers=with_key(run.project))
    person = Client()
    person.force_login(make_person(run.project, Role.VIEWER))

    refused = client.get(f"/api/projects/{run.project.slug}/agent-runs/{run.pk}/fixture")

    assert (refused.status_code, refused.json()["code"]) == (409, "nothing_recorded")
    page = person.get(f"/runs/{run.pk}/fixture")
    assert (page.status_code, "no answer of a model yet" in page.content.decode()) == (409, True)
    assert f"/runs/{run.pk}/fixture" not in person.get(f"/runs/{run.pk}").content.decode()
