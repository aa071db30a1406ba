"""Test forking with the form: from the run's page to the new run, without scripts, and the texts on both pages."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from django.test import Client
from django.urls import reverse

from agentops.accounts.models import Project, Role
from runs.models import AgentRun
from tests.support.factories import drive, make_agent, make_person, make_project, make_run
from tests.support.pages import parse

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


@pytest.fixture
def run(project: Project) -> AgentRun:
    return drive(make_run(make_agent(project, instructions="Be careful.\nAlways.")))


@pytest.fixture
def operator(project: Project) -> Client:
    client = Client()
    client.force_login(make_person(project, Role.OPERATOR))
    return client


def url_of(run: AgentRun) -> str:
    return reverse("runs:fork", args=[run.pk])


def page_of(client: Client, run: AgentRun) -> str:
    return str(client.get(reverse("runs:detail", args=[run.pk])).content.decode())


def fields_of(html: str) -> dict[str, str]:
    """Return the values that a browser would submit from the unchanged form."""
    form = next(e for e in parse(html).walk() if e.tag == "form" and e.attributes.get("action", "").endswith("/fork"))
    found = {}
    for element in form.walk():
        name = element.attributes.get("name", "")
        if element.tag == "textarea":
            found[name] = element.text.removeprefix("\n").replace("\n", "\r\n")
        elif element.tag == "select":
            chosen = [option for option in element.elements if "selected" in option.attributes]
            found[name] = (chosen or element.elements)[0].attributes["value"]
        elif element.tag == "input":
            found[name] = element.attributes.get("value", "")
    return found


def send(client: Client, run: AgentRun, **fields: str) -> Any:
    untouched = fields_of(client.get(url_of(run)).content.decode())
    return client.post(url_of(run), {**untouched, **fields})


def test_a_run_is_forked_and_both_pages_show_it(operator: Client, run: AgentRun) -> None:
    assert url_of(run) in page_of(operator, run)
    assert fields_of(operator.get(f"{url_of(run)}?step=2").content.decode())["step"] == "2"

    answer = send(operator, run, step="2", message="Another\r\nway")

    new = AgentRun.objects.get(forked_from=run)
    assert (answer.status_code, answer["Location"]) == (302, reverse("runs:detail", args=[new.pk]))
    assert (new.forked_at_step, new.prompt, new.agent_config) == (2, "Another\nway", run.agent_config)
    assert "original run, forked after step 2" in page_of(operator, new)
    assert "compare with original run" in page_of(operator, new)
    assert f"/compare?a={run.pk}&amp;b={new.pk}" in page_of(operator, new)
    assert "fork after step 2" in page_of(operator, run)
    assert f"/runs/{new.pk}" in page_of(operator, run)


def test_only_admins_may_change_settings(operator: Client, run: AgentRun) -> None:
    """Settings determine which files and hosts the agent's tools can access."""
    answer = send(operator, run, settings='{"root": "/", "http_fetch_allow": ["evil.example"]}')

    assert answer.status_code == 403
    assert not AgentRun.objects.filter(forked_from=run).exists()
    assert "settings" not in fields_of(operator.get(url_of(run)).content.decode())


def test_a_fork_changes_only_the_submitted_fields(operator: Client, run: AgentRun) -> None:
    admin = Client()
    admin.force_login(make_person(run.project, Role.ADMIN))
    assert fields_of(admin.get(url_of(run)).content.decode())["settings"] == ""
    send(admin, run, instructions="Be quick.", max_steps="3", settings='{"tool_output_limit": 10}')

    new = AgentRun.objects.get(forked_from=run)
    assert new.agent_config == run.agent_config | {
        "instructions": "Be quick.",
        "max_steps": 3,
        "settings": {"tool_output_limit": 10},
    }
    assert new.max_steps == 3
    assert "with changed instructions" in page_of(operator, new)


def test_one_form_forks_once(operator: Client, run: AgentRun) -> None:
    token = str(uuid4())

    places = {send(operator, run, token=token)["Location"] for _ in range(3)}

    assert len(places) == 1
    assert AgentRun.objects.filter(forked_from=run).count() == 1


@pytest.mark.parametrize(
    ("fields", "field", "text"),
    [
        ({"step": "99"}, "step", "checkpoint does not exist"),
        ({"step": ""}, "step", "Choose a checkpoint"),
        ({"instructions": ""}, "instructions", "cannot be removed"),
        ({"settings": "{"}, "settings", "Not valid JSON"),
        ({"settings": "[]"}, "settings", "JSON object"),
        ({"max_steps": "1_0"}, "max_steps", "whole number"),
        ({"max_steps": "0"}, "max_steps", "greater than"),
        ({"model": "no-such-recording"}, "model", "no-such-recording"),
        ({"token": "x"}, "token", "valid"),
    ],
    ids=str,
)
def test_form_keeps_input_after_error_and_shows_it_at_the_field(
    operator: Client, run: AgentRun, fields: dict[str, str], field: str, text: str
) -> None:
    answer = send(operator, run, **{"message": "What I typed", **fields})

    assert answer.status_code == 422
    assert text in " ".join(answer.context["form"].errors[field])
    assert "What I typed" in answer.content.decode()
    assert not AgentRun.objects.filter(forked_from=run).exists()


def test_the_step_limit_is_reported_at_the_checkpoint(operator: Client, run: AgentRun, settings: Any) -> None:
    settings.AGENTOPS_MAX_TOTAL_STEPS = run.step_count

    answer = send(operator, run, step=str(run.step_count))

    assert answer.status_code == 422
    assert "used all of its 5 steps" in str(answer.context["form"].errors["step"])


def test_a_run_without_a_step_cannot_be_forked(operator: Client, run: AgentRun) -> None:
    queued = make_run(run.agent)

    assert "has not completed a step yet" in page_of(operator, queued)
    assert f'href="{url_of(queued)}"' not in page_of(operator, queued)
    assert "No checkpoints yet" in operator.get(url_of(queued)).content.decode()


def test_a_viewer_cannot_fork(project: Project, run: AgentRun) -> None:
    viewer = Client()
    viewer.force_login(make_person(project, Role.VIEWER))

    # The marks at the steps are the same for all users; the button depends on the role.
    assert f'href="{url_of(run)}"' not in page_of(viewer, run)
    assert viewer.get(url_of(run)).status_code == 403
