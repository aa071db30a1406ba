"""Test the demo flow of a new site: it completes, continues after a pause, and can be replayed."""

from __future__ import annotations

from collections import Counter

import pytest
from django.db.models import F
from django.test import Client
from pytest_django import Settings

from agentops.accounts.models import Role
from runs import demo
from runs.actions import flow_run_actions, run_actions
from runs.flows import runner
from runs.models import Agent, AgentRun, AgentRunMessage, FlowRun
from runs.queries.flow_states import snapshot_at
from runs.statuses import RunStatus
from runs.upkeep import invariants
from runs.upkeep.replay_check import flow_differences
from runs.worker.worker import Worker
from tests.support.factories import make_person
from tests.support.flows import events_of, play, run_of, types_of
from timeline import log

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_hints")]
#: Number of steps in the recordings of its agents.
STEPS = {"change": 5, "plan": 24, "review": 219}
#: Two of its nodes with their labels in the graph.
SEEN = ("Update the compiler, flow-change", "Carry out a plan, flow-plan")
MESSAGE = "Go on, and be careful."


@pytest.fixture
def flow_run(transactional_db: None) -> FlowRun:
    """Create the demo's flow run, with agents that play without delays, and stop the other runs of the demo."""
    demo.seed()
    Agent.objects.update(settings={})
    for run in AgentRun.objects.filter(flow_run=None):
        run_actions.stop("user:oscar", run)
    return FlowRun.objects.get()


def steps_of(flow_run: FlowRun, node: str) -> int:
    """Return the number of steps of a node's conversation, over all its runs."""
    return run_of(flow_run, node).step_count


def answered(flow_run: FlowRun, answer: str) -> None:
    run_actions.reply("user:oscar", run_of(flow_run, "approve"), answer)


def assert_sound(flow_run: FlowRun) -> None:
    assert not invariants.check()
    assert flow_differences(flow_run.pk) == []
    assert snapshot_at(flow_run) == flow_run.snapshot


def test_the_flow_completes(flow_run: FlowRun, worker: Worker) -> None:
    waiting = play(flow_run, worker)
    assert (waiting.status, waiting.snapshot["nodeStatus"]["review"]) == ("waiting", "pending")
    question = AgentRunMessage.objects.filter(run=run_of(waiting, "approve"), role="user").get()
    assert "Both changes are made. The first one says: " in str(question.content)
    answered(waiting, "review")
    ended = play(waiting, worker)

    assert ended.status == "completed"
    assert set(ended.snapshot["nodeStatus"].values()) == {"done"}
    assert {node: steps_of(ended, node) for node in STEPS} == STEPS
    assert_sound(ended)


def test_the_flow_ends_after_the_question_without_the_review(flow_run: FlowRun, worker: Worker) -> None:
    waiting = play(flow_run, worker)
    answered(waiting, "leave it")
    ended = play(waiting, worker)

    assert (ended.status, ended.snapshot["nodeStatus"]["review"]) == ("completed", "skipped")
    assert not AgentRun.objects.filter(agent__slug="flow-review").exists()


def in_the_middle(flow_run: FlowRun) -> bool:
    """Return whether both agents are active, each after its first and before its last step."""
    nodes = flow_run.visits.filter(kind="agent")
    return nodes.count() == 2 and all(1 <= steps_of(flow_run, node.node) < STEPS[node.node] - 1 for node in nodes)


def test_a_flow_paused_and_resumed_with_a_message_repeats_and_loses_nothing(
    flow_run: FlowRun, worker: Worker, settings: Settings
) -> None:
    """Both agents are in the middle of their recordings. The resumed runs continue at the next entry."""
    # One step per slice, so that neither agent finishes before the other starts.
    settings.AGENTOPS_SLICE_S = 0
    running = play(flow_run, worker, until=in_the_middle)
    assert in_the_middle(running)
    flow_run_actions.pause("user:oscar", running)
    paused = play(running, worker)
    cut = {node: run_of(paused, node) for node in ("change", "plan")}
    assert paused.status == "paused"
    assert [run.status for run in cut.values()] == ["paused", "paused"]
    assert all(run.step_count < STEPS[node] for node, run in cut.items())

    flow_run_actions.resume("user:oscar", paused, message=MESSAGE)
    waiting = play(FlowRun.objects.get(pk=flow_run.pk), worker)
    for node, run in cut.items():
        resumed = run_of(waiting, node)
        assert (resumed.resumed_from_id, resumed.step_base) == (run.pk, run.step_count)
        said = AgentRunMessage.objects.filter(run=resumed, role="user").order_by("position").first()
        assert said is not None
        assert MESSAGE in str(said.content)
    answered(waiting, "leave it")
    ended = play(waiting, worker)

    assert ended.status == "completed"
    assert {node: steps_of(ended, node) for node in cut} == {node: STEPS[node] for node in cut}
    # Each entry of a recording is played once.
    answers = AgentRunMessage.objects.filter(run__flow_run=flow_run, role="assistant", rolled_back_at=None)
    counts = Counter(answers.filter(run__agent__isnull=False).values_list(F("run__agent__slug"), flat=True))
    assert counts == {"flow-change": STEPS["change"], "flow-plan": STEPS["plan"]}
    types = types_of(ended)
    assert (types.count("flow.started"), types.count("flow.resumed"), types.count("flow.completed")) == (1, 1, 1)
    started = Counter(event.node_id for event in events_of(ended, "node.started") if not event.payload.get("resumed"))
    assert started == {"change": 1, "plan": 1, "approve": 1}
    assert AgentRun.objects.filter(flow_run=flow_run, status=RunStatus.RESUMED).count() == 2
    assert_sound(ended)


def test_the_replay_page_plays_the_first_to_the_last_event(flow_run: FlowRun, worker: Worker, client: Client) -> None:
    waiting = play(flow_run, worker)
    answered(waiting, "leave it")
    ended = play(waiting, worker)
    client.force_login(make_person(ended.project, Role.VIEWER))
    seen = []
    for event in log.read(ended.pk, limit=1000):
        frame = client.get(f"/flow-runs/{ended.pk}/replay/frame?seq={event.seq}").content.decode()
        seen.append(sum(f"Agent {agent}, done" in frame for agent in SEEN))

    assert (seen[0], seen[-1]) == (0, 2)
    assert seen == sorted(seen)


def test_the_graph_of_an_active_flow_updates(flow_run: FlowRun, worker: Worker, client: Client) -> None:
    """Test the requests that an open page repeats; tests/browser/processes tests the page."""
    client.force_login(make_person(flow_run.project, Role.VIEWER))
    url = f"/flow-runs/{flow_run.pk}/changes"
    before = client.get(url)
    assert "Agent Update the compiler, flow-change, pending" in before.content.decode()
    runner.advance(flow_run.pk)
    assert "Agent Update the compiler, flow-change, running" in client.get(url).content.decode()
    answered(play(flow_run, worker), "leave it")
    play(flow_run, worker)
    after = client.get(url)
    assert "Agent Review the branch, flow-review, skipped" in after.content.decode()
    assert (before.status_code, after.status_code) == (200, 286)
