"""`…/flows` and `…/flow-runs` of the API: definitions, versions, runs and their commands."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from agentops.accounts.models import AuditEntry, Project, Role
from agentops.base import schema_work
from agentops.base.fair_shares import WorkBudget
from runs.actions import flow_run_actions
from runs.flows import runner
from runs.models import Flow, FlowRun
from tests.support.factories import make_agent, make_person, make_project, with_key
from tests.support.flows import (
    CONSTANT,
    EXPENSIVE_INPUTS,
    EXPENSIVE_SCHEMA,
    make_ended_flow_run,
    make_flow,
    make_flow_run,
    run_of,
    types_of,
)
from tests.support.loopback_servers import answer as server_answer
from tests.support.loopback_servers import serving
from timeline import log

pytestmark = pytest.mark.django_db
QUESTION = {"nodes": [{"id": "ask", "type": "human", "question": "Go on?"}]}


@pytest.fixture
def project() -> Project:
    return make_project("alpha")


@pytest.fixture
def admin(project: Project) -> Client:
    client = Client()
    client.force_login(make_person(project, Role.ADMIN))
    return client


@pytest.fixture
def program(project: Project) -> Client:
    return Client(headers=with_key(project, "write"))


def send(client: Client, path: str, body: Any = None, method: str = "POST", **headers: str) -> Any:
    raw = "" if body is None else json.dumps(body)
    url = f"/api/projects/alpha/{path}"
    return client.generic(method, url, raw, content_type="application/json", headers=headers)


def pointers(answer: Any) -> dict[str, str]:
    return {each["pointer"]: each["code"] for each in answer.json()["errors"]}


def test_a_flow_can_be_created_changed_listed_and_deleted(admin: Client, project: Project) -> None:
    created = send(admin, "flows", {"definition": CONSTANT})
    again = send(admin, "flows", {"definition": CONSTANT})
    changed = send(admin, "flows/sample", {"definition": {**CONSTANT, "title": "Better"}}, "PUT")
    stale = send(admin, "flows/sample", {"definition": CONSTANT, "changes": 1}, "PUT")

    assert [each.status_code for each in (created, again, changed, stale)] == [201, 200, 200, 409]
    assert (again.json()["version"], changed.json()["version"], stale.json()["code"]) == (1, 2, "flow_changed")
    listed = admin.get("/api/projects/alpha/flows").json()["results"]
    assert [(row["flow_id"], row["title"], row["version"]) for row in listed] == [("sample", "Better", 2)]
    versions = admin.get("/api/projects/alpha/flows/sample/versions").json()["results"]
    assert [(row["number"], row["changed"]) for row in versions] == [(2, ["title"]), (1, [])]
    assert all(row["created_by"].startswith("user:") for row in versions)
    first = admin.get("/api/projects/alpha/flows/sample/versions/1").json()
    assert first["definition"] == CONSTANT
    assert admin.get("/api/projects/alpha/flows/sample/versions/3").json()["code"] == "flow_version_not_found"
    assert send(admin, "flows/sample", None, "DELETE").status_code == 204
    assert not Flow.objects.exists()
    actions = AuditEntry.objects.order_by("pk").values_list("action", flat=True)
    assert [each for each in actions if each.startswith("flow")] == ["flow.created", "flow.changed", "flow.deleted"]


WRONG = {
    "flow_id": "wrong",
    "nodes": [
        {"id": "a", "type": "agent", "agent": "nobody", "prompt": "{{ outputs.zzz }}"},
        {"id": "b", "type": "tool", "tool": "nothing"},
        {"id": "c", "type": "constant", "value": "{{ a b }}", "when": "__class__"},
    ],
    "edges": [{"from": "a", "to": "b", "when": "length("}],
}
SHAPES = [
    ({"nodes": [{"id": "a", "type": "robot"}]}, {"/definition/nodes/0/type": "unknown_node_type"}),
    ({"nodes": []}, {"/definition/nodes": "invalid_shape"}),
    ({"nodes": [{"id": "a", "type": "constant"}]}, {"/definition/nodes/0/value": "invalid_shape"}),
    ({"nodes": CONSTANT["nodes"], "version": "99"}, {"/definition/version": "invalid_shape"}),
    ({"nodes": CONSTANT["nodes"] * 2}, {"/definition/nodes/1/id": "duplicate_id"}),
    (
        {"nodes": [{"id": f"n{n}", "type": "constant", "value": 1} for n in range(10_001)]},
        {"/definition/nodes": "invalid_shape"},
    ),
    ({"nodes": CONSTANT["nodes"], "inputs": {"type": "nonsense"}}, {"/definition/inputs/type": "invalid_inputs"}),
]
EDGES = [
    ([{"from": "a", "to": "x"}], {"/definition/edges/0/to": "unknown_node"}),
    ([{"from": "a", "to": "a"}], {"/definition/edges/0": "uncounted_cycle"}),
    ([{"from": "a", "to": "b", "maxIterations": -1}], {"/definition/edges/0/maxIterations": "invalid_shape"}),
    ([{"from": "a", "to": "b", "maxIterations": 1}], {"/definition/edges/0": "invalid_loop"}),
    ([{"from": "a", "to": "b"}, {"from": "a", "to": "b"}], {"/definition/edges/1": "duplicate_edge"}),
    (
        [{"from": "a", "to": "b"}, {"from": "b", "to": "c"}, {"from": "c", "to": "a"}],
        {
            "/definition/nodes": "no_start",
            "/definition/edges/0": "uncounted_cycle",
            "/definition/edges/1": "uncounted_cycle",
            "/definition/edges/2": "uncounted_cycle",
        },
    ),
    (
        [{"from": "a", "to": "c", "gate": "any"}, {"from": "b", "to": "c", "gate": "all"}],
        {"/definition/edges/1/gate": "invalid_gate"},
    ),
    ([{"from": "a", "to": "b", "forEach": {"in": "outputs.b"}}], {"/definition/edges/0/forEach/in": "unknown_binding"}),
]
NODES = [{"id": name, "type": "constant", "value": 1} for name in "abc"]


def test_everything_that_is_wrong_with_a_definition_is_told_with_its_place(admin: Client, project: Project) -> None:
    answer = send(admin, "flows", {"definition": WRONG})

    assert (answer.status_code, answer.json()["code"]) == (422, "flow_invalid")
    assert pointers(answer) == {
        "/definition/nodes/0/prompt": "unknown_binding",
        "/definition/nodes/0/agent": "unknown_agent",
        "/definition/nodes/1/tool": "unknown_tool",
        "/definition/nodes/2/value": "invalid_expression",
        "/definition/nodes/2/when": "unknown_binding",
        "/definition/edges/0/when": "invalid_expression",
    }
    validated = send(admin, "flows/validate", {"definition": WRONG}).json()
    assert (validated["valid"], len(validated["errors"])) == (False, 6)
    assert send(admin, "flows/validate", {"definition": CONSTANT}).json() == {"valid": True, "errors": []}
    cases = [*SHAPES, *(({"nodes": NODES, "edges": edges}, expected) for edges, expected in EDGES)]
    for parts, expected in cases:
        refused = send(admin, "flows", {"definition": {"flow_id": "bad", **parts}})
        assert (refused.status_code, pointers(refused)) == (422, expected), parts
    assert not Flow.objects.exists()


def test_a_schema_of_inputs_sends_no_requests_and_its_errors_are_reported(
    admin: Client, program: Client, project: Project
) -> None:
    with serving(server_answer(b"{}")) as server:
        remote = {"$ref": f"http://127.0.0.1:{server.port}/secret"}
        refused = send(admin, "flows", {"definition": {**CONSTANT, "inputs": remote}})
        # A definition stored under earlier rules.
        flow = make_flow(CONSTANT, project)
        for schema in (remote, {"$ref": "#"}, {"$ref": "#/nowhere"}):
            Flow.objects.filter(pk=flow.pk).update(definition={**flow.definition, "inputs": schema})
            started = send(program, "flow-runs", {"flow_id": "sample", "inputs": {"a": 1}})
            assert (started.status_code, pointers(started)) == (422, {"/inputs": "invalid_inputs"}), schema
        assert server.requests == []
    assert (refused.status_code, pointers(refused)) == (422, {"/definition/inputs/$ref": "invalid_inputs"})
    assert not FlowRun.objects.exists()


def test_expensive_schemas_are_refused(
    admin: Client, program: Client, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_work, "MAX_STEPS", 200_000)
    make_flow({**CONSTANT, "inputs": EXPENSIVE_SCHEMA}, project)
    # Also with an idempotency key: error responses are not stored.
    for headers in ({}, {"Idempotency-Key": "k"}, {"Idempotency-Key": "k"}):
        refused = send(program, "flow-runs", {"flow_id": "sample", "inputs": EXPENSIVE_INPUTS}, **headers)
        assert (refused.status_code, refused.json()["code"]) == (422, "schema_too_expensive")
        assert pointers(refused) == {"/inputs": "schema_too_expensive"}
        assert "takes more than 200000 steps" in refused.json()["detail"]
    large = {**CONSTANT, "inputs": {"allOf": [{"type": "object"}] * 20_000}}
    for answer in (send(admin, "flows", {"definition": large}), send(admin, "flows/validate", {"definition": large})):
        at = "/definition/inputs" if answer.status_code == 422 else "/inputs"
        assert pointers(answer) == {at: "schema_too_expensive"}
    assert not FlowRun.objects.exists()
    assert send(program, "flow-runs", {"flow_id": "sample", "inputs": {"items": [1]}}).status_code == 201


def test_inputs_and_definitions_are_checked_without_a_transaction(
    admin: Client, program: Client, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock would block other transactions during the check; on SQLite, all other writers."""
    looked: list[bool] = []

    def budget(*args: Any, **options: Any) -> WorkBudget:
        # The test itself runs in one transaction.
        looked.append(len(connection.savepoint_ids) > 0)
        return WorkBudget(*args, **options)

    monkeypatch.setattr(schema_work, "WorkBudget", budget)
    definition = {**CONSTANT, "inputs": {"type": "object"}}
    for client, path, body in [
        (admin, "flows", {"definition": definition}),
        (admin, "flows/validate", {"definition": definition}),
        (program, "flow-runs", {"flow_id": "sample", "inputs": {"a": 1}}),
    ]:
        assert send(client, path, body, **{"Idempotency-Key": f"key of {path}"}).status_code in (200, 201)
    changed = {"definition": {**definition, "title": "Other"}}
    assert send(admin, "flows/sample", changed, "PUT", **{"Idempotency-Key": "k"}).status_code == 200
    assert looked == [False] * 4


def test_a_repeated_request_gets_the_stored_response_even_if_it_would_now_fail(
    program: Client, project: Project
) -> None:
    flow = make_flow(CONSTANT, project)
    body = {"flow_id": "sample", "inputs": {"a": 1}}
    first = send(program, "flow-runs", body, **{"Idempotency-Key": "k"})
    flow.delete()
    again = send(program, "flow-runs", body, **{"Idempotency-Key": "k"})
    assert (first.status_code, again.status_code, again.json()) == (201, 201, first.json())
    assert send(program, "flow-runs", body).json()["code"] == "flow_not_found"


def test_a_flow_run_is_started_once_and_can_be_read(program: Client, project: Project) -> None:
    typed = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    make_flow_run({**CONSTANT, "inputs": typed}, project, {"n": 1})
    body = {"flow_id": "sample", "inputs": {"n": 7}}

    first = send(program, "flow-runs", body, **{"Idempotency-Key": "k"})
    second = send(program, "flow-runs", body, **{"Idempotency-Key": "k"})
    wrong = send(program, "flow-runs", {"flow_id": "sample", "inputs": {"n": "seven"}})
    unknown = send(program, "flow-runs", {"flow_id": "nothing"})

    assert (first.status_code, second.json()["id"], FlowRun.objects.count()) == (201, first.json()["id"], 2)
    assert (wrong.status_code, pointers(wrong)) == (422, {"/inputs/n": "invalid_inputs"})
    assert (unknown.status_code, pointers(unknown)) == (422, {"/flow_id": "flow_not_found"})
    runner.advance(FlowRun.objects.latest("pk").pk)
    read = program.get(first["Location"])
    assert (read.json()["status"], read.json()["outputs"], read.json()["inputs"]) == ("completed", {"a": 1}, {"n": 7})
    assert program.get(first["Location"], headers={"If-None-Match": read["ETag"]}).status_code == 304
    listed = program.get("/api/projects/alpha/flow-runs?status=queued&flow_id=sample&limit=1").json()
    assert [row["status"] for row in listed["results"]] == ["queued"]
    assert listed["next"] is None


def test_pages_of_flow_runs_contain_each_run_once(program: Client, project: Project) -> None:
    ids = [str(make_ended_flow_run(project).pk) for _ in range(5)]
    url, seen = "/api/projects/alpha/flow-runs?limit=2", []
    while url:
        page = program.get(url).json()
        seen += [row["id"] for row in page["results"]]
        url = page["next"]

    assert seen == ids[::-1]


def test_events_and_snapshots_of_a_flow_run_can_be_read(program: Client, project: Project) -> None:
    flow_run = make_ended_flow_run(project)
    base = f"/api/projects/alpha/flow-runs/{flow_run.pk}"

    page = program.get(f"{base}/events?afterSeq=2&limit=2").json()
    assert [event["seq"] for event in page["results"]] == [3, 4]
    assert page["last_seq"] == len(log.read(flow_run.pk))
    assert program.get(page["next"]).json()["results"][0]["seq"] == 5
    names = [event["type"] for event in program.get(f"{base}/events?dialect=agent").json()["results"]]
    assert {"flow:started", "node:started", "node:completed", "flow:completed"} <= set(names)
    assert program.get(f"{base}/snapshot").json() == flow_run.snapshot
    first = program.get(f"{base}/snapshot?seq=1").json()
    assert (first["status"], first["nodeStatus"]) == ("queued", {"a": "pending"})
    assert program.get(f"{base}/snapshot?seq=99").json()["code"] == "invalid_seq"
    assert program.get(f"{base}/events/stream?afterSeq={page['last_seq']}").status_code == 204


def test_a_replay_returns_each_event_with_the_state_after_it(program: Client, project: Project) -> None:
    """The states equal the snapshots, without pending entries and without outputs."""
    flow_run = make_flow_run(QUESTION, project)
    runner.advance(flow_run.pk)
    send(program, f"flow-runs/{flow_run.pk}/pause")
    reply = {"type": "reply", "runId": str(run_of(flow_run, "ask").pk), "message": "Yes"}
    assert send(program, f"flow-runs/{flow_run.pk}/commands", reply).status_code == 202
    base = f"/api/projects/alpha/flow-runs/{flow_run.pk}"

    url, replayed = f"{base}/replay?limit=3", []
    while url:
        answer = program.get(url)
        page = answer.json()
        replayed += page["results"]
        assert len(page["results"]) <= 3
        assert answer.headers.get("Link") == (f'<{page["next"]}>; rel="next"' if page["next"] else None)
        url = page["next"]
    events = log.read(flow_run.pk)
    assert [event["seq"] for event in replayed] == [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event["type"] for event in replayed] == [event.type for event in events]
    for event in replayed:
        state, snapshot = event["state"], program.get(f"{base}/snapshot?seq={event['seq']}").json()
        assert state == {
            "seq": event["seq"],
            "status": snapshot["status"],
            "nodeStatus": {name: own for name, own in snapshot["nodeStatus"].items() if own != "pending"},
            "edgeStatus": {name: own for name, own in snapshot["edgeStatus"].items() if own != "pending"},
            "loopCounters": {name: count for name, count in snapshot["loopCounters"].items() if count},
            "waitingMessages": sum(map(len, snapshot["inbox"].values())),
        }
    assert (state["status"], state["nodeStatus"], state["waitingMessages"]) == ("paused", {"ask": "running"}, 1)
    assert program.get(f"{base}/replay?afterSeq=999").json() == {
        "results": [],
        "last_seq": len(events),
        "next": None,
    }
    assert program.get(f"{base}/replay?state=x").json()["code"] == "unknown_parameter"


def test_a_flow_run_can_be_paused_resumed_and_stopped(program: Client, project: Project) -> None:
    flow_run = make_flow_run(QUESTION, project)
    runner.advance(flow_run.pk)
    base = f"flow-runs/{flow_run.pk}"

    paused = send(program, f"{base}/pause")
    resumed = send(program, f"{base}/resume", {"message": "Go"})
    again = send(program, f"{base}/resume")
    stopped = send(program, f"{base}/stop")

    assert [each.json().get("status") for each in (paused, resumed, stopped)] == ["paused", "waiting", "stopped"]
    assert (again.status_code, again.json()["code"]) == (409, "flow_run_not_paused")
    assert types_of(flow_run).count("flow.resumed") == 1
    assert send(program, f"{base}/pause").json()["code"] == "run_terminal"


@pytest.mark.parametrize("door", ["resume", "commands"])
def test_a_message_with_characters_that_no_database_stores_is_accepted(
    program: Client, project: Project, door: str
) -> None:
    make_agent(project, slug="player")
    nodes = [{"id": "work", "type": "agent", "agent": "player", "prompt": "Go."}]
    flow_run = make_flow_run({"nodes": nodes}, project)
    runner.advance(flow_run.pk)
    flow_run_actions.pause("user:oscar", flow_run)
    body = {"message": "on \ud800 and \0 on"} | ({"type": "resume"} if door == "commands" else {})
    answer = send(program, f"flow-runs/{flow_run.pk}/{door}", body)

    assert answer.status_code in (200, 202)
    assert flow_run.visits.get().reentry == "on \ufffd and \ufffd on"
    runner.advance(flow_run.pk)
    [command] = run_of(flow_run, "work").commands.all()
    assert command.payload == {"message": "on \ufffd and \ufffd on"}


def test_commands_are_recorded_also_when_they_are_invalid(program: Client, project: Project) -> None:
    flow_run = make_flow_run(QUESTION, project)
    runner.advance(flow_run.pk)
    commands, question = f"flow-runs/{flow_run.pk}/commands", run_of(flow_run, "ask")
    bad = [
        ({"type": "send", "message": "x"}, "run_id_required"),
        ({"type": "send", "runId": str(flow_run.pk), "message": "x"}, "run_not_in_flow"),
        ({"type": "dance"}, "invalid_input"),
        ({"type": "reply", "runId": str(question.pk)}, "message_empty"),
        ({"type": "send", "runId": str(question.pk), "message": "x", "more": 1}, "unknown_field"),
    ]
    for number, (body, code) in enumerate(bad):
        # Also with an idempotency key, whose transaction is rolled back.
        answer = send(program, commands, body, **({"Idempotency-Key": f"k{number}"} if number % 2 else {}))
        assert (answer.status_code, answer.json()["code"]) == (422, code)
    received = [event.payload for event in log.events_of(flow_run.pk) if event.type == "command.received"]
    assert [(each["refused"], each["payload"]) for each in received] == [(code, body) for body, code in bad]
    assert not question.commands.exists()

    good = {"type": "reply", "runId": str(question.pk), "message": "yes"}
    assert send(program, commands, good).status_code == 202
    assert [command.payload for command in question.commands.all()] == [{"message": "yes"}]
    question.refresh_from_db()
    assert question.status == "queued"
