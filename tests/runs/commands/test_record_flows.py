"""`agentops record_fixtures` for flows, and flows that play the recorded fixtures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from agentops.accounts.models import Project
from runs.actions import agent_definitions, flow_definitions, flow_run_actions, run_actions
from runs.fixtures import fixture_files
from runs.fixtures.fixture_files import load
from runs.models import FlowRun
from runs.queries.flow_states import snapshot_at
from runs.worker.worker import Worker
from tests.support.command_line import Command
from tests.support.factories import make_project
from tests.support.flows import play, run_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_hints")]


@pytest.fixture
def project(transactional_db: None, settings: Settings, tmp_path: Path) -> Project:
    settings.AGENTOPS_FIXTURES = [str(tmp_path)]
    fixture_files.load_named.cache_clear()
    return make_project("alpha")


FLOW: dict[str, Any] = {
    "flow_id": "report",
    "inputs": {"type": "object", "properties": {"parts": {"type": "array"}}},
    "nodes": [
        {"id": "draft", "type": "agent", "agent": "writer", "prompt": "Draft"},
        {"id": "ask", "type": "human", "question": "Use {{ outputs.draft }}?"},
        {
            "id": "part",
            "type": "agent",
            "agent": "worker",
            "prompt": "Write {{ name }}",
            "when": "name != 'b'",
            "state": {"set": {"parts": "{{ output.iterations[].output }}"}},
        },
    ],
    "edges": [
        {"from": "draft", "to": "ask"},
        {"from": "ask", "to": "draft", "when": "outputs.ask == 'no'", "maxIterations": 3},
        {"from": "ask", "to": "part", "forEach": {"in": "inputs.parts", "as": "name"}},
    ],
}


def recorded_call(text: str, **tools: str) -> dict[str, Any]:
    """Return a model call that answers `text` and calls these tools, with their results."""
    parts = [
        {"part_kind": "text", "content": text},
        *({"part_kind": "tool-call", "tool_name": name, "args": {}, "tool_call_id": f"id-{name}"} for name in tools),
    ]
    return {
        "input": {},
        "output": {"text": text, "usage": {}, "durationMs": 1, "message": {"kind": "response", "parts": parts}},
        "events": [],
        "tools": {f"id-{name}": {"output": output} for name, output in tools.items()},
    }


def answer(flow_run: FlowRun, worker: Worker, text: str) -> FlowRun:
    visit = flow_run.visits.filter(node="ask").latest("iteration")
    run_actions.reply("user:oscar", run_of(flow_run, visit.key), text)
    return play(flow_run, worker)


def without_ids(snapshot: dict[str, Any]) -> dict[str, Any]:
    return {**snapshot, "runId": "", "agentSessions": sorted(snapshot["agentSessions"])}


@pytest.mark.slow
def test_a_recorded_flow_run_replays_to_the_same_snapshot(
    project: Project, worker: Worker, command: Command, refused: Any, tmp_path: Path
) -> None:
    """Loops and items have different numbers of calls, one visit ends with a tool, and one item is skipped."""
    calls = [recorded_call("I look.", look="7"), recorded_call("Draft 7"), recorded_call("Draft 8", save="saved")]
    (tmp_path / "words.json").write_text(json.dumps({"calls": [*calls, {"end": True}]}))
    calls = [recorded_call("I read.", read="x"), recorded_call("Part one"), recorded_call("I.", read="y")]
    (tmp_path / "parts.json").write_text(json.dumps({"calls": [*calls, recorded_call("Part two")]}))
    agents = {"writer": "words", "worker": "parts"}
    for name, model in agents.items():
        definition = {"agent_id": name, "provider": "fixture", "model": model, "tools": ["recorded"]}
        agent_definitions.apply(project, definition, by="test")
    flow, _ = flow_definitions.apply(project, FLOW, by="test")
    words = ("record_fixtures", "--output", str(tmp_path / "new"))
    inputs = {"parts": ["a", "b", "c"]}

    code, line = refused(*words, "--flow", "report", "--project", "alpha", "--inputs", json.dumps(inputs))
    flow_run = FlowRun.objects.get()
    advice = f"when it has ended: agentops record_fixtures --flow-run {flow_run.pk}"
    assert (code, line) == (1, f"the flow run is waiting (for an answer); {advice}")
    answer(flow_run, worker, "no")
    first = answer(flow_run, worker, "yes")
    assert first.status == "completed", first.error_message
    recorded = json.loads(command(*words, "--flow-run", str(first.pk), "--json"))
    assert refused(*words, "--flow-run", str(first.pk))[0] == 5

    folder = tmp_path / "new" / "report"
    assert [(Path(row["file"]).name, row["calls"]) for row in recorded["files"]] == [
        ("draft.json", 3),
        ("part.json", 4),
    ]
    assert recorded["answers"] == {"ask": ["no", "yes"]}
    assert "node ask is not recorded" in recorded["notes"][0]
    marks = [call.visit.model_dump() for call in load(folder / "part.json").answers if call.visit is not None]
    assert [(mark["iteration"], mark["item"]) for mark in marks] == [(0, 0), (0, 0), (0, 2), (0, 2)]
    assert command("verify_fixtures", str(folder)).count("exact") == 2

    folder.rename(tmp_path / "report")
    for name in agents:
        definition = {"agent_id": name, "provider": "fixture", "model": "report", "tools": ["recorded"]}
        agent_definitions.apply(project, definition, by="test")
    again = play(flow_run_actions.create("test", flow, inputs), worker)
    answer(again, worker, "no")
    second = answer(again, worker, "yes")
    assert without_ids(second.snapshot) == without_ids(first.snapshot)
    assert second.snapshot["state"] == {"parts": ["Part one", "Part two"]}
    assert snapshot_at(second) == second.snapshot
    longer = play(flow_run_actions.create("test", flow, inputs), worker)
    for text in ("no", "no"):
        answer(longer, worker, text)
    assert run_of(longer, "draft#2").error_message == "No fixture for draft call 3"


def test_a_new_flow_run_is_driven_and_recorded(
    project: Project, command: Command, refused: Any, tmp_path: Path, settings: Settings
) -> None:
    (tmp_path / "words.json").write_text(json.dumps({"calls": [recorded_call("Fine, sk-ant-api03-" + "a1B2" * 24)]}))
    definition = {"agent_id": "writer", "provider": "fixture", "model": "words", "tools": ["recorded"]}
    agent_definitions.apply(project, definition, by="test")
    nodes = [
        {"id": "_a", "type": "agent", "agent": "writer", "prompt": "Go"},
        {"id": "ask", "type": "human", "question": "Well?", "choices": ["yes", "no"]},
    ]
    loop = {"from": "ask", "to": "ask", "when": "outputs.ask == 'no'", "maxIterations": 2}
    edges = [{"from": "_a", "to": "ask"}, loop]
    flow_definitions.apply(project, {"flow_id": "short", "nodes": nodes, "edges": edges}, by="test")
    words = ("record_fixtures", "--flow", "short", "--project", "alpha", "--output", str(tmp_path / "new"))

    problem = "--answers: node '_a' of the flow asks no question; nodes that do: ask"
    assert refused(*words, "--answers", '{"_a": "yes"}') == (7, problem)
    assert refused(*words, "--answers", '{"ask": 1}')[0] == 7
    printed = command(*words, "--answers", '{"ask": ["no", "yes"]}')

    file = tmp_path / "new/short/_a.json"
    assert printed == f"{file}\t1\t0\tFalse\n"
    assert "[REDACTED:" in load(file).answers[0].output.text
    settings.AGENTOPS_FIXTURES = [str(tmp_path / "new")]
    assert fixture_files.find_named("short", "_a") == file
    assert refused(*words)[0] == 5
    assert FlowRun.objects.count() == 1
    assert refused(*words[:3], "--output", "x") == (2, "--flow needs --project")
    assert refused(*words, "--prompt", "x")[0] == 2
    assert refused(*words, "--inputs", "[1", "--force")[0] == 7
    assert refused("record_fixtures", "--flow-run", "0123456789", "--output", "x")[0] == 3
