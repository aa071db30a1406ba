"""Flow runs in the database: the runs that a worker starts, and their effect on snapshot and log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings
from uuid_utils.compat import uuid7

from agentops.accounts.models import Project
from runs.actions import flow_commands, flow_run_actions, run_actions
from runs.errors import FlowRunNotFound, MoveRefused
from runs.fixtures import fixture_files
from runs.flows import runner
from runs.flows.kernel.flow_decisions import Decisions
from runs.lifecycle import flow_transitions, inbox
from runs.models import AgentRun, FlowRun, FlowVisit
from runs.providers import base as providers
from runs.queries.flow_states import graph_of_run, snapshot_at
from runs.worker.worker import Worker
from tests.support.databases import refusing
from tests.support.factories import make_project
from tests.support.flows import events_of, make_flow_run, make_writer, play, record_answers, run_of, types_of
from tests.support.run_checks import refuses
from timeline.models import Event, Source

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_hints")]


@pytest.fixture
def project(transactional_db: None, settings: Settings, tmp_path: Path) -> Project:
    settings.AGENTOPS_FIXTURES = [str(tmp_path)]
    fixture_files.load_named.cache_clear()
    record_answers(tmp_path, "writer", [f"text {n}" for n in range(12)])
    record_answers(tmp_path, "critic", ["again", "again", "good", "good"])
    project = make_project()
    make_writer(project)
    make_writer(project, "critic")
    return project


def agent(name: str, slug: str = "writer", **fields: Any) -> dict[str, Any]:
    return {"id": name, "type": "agent", "agent": slug, "prompt": f"work on {name}", **fields}


def edge(source: str, target: str, **fields: Any) -> dict[str, Any]:
    return {"from": source, "to": target, **fields}


LOOP = {
    "nodes": [
        {"id": "topics", "type": "constant", "value": ["a", "b"]},
        agent("draft", prompt="Draft, please"),
        agent("review", "critic", prompt="Judge: {{ outputs.draft }}"),
        {"id": "gate", "type": "human", "question": "Publish {{ outputs.draft }}?", "choices": ["yes", "no"]},
        agent("publish", prompt="Publish for {{ topic }}", when="outputs.gate == 'yes'"),
    ],
    "edges": [
        edge("topics", "publish", forEach={"in": "outputs.topics", "as": "topic"}),
        edge("draft", "review"),
        edge("review", "draft", when="outputs.review == 'again'", maxIterations=5),
        edge("review", "gate"),
        edge("gate", "publish"),
    ],
}


def test_a_flow_with_loop_question_and_for_each_completes(project: Project, worker: Worker) -> None:
    waiting = play(make_flow_run(LOOP, project), worker)

    assert (waiting.status, waiting.status_reason) == ("waiting", "input"), waiting.error_message
    assert waiting.snapshot["loopCounters"] == {"review->draft": 2}
    question = run_of(waiting, "gate")
    assert (question.status, question.status_reason, question.flow_run_id) == ("waiting", "input", waiting.pk)

    inbox.reply(question.pk, "yes", by="user:oscar")
    ended = play(waiting, worker)

    assert ended.status == "completed"
    # A recording continues after the calls of the node's earlier runs.
    assert ended.snapshot["outputs"] == {
        "topics": ["a", "b"],
        "draft": "text 2",
        "review": "good",
        "gate": "yes",
        "publish": {"iterations": [{"item": "a", "output": "text 0"}, {"item": "b", "output": "text 1"}]},
    }
    assert snapshot_at(ended) == ended.snapshot
    assert types_of(ended)[-2:] == ["flow.completed", "run.completed"]
    # Seq has no gap, and reading after any event returns the rest.
    assert [event.seq for event in events_of(ended)] == list(range(1, len(events_of(ended)) + 1))
    # Runs of nodes refer to their flow run and node.
    drafts = AgentRun.objects.filter(flow_run=ended, log__node_id="draft")
    assert drafts.count() == 3
    assert {event.node_id for run in drafts for event in run.log.events.all()} == {"draft"}
    assert ended.snapshot["agentSessions"]["draft#1"] in {str(run.pk) for run in drafts}


def test_s_024_an_exhausted_recording_is_reported_with_node_and_call(project: Project, worker: Worker) -> None:
    definition = {"nodes": [agent("judge", "critic")], "edges": [edge("judge", "judge", maxIterations=9)]}
    stuck = play(make_flow_run(definition, project), worker)

    paused = run_of(stuck, "judge#4")
    assert (paused.status, paused.error_message) == ("paused", "No fixture for judge call 4")
    # A user can fix and resume the node's run: the flow waits.
    assert stuck.status == "running"


def test_a_paused_flow_continues_with_one_resume_and_enters_open_nodes_once(project: Project, worker: Worker) -> None:
    definition = {
        "nodes": [agent("a"), agent("b", prompt="Continue {{ outputs.a }}"), agent("c")],
        "edges": [edge("a", "b"), edge("a", "c")],
    }
    started = play(
        make_flow_run(definition, project), worker, until=lambda run: run.snapshot["nodeStatus"]["a"] == "done"
    )
    paused = flow_run_actions.pause("user:oscar", started)
    assert paused.status == "paused"
    assert flow_run_actions.pause("user:oscar", started).version == paused.version
    assert {run_of(paused, name).status for name in "bc"} == {"paused"}
    before = len(events_of(paused))

    assert play(paused, worker).status == "paused"
    resumed = flow_run_actions.resume("user:oscar", FlowRun.objects.get(pk=paused.pk), message="Be brief")
    with refuses("flow_run_not_paused"):
        flow_run_actions.resume("user:oscar", paused)
    ended = play(resumed, worker)

    assert ended.status == "completed"
    assert types_of(ended).count("flow.resumed") == 1
    assert types_of(ended).count("flow.started") == 1
    later = events_of(ended)[before:]
    again = [(e.payload["node"], e.payload["resumed"]) for e in later if e.type == "node.started"]
    assert again == [("b", True), ("c", True)]
    # Its session continues: the first prompt is not sent again, the message is.
    successor = run_of(ended, "b")
    assert successor.resumed_from is not None
    assert successor.commands.get().payload == {"message": "Be brief"}
    assert [e.payload["payload"] for e in events_of(ended, "command.received")] == [{"message": "Be brief"}]
    assert AgentRun.objects.filter(flow_run=ended, log__node_id="a").count() == 1
    assert snapshot_at(ended) == ended.snapshot


def test_s_003_an_ended_flow_run_cannot_be_resumed(project: Project, worker: Worker) -> None:
    ended = play(make_flow_run({"nodes": [{"id": "a", "type": "constant", "value": 1}]}, project), worker)
    before = len(events_of(ended))

    with refuses("flow_run_not_paused"):
        flow_run_actions.resume("user:oscar", ended)
    for act in (flow_run_actions.pause, flow_run_actions.stop):
        with refuses("run_terminal"):
            act("user:oscar", ended)
    with refuses("run_terminal"):
        flow_commands.command("user:oscar", ended, {"type": "send", "message": "hi"})
    assert len(events_of(ended)) == before


def test_a_stop_also_stops_the_runs_of_all_nodes(project: Project, worker: Worker) -> None:
    definition = {"nodes": [agent("a"), agent("b"), agent("c")], "edges": [edge("b", "c")]}
    started = play(make_flow_run(definition, project), worker, until=lambda run: run.status == "running")
    affected = flow_run_actions.affected_runs(started)

    stopped = flow_run_actions.stop("user:oscar", started)

    assert {run.log.node_id for run in affected} == {"a", "b"}
    assert set(AgentRun.objects.filter(flow_run=started).values_list("status", flat=True)) == {"stopped"}
    assert stopped.snapshot["nodeStatus"] == {"a": "failed", "b": "failed", "c": "pending"}
    assert types_of(stopped)[-2:] == ["flow.completed", "run.stopped"]
    assert flow_run_actions.stop("user:oscar", stopped).version == stopped.version
    assert not FlowVisit.objects.open().exists()
    assert snapshot_at(stopped) == FlowRun.objects.get(pk=stopped.pk).snapshot


def test_a_message_reaches_only_the_named_run(project: Project, worker: Worker) -> None:
    definition = {"nodes": [agent("a"), agent("b")]}
    started = play(make_flow_run(definition, project), worker, until=lambda run: run.status == "running")
    other = play(
        make_flow_run(definition, make_project_like(project)), worker, until=lambda run: run.status == "running"
    )
    one, two, foreign = run_of(started, "a"), run_of(started, "b"), run_of(other, "a")

    flow_commands.command("user:oscar", started, {"type": "send", "runId": str(one.pk), "message": "now"})
    assert [command.payload for command in one.commands.all()] == [{"message": "now"}]
    paused = flow_run_actions.pause("user:oscar", started)
    flow_commands.command("user:oscar", paused, {"type": "send", "runId": str(two.pk), "message": "later"})
    for body, code in (
        ({"type": "send", "message": "to whom"}, "run_id_required"),
        ({"type": "reply", "runId": str(foreign.pk), "message": "leak"}, "run_not_in_flow"),
    ):
        with refuses(code):
            flow_commands.command("user:oscar", paused, body)
    waiting = FlowRun.objects.get(pk=started.pk)
    assert waiting.snapshot["inbox"] == {str(two.pk): [{"type": "send", "message": "later", "by": "user:oscar"}]}
    assert snapshot_at(waiting) == waiting.snapshot
    refused = [(e.payload["refused"], e.payload["payload"]) for e in events_of(waiting, "command.received")[2:]]
    assert refused == [
        ("run_id_required", {"type": "send", "message": "to whom"}),
        ("run_not_in_flow", {"type": "reply", "runId": str(foreign.pk), "message": "leak"}),
    ]

    flow_run_actions.resume("user:oscar", waiting)
    ended = play(waiting, worker)

    assert ended.status == "completed"
    assert ended.snapshot["inbox"] == {}
    said = {name: _user_turns(run_of(ended, name)) for name in "ab"}
    assert said == {"a": ["now", "continue"], "b": ["later", "continue"]}
    assert not foreign.commands.exists()


def make_project_like(project: Project) -> Project:
    other = make_project()
    make_writer(other)
    return other


def _user_turns(run: AgentRun) -> list[str]:
    rows = run.messages.filter(role="user").order_by("position")
    return [row.content["parts"][0]["content"] for row in rows]


def test_a_stopped_agent_fails_its_node(project: Project, worker: Worker) -> None:
    definition = {"nodes": [agent("a"), agent("b")], "edges": [edge("a", "b")]}
    started = play(make_flow_run(definition, project), worker, until=lambda run: run.status == "running")
    run_actions.stop("user:oscar", run_of(started, "a"))

    failed = play(started, worker)

    assert (failed.status, failed.error_type) == ("failed", "operator")
    assert failed.snapshot["nodeStatus"] == {"a": "failed", "b": "pending"}
    assert snapshot_at(failed) == failed.snapshot


def test_a_missing_agent_fails_its_node(project: Project, worker: Worker) -> None:
    flow_run = make_flow_run({"nodes": [agent("a", policy={"continueOnError": True})]}, project)
    project.agents.all().delete()

    ended = play(flow_run, worker)

    assert ended.status == "completed"
    assert ended.snapshot["outputs"]["a"]["error"]["type"] == "agent_not_found"
    assert snapshot_at(ended) == ended.snapshot


def test_large_values_are_in_the_records_and_not_in_the_events(project: Project, worker: Worker) -> None:
    big = [{"n": n, "text": "x" * 100} for n in range(60)]
    definition = {
        "nodes": [
            {"id": "list", "type": "constant", "value": [big, big], "state": {"set": {"kept": "{{ output }}"}}},
            {"id": "each", "type": "constant", "value": "{{ item }}"},
        ],
        "edges": [edge("list", "each", forEach={"in": "outputs.list"})],
    }
    ended = play(make_flow_run(definition, project), worker)

    assert ended.snapshot["state"]["kept"] == [big, big]
    assert max(len(str(event.payload)) for event in events_of(ended)) < 4000
    assert snapshot_at(ended) == ended.snapshot
    seq = events_of(ended, "node.completed")[0].seq
    assert snapshot_at(ended, seq)["nodeStatus"] == {"list": "done", "each": "pending"}
    assert snapshot_at(ended, seq)["outputs"] == {"list": [big, big]}


def test_the_graph_of_a_flow_run_shows_statuses_counters_and_runs(project: Project, worker: Worker) -> None:
    waiting = play(make_flow_run(LOOP, project), worker)

    graph = graph_of_run(waiting)

    nodes = {node.id: node for node in graph.nodes}
    assert {name: (node.status.value, node.depth, node.visit_count) for name, node in nodes.items()} == {
        "topics": ("done", 0, 1),
        "draft": ("done", 0, 3),
        "review": ("done", 1, 3),
        "gate": ("running", 2, 1),
        "publish": ("pending", 3, 0),
    }
    assert [(visit.iteration, visit.status) for visit in nodes["draft"].visits] == [(n, "completed") for n in (2, 1, 0)]
    assert nodes["gate"].visits[0].run_id == run_of(waiting, "gate").pk
    loop = next(edge for edge in graph.edges if edge.iterations is not None)
    assert (loop.key, loop.iterations, loop.max_iterations, loop.status) == ("review->draft", 2, 5, "skipped")


def test_s_023_an_earlier_state_is_read_without_running_or_changing_anything(
    project: Project, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = play(make_flow_run(LOOP, project), worker)
    monkeypatch.setattr(providers, "get", lambda name: pytest.fail(f"a replay asks for the provider {name}"))
    before = (FlowRun.objects.values().get(), list(Event.objects.order_by("pk").values()))

    states = [snapshot_at(waiting, event.seq) for event in events_of(waiting)]
    again = [snapshot_at(waiting, event.seq) for event in events_of(waiting)]

    assert states == again
    assert states[0]["status"] == "queued"
    assert states[-1] == waiting.snapshot
    counters = [state["loopCounters"]["review->draft"] for state in states]
    assert counters == sorted(counters)
    assert before == (FlowRun.objects.values().get(), list(Event.objects.order_by("pk").values()))


def test_s_002_a_refused_resume_gives_a_reason(project: Project, worker: Worker) -> None:
    waiting = play(make_flow_run(LOOP, project), worker)
    paused = flow_run_actions.pause("user:oscar", waiting)

    with pytest.raises(FlowRunNotFound):
        flow_run_actions.resume("user:oscar", FlowRun(pk=uuid7()))
    FlowRun.objects.filter(pk=paused.pk).update(snapshot={**paused.snapshot, "runId": ""})
    with refuses("snapshot_unusable", match="no runId"):
        flow_run_actions.resume("user:oscar", paused)
    FlowRun.objects.filter(pk=paused.pk).update(snapshot={"runId": str(paused.pk)})
    with refuses("snapshot_unusable", match="has the keys"):
        flow_run_actions.resume("user:oscar", paused)
    FlowRun.objects.filter(pk=paused.pk).update(snapshot=paused.snapshot)
    assert types_of(paused).count("flow.resumed") == 0


def test_two_workers_advance_a_flow_run_once(project: Project, worker: Worker) -> None:
    """The second worker's decision is refused, because the snapshot has a newer version."""
    flow_run = make_flow_run({"nodes": [agent("a")]}, project)
    stale = FlowRun.objects.get(pk=flow_run.pk)
    runner.advance(flow_run.pk)

    with pytest.raises(MoveRefused):
        flow_transitions.keep(stale, Decisions({**stale.snapshot, "status": "running"}), source=Source.WORKER)
    runner.advance(flow_run.pk)

    assert AgentRun.objects.filter(flow_run=flow_run).count() == 1
    assert types_of(flow_run).count("node.started") == 1


def test_s_009_a_session_is_stored_before_its_provider_is_called(project: Project, worker: Worker) -> None:
    flow_run = make_flow_run({"nodes": [agent("a")], "edges": [edge("a", "a", maxIterations=1)]}, project)
    runner.advance(flow_run.pk)

    started = FlowRun.objects.get(pk=flow_run.pk)
    session = run_of(started, "a")
    assert (started.snapshot["agentSessions"], session.status) == ({"a": str(session.pk)}, "queued")
    assert [e.payload["run_id"] for e in events_of(started, "node.started")] == [str(session.pk)]

    ended = play(started, worker)
    # It is kept after its visit, and the next iteration has a separate session.
    assert ended.snapshot["agentSessions"] == {"a": str(session.pk), "a#1": str(run_of(ended, "a#1").pk)}


def test_a_message_to_a_paused_flow_run_is_kept_without_its_secrets(project: Project, worker: Worker) -> None:
    project.masks_model_input = False
    project.save(update_fields=["masks_model_input"])
    started = play(make_flow_run({"nodes": [agent("a")]}, project), worker, until=lambda run: run.status == "running")
    paused = flow_run_actions.pause("user:oscar", started)
    secret = f"ghp_{'a1B2' * 9}"
    body = {"type": "send", "runId": str(run_of(paused, "a").pk), "message": f"use {secret}"}

    waiting = flow_commands.command("user:oscar", paused, body)

    assert secret not in str(FlowRun.objects.get(pk=waiting.pk).snapshot)
    assert secret not in str([event.payload for event in events_of(waiting)])


def test_the_title_of_a_nodes_run_contains_no_part_of_a_secret(project: Project) -> None:
    """A secret cut in the middle would not be recognised."""
    secret = "AKIA" + "Q7RT" * 4
    flow_run = make_flow_run({"nodes": [agent("a", prompt=f"{'x' * 184} {secret}")]}, project)
    runner.advance(flow_run.pk)

    assert "AKIA" not in run_of(flow_run, "a").title


def test_a_value_that_no_database_stores_ends_its_flow_and_blocks_no_other(project: Project, worker: Worker) -> None:
    question = {"id": "ask", "type": "human", "question": '{{ `"\\u0000"` }}'}
    first = make_flow_run({"flow_id": "first", "nodes": [question]}, project)
    second = make_flow_run({"flow_id": "second", "nodes": [{"id": "a", "type": "constant", "value": 1}]}, project)

    assert not runner.advance_due()

    statuses = {run.pk: (run.status, run.error_type) for run in FlowRun.objects.all()}
    assert statuses == {first.pk: ("failed", "binding_failed"), second.pk: ("completed", "")}


@pytest.mark.breaks_invariants("the database keeps a flow run from going on")
def test_flow_runs_refused_by_the_database_block_no_other(
    project: Project, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "TURN", 2)
    constant = {"id": "a", "type": "constant", "value": 1}
    refused = [make_flow_run({"flow_id": f"refused-{number}", "nodes": [constant]}, project) for number in range(2)]
    other = make_flow_run({"flow_id": "other", "nodes": [constant]}, project)
    rows = ", ".join(f"'{flow_run.pk.hex}'" for flow_run in refused)
    with refusing("UPDATE", "flow_runs", f"OLD.id IN ({rows})"):
        looks_again = runner.advance_due()

    # Failed flow runs do not cause further attempts.
    assert not looks_again
    statuses = dict(FlowRun.objects.values_list("pk", "status"))
    assert statuses == {**{flow_run.pk: "queued" for flow_run in refused}, other.pk: "completed"}
