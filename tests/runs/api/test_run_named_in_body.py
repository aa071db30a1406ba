"""Bodies that name a run, as in the agent dialect: the name must match the run in the URL, or 409 `run_mismatch`."""

from __future__ import annotations

import pytest
from django.test import Client

from runs.api import urls
from runs.api.action_views import ActionView
from runs.api.requests.inputs import RunBody
from runs.models import AgentRun
from tests.support.api import Program, counts, patterns, pointers, program, refused
from tests.support.factories import make_agent, make_import, make_person, make_project, make_run

UNKNOWN = "01a1f86c-1b1a-72f0-b808-0c8f1390c3f4"
ABOUT_A_RUN: list[tuple[str, dict[str, object]]] = [
    ("resume", {}),
    ("fork", {"step": 1}),
    ("pause", {}),
    ("stop", {}),
    ("commands", {"type": "stop"}),
    ("commands", {"type": "send", "message": "hello"}),
    (f"tool-calls/{UNKNOWN}/resolve", {"choice": "retry"}),
]


@pytest.fixture
def alpha(db: None) -> Program:
    return program(make_project("alpha"))


@pytest.fixture
def run(alpha: Program) -> AgentRun:
    return make_run(make_agent(alpha.project))


@pytest.mark.parametrize("name", ["runId", "run_id"])
@pytest.mark.parametrize(("path", "body"), ABOUT_A_RUN)
def test_another_run_in_the_body_is_refused(
    path: str, body: dict[str, object], name: str, alpha: Program, run: AgentRun
) -> None:
    """Including another run of the same project and an invalid ID; the request has no effect."""
    other = make_run(make_agent(alpha.project))
    before = counts()
    for named in (str(other.pk), UNKNOWN, "cc-17", "\ud800"):
        answer = alpha.post(f"/{run.pk}/{path}", body | {name: named})
        assert refused(answer) == (409, "run_mismatch"), named
    assert refused(alpha.post(f"/{run.pk}/{path}", body | {name: 7})) == (422, "invalid")
    assert refused(alpha.post(f"/{run.pk}/{path}", body | {name: str(other.pk), "colour": 1})) == (422, "unknown_field")
    assert counts() == before


@pytest.mark.parametrize(("path", "body"), ABOUT_A_RUN)
def test_the_run_of_the_url_is_accepted_in_the_body(
    path: str, body: dict[str, object], alpha: Program, run: AgentRun
) -> None:
    plain = alpha.post(f"/{run.pk}/{path}", body)
    twin = make_run(make_agent(alpha.project))
    named = alpha.post(f"/{twin.pk}/{path}", body | {"runId": str(twin.pk), "run_id": str(twin.pk).upper()})

    assert (named.status_code, named.json().get("code")) == (plain.status_code, plain.json().get("code"))
    assert plain.status_code != 422 or path == "fork"


def test_the_runner_s_id_of_the_run_is_accepted(alpha: Program, run: AgentRun) -> None:
    AgentRun.objects.filter(pk=run.pk).update(external_id="cc-17")

    assert alpha.post(f"/{run.pk}/pause", {"runId": "cc-17"}).status_code == 200
    assert refused(alpha.post(f"/{run.pk}/stop", {"runId": "cc-17", "run_id": "cc-18"})) == (409, "run_mismatch")


def test_the_payload_of_a_command_may_name_the_run(alpha: Program, run: AgentRun) -> None:
    command = {"type": "send", "payload": {"message": "hello", "runId": str(run.pk)}}
    assert alpha.post(f"/{run.pk}/commands", command).status_code == 202
    command["payload"] = {"message": "hello", "runId": UNKNOWN}
    assert refused(alpha.post(f"/{run.pk}/commands", command)) == (409, "run_mismatch")


def test_a_url_without_a_run_accepts_no_run_in_the_body(alpha: Program) -> None:
    answer = alpha.post("/resume", {"all": True, "runId": UNKNOWN})

    assert (refused(answer), pointers(answer)) == ((422, "unknown_field"), {"/runId": "unknown_field"})


@pytest.mark.django_db
def test_only_bodies_about_the_run_of_the_url_may_name_a_run() -> None:
    """Regression test: an import, a key or a project with a run in the body answered 500."""
    views = [(path, view) for path, view in patterns(urls.urlpatterns) if issubclass(view, ActionView)]
    of_other_things = [(path, view) for path, view in views if "run_id" not in path]
    bodies = {path: body for path, view in of_other_things if (body := view.body_class or view.serializer_class)}

    assert len(bodies) > 15
    assert [path for path, body in bodies.items() if issubclass(body, RunBody)] == []


def test_a_cancel_of_an_import_with_a_run_is_refused(run: AgentRun) -> None:
    client = Client()
    client.force_login(make_person(run.project))
    address = f"/api/projects/alpha/imports/{make_import(run).pk}/cancel"
    answer = client.post(address, {"runId": "x"}, content_type="application/json")

    assert refused(answer) == (422, "unknown_field")
