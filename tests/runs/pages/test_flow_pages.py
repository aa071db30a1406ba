"""Test the pages of flows and flow runs: lists, drawings, the form, the start, and the actions of a flow run."""

from __future__ import annotations

import html
import json
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from agentops.accounts.models import Project, Role
from agentops.base import schema_work
from runs.actions import flow_definitions, flow_run_actions
from runs.flows import runner
from runs.models import AgentRunMessage, Flow, FlowRun, FlowVisit
from runs.pages.flows.flow_run_page import STOP_POLLING
from runs.queries.flow_states import graph_of_run
from runs.worker.worker import Worker
from tests.support.factories import make_person, make_project
from tests.support.flows import make_flow, make_flow_run, play, run_of

REVIEW: dict[str, Any] = {
    "flow_id": "review",
    "title": "Review <b>it</b>",
    "inputs": {"type": "object", "properties": {"task": {"type": "string"}}, "required": ["task"]},
    "nodes": [
        {"id": "begin", "type": "constant", "value": "{{ inputs.task }}"},
        {"id": "gate", "type": "human", "title": "Ask <i>you</i>", "question": "Right? {{ outputs.begin }}"},
        {"id": "end", "type": "constant", "value": "{{ outputs.gate }}"},
    ],
    "edges": [
        {"from": "begin", "to": "gate"},
        {"from": "gate", "to": "begin", "when": "outputs.gate == 'no'", "maxIterations": 2},
        {"from": "gate", "to": "end", "when": "outputs.gate == 'yes'"},
    ],
}


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


@pytest.fixture
def flow(project: Project) -> Flow:
    return make_flow(REVIEW, project)


@pytest.fixture
def admin(project: Project) -> Client:
    client = Client()
    client.force_login(make_person(project, Role.ADMIN))
    return client


@pytest.fixture
def waiting(project: Project, worker: Worker) -> FlowRun:
    """Create a flow run that waits for an answer."""
    return play(make_flow_run(REVIEW, project, {"task": "the parser"}), worker)


def seen(answer: Any) -> str:
    return html.unescape(answer.content.decode())


def test_a_definition_is_downloaded_and_can_be_applied_again(flow: Flow, admin: Client) -> None:
    make_flow({**REVIEW, "title": "Second"}, flow.project)
    for page, file, title in (
        ("/p/alpha/flows/review", "review.json", "Second"),
        ("/p/alpha/flows/review/versions/1", "review.v1.json", "Review <b>it</b>"),
    ):
        url = f"{page}/definition"
        assert f'href="{url}"' in seen(admin.get(page))
        answer = admin.get(url)
        assert answer.headers["Content-Disposition"] == f'attachment; filename="{file}"'
        definition = json.loads(answer.content)
        assert definition["title"] == title
        assert flow_definitions.problems_of(flow.project, definition) == []
    stored = Flow.objects.get(pk=flow.pk)
    assert json.loads(admin.get("/p/alpha/flows/review/definition").content) == stored.definition
    assert admin.get("/p/alpha/flows/review/versions/9/definition").status_code == 404


def test_a_definition_is_downloaded_with_its_secrets_masked(project: Project, admin: Client) -> None:
    token = "ghp_" + "a1B2" * 9
    node = {"id": "say", "type": "constant", "value": f"with {token}"}
    make_flow({"flow_id": "leaky", "nodes": [node]}, project)
    answer = admin.get("/p/alpha/flows/leaky/definition").content.decode()
    assert token not in answer
    assert "with [REDACTED:github_token:" in answer


def test_a_flow_is_drawn_and_described(flow: Flow, admin: Client) -> None:
    page = admin.get("/p/alpha/flows/review")

    text = seen(page)
    assert b"<b>it</b>" not in page.content
    assert "Review <b>it</b>" in text
    assert 'aria-label="Drawing of the flow"' in text
    assert "Person Ask <i>you</i>" in text
    assert "outputs.gate == 'no'" in text
    assert "leads back at most 2 times" in text
    edges = [{**edge, "maxIterations": 1} if "maxIterations" in edge else edge for edge in REVIEW["edges"]]
    make_flow({**REVIEW, "edges": edges}, flow.project)
    assert "leads back at most 1 time<" in seen(admin.get("/p/alpha/flows/review"))


def test_a_version_shows_its_changes(flow: Flow, project: Project, admin: Client) -> None:
    flow_definitions.apply(project, {**REVIEW, "title": "Review twice"}, by="user:bob")

    text = seen(admin.get("/p/alpha/flows/review/versions/2"))

    assert "Changed by this version" in text
    assert "twice" in text
    assert admin.get("/p/alpha/flows/review/versions/3").status_code == 404


def test_the_form_shows_every_error_with_its_path(project: Project, admin: Client) -> None:
    broken = {
        "flow_id": "broken",
        "nodes": [{"id": "a", "type": "human", "question": "{{ inputs. }}"}],
        "edges": [{"from": "a", "to": "b"}],
    }

    answer = admin.post("/p/alpha/new-flow", {"base": "0", "do": "save", "text": json.dumps(broken)})

    assert answer.status_code == 422
    assert "$.edges[0].to: There is no node 'b'." in seen(answer).replace("<code>", "").replace("</code>", "")
    assert not Flow.objects.exists()
    assert "Not JSON" in seen(admin.post("/p/alpha/new-flow", {"base": "0", "do": "save", "text": "{"}))


def test_the_drawing_follows_the_text_and_saves_nothing(project: Project, admin: Client) -> None:
    drawn = seen(admin.post("/p/alpha/new-flow/drawing", {"text": json.dumps(REVIEW)}))
    cyclic = {**REVIEW, "edges": [{"from": "begin", "to": "gate"}, {"from": "gate", "to": "begin"}]}
    refused = seen(admin.post("/p/alpha/new-flow/drawing", {"text": json.dumps(cyclic)}))

    assert "<svg" in drawn
    assert "part of a cycle" in refused
    assert "<svg" not in refused
    assert not Flow.objects.exists()


def test_a_save_replaces_only_the_version_that_was_edited(flow: Flow, project: Project, admin: Client) -> None:
    flow_definitions.apply(project, {**REVIEW, "title": "Theirs"}, by="user:bob")
    mine = {"base": "1", "do": "save", "text": json.dumps({**REVIEW, "title": "Mine"})}

    conflict = admin.post("/p/alpha/flows/review/edit", mine)
    assert conflict.status_code == 409
    assert "Another user has changed this flow since you opened the form" in seen(conflict)
    assert "Mine" in seen(conflict)

    assert admin.post("/p/alpha/flows/review/edit", {**mine, "base": "2"}).status_code == 303
    flow.refresh_from_db()
    assert (flow.title, flow.version) == ("Mine", 3)


def test_a_new_flow_does_not_replace_an_existing_one(flow: Flow, admin: Client) -> None:
    answer = admin.post("/p/alpha/new-flow", {"base": "0", "do": "save", "text": json.dumps({**REVIEW, "title": "X"})})

    assert answer.status_code == 409
    assert "already has a flow of this name" in seen(answer)


def test_a_form_submitted_twice_starts_one_flow_run(flow: Flow, admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    form = admin.get("/p/alpha/flows/review/start", follow=True)
    token = form.context["token"]
    assert '"task": ""' in seen(form)

    wrong = admin.post("/p/alpha/flows/review/start", {"token": token, "inputs": '{"task": 1}'})
    assert wrong.status_code == 422
    assert "task: 1 is not of type 'string'" in seen(wrong)
    monkeypatch.setattr(schema_work, "MAX_STEPS", 1)
    expensive = admin.post("/p/alpha/flows/review/start", {"token": token, "inputs": '{"task": "x"}'})
    monkeypatch.undo()
    assert expensive.status_code == 422
    assert "The schema is too expensive for this value" in seen(expensive)
    sent = [admin.post("/p/alpha/flows/review/start", {"token": token, "inputs": '{"task": "x"}'}) for _ in range(2)]

    flow_run = FlowRun.objects.get()
    assert [answer["Location"] for answer in sent] == [f"/flow-runs/{flow_run.pk}"] * 2
    assert "already submitted" in seen(admin.get(f"/p/alpha/flows/review/start?form={token}"))


def test_a_flow_run_shows_its_nodes_and_waits(waiting: FlowRun, admin: Client) -> None:
    text = seen(admin.get(f"/flow-runs/{waiting.pk}"))

    run = run_of(waiting, "gate")
    assert "needs a person" in text
    assert f'href="/runs/{run.pk}"' in text
    assert "Person Ask <i>you</i>, running" in text
    assert "Constant begin, done" in text
    assert "Node gate started" in text
    assert f'href="/flow-runs/{waiting.pk}"' in seen(admin.get(f"/runs/{run.pk}"))


def test_the_state_page_shows_the_snapshot_after_each_event(waiting: FlowRun, admin: Client) -> None:
    first = seen(admin.get(f"/flow-runs/{waiting.pk}/state?seq=1"))
    last = admin.get(f"/flow-runs/{waiting.pk}/state")

    assert "3 pending" in first
    assert "No node has an output yet." in first
    assert '"begin": "the parser"' in seen(last)
    assert last.context["graph"].drawing.boxes[0].status == "done"


@pytest.mark.parametrize("page", ["?event=99999", "/state?seq=99999", "/state?seq=0", "/replay?seq=99999"])
def test_a_missing_event_is_named(waiting: FlowRun, admin: Client, page: str) -> None:
    asked = page.rpartition("=")[2]

    assert f"Event {asked} does not exist" in seen(admin.get(f"/flow-runs/{waiting.pk}{page}"))


def test_a_flow_run_can_be_paused_messaged_resumed_and_stopped(waiting: FlowRun, admin: Client) -> None:
    run = run_of(waiting, "gate")

    def press(button: str, **values: str) -> str:
        sent = admin.post(f"/flow-runs/{waiting.pk}/{button}", values)
        waiting.refresh_from_db()
        return seen(admin.get(sent["Location"]))

    assert "Only a paused flow run can be resumed" in seen(admin.get(f"/flow-runs/{waiting.pk}"))
    assert "Flow run paused." in press("pause")
    assert waiting.status == "paused"
    # static/js/keep.js uses these keys to distinguish the two message fields when the head is loaded again.
    changes = admin.get(f"/flow-runs/{waiting.pk}/changes").content.decode()
    assert 'data-key="resume-message"' in changes
    assert 'data-key="send-message"' in changes
    assert "Not sent" in press("send", run=str(waiting.pk), message="hello")
    assert "Message sent." in press("send", run=str(run.pk), message="hello")
    assert "Flow run resumed." in press("resume")
    assert waiting.status in ("queued", "running", "waiting")
    assert "Stops these runs of its nodes too" in seen(admin.get(f"/flow-runs/{waiting.pk}"))
    assert "Flow run stopped." in press("stop")
    assert waiting.status == "stopped"
    run.refresh_from_db()
    assert run.status == "stopped"
    assert admin.get(f"/flow-runs/{waiting.pk}/changes").status_code == STOP_POLLING


def test_the_query_count_does_not_grow_with_flows_and_visits(
    project: Project, flow: Flow, admin: Client, worker: Worker
) -> None:
    def queries(url: str) -> int:
        with CaptureQueriesContext(
            connection,
        ) as context:
            assert admin.get(url).status_code == 200
        return len(context)

    def many(count: int) -> FlowRun:
        nodes = [{"id": f"n{number}", "type": "constant", "value": 1} for number in range(count)]
        flow_run = make_flow_run({"flow_id": f"wide-{count}", "nodes": nodes}, project)
        runner.advance(flow_run.pk)
        return flow_run

    few, more = many(2), many(12)
    assert queries(f"/flow-runs/{few.pk}") == queries(f"/flow-runs/{more.pk}")
    before = queries("/p/alpha/flows")
    for number in range(4):
        flow_run_actions.create("test", make_flow({**REVIEW, "flow_id": f"more-{number}"}, project), {"task": "x"})
    assert queries("/p/alpha/flows") == before
    assert not AgentRunMessage.objects.exists()


def test_a_node_with_many_visits_shows_the_newest_and_their_number(project: Project, admin: Client) -> None:
    flow_run = make_flow_run({"flow_id": "many", "nodes": [{"id": "a", "type": "constant", "value": 1}]}, project)
    runner.advance(flow_run.pk)
    made = flow_run.visits.get()
    copies = [
        FlowVisit(
            flow_run=flow_run,
            key=f"a#{number}",
            node="a",
            kind="constant",
            iteration=number,
            value=None,
            started_at=made.started_at,
            ended_at=made.started_at,
        )
        for number in range(1, 30)
    ]
    FlowVisit.objects.bulk_create(copies)

    [node] = graph_of_run(FlowRun.objects.get(pk=flow_run.pk), visits=3).nodes
    assert ([visit.key for visit in node.visits], node.visit_count) == (["a#29", "a#28", "a#27"], 30)
