"""`agentops.testing`: flows run on fixtures in this process, tests answer their questions, and failures show why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentops.testing import AgentTester
from runs.errors import InvalidFlow, InvalidFlowInputs
from tests.support.run_checks import failure_of

pytestmark = pytest.mark.django_db(transaction=True)
AGENTS = [
    {"agent_id": name, "provider": "llm", "model": "anthropic:claude-sonnet-4-5", "instructions": "Be brief."}
    | {"tools": ["done"]}
    for name in ("writer", "critic")
]
FLOW: dict[str, Any] = {
    "flow_id": "publish",
    "inputs": {"type": "object", "properties": {"topic": {"type": "string"}}, "required": ["topic"]},
    "nodes": [
        {"id": "draft", "type": "agent", "agent": "writer", "prompt": "Write about {{ inputs.topic }}."},
        {"id": "review", "type": "agent", "agent": "critic", "prompt": "Judge: {{ outputs.draft }}"},
        {"id": "ask", "type": "human", "question": "Publish {{ outputs.draft }}?", "choices": ["yes", "no"]},
        {"id": "send", "type": "tool", "tool": "http_fetch", "arguments": {"url": "https://example.com/"}},
    ],
    "edges": [
        {"from": "draft", "to": "review"},
        {"from": "review", "to": "draft", "when": "outputs.review == 'again'", "maxIterations": 3},
        {"from": "review", "to": "ask"},
        {"from": "ask", "to": "send", "when": "outputs.ask == 'yes'"},
    ],
}
INPUTS = {"topic": "owls"}


def turn(text: str, *events: dict[str, Any]) -> dict[str, Any]:
    return {"input": {"prompt": "any", "options": {}}, "output": {"text": text}, "events": list(events)}


@pytest.fixture
def fixtures(tmp_path: Path) -> Path:
    """Return a folder of recordings. The agent's own tool reports the second draft; both reviews are texts."""
    done = {"type": "agent:tool", "toolName": "done", "toolInput": {"result": "Owls fly."}, "toolOutput": "Owls fly."}
    folder = tmp_path / "publish"
    folder.mkdir()
    (folder / "draft.json").write_text(json.dumps({"calls": [turn("Owls."), turn("Here it is.", done)]}))
    (folder / "review.json").write_text(json.dumps({"calls": [turn("again"), turn("good")]}))
    return folder


def test_a_flow_runs_to_its_end(tester: AgentTester, fixtures: Path) -> None:
    outputs = {"send": {"status": 200}}

    result = tester.run_flow_twice(FLOW, AGENTS, fixtures, INPUTS, answers={"ask": ["yes"]}, tool_outputs=outputs)

    result.assert_completed()
    result.assert_outputs({"draft": "Owls fly.", "ask": "yes", "send": {"status": 200}})
    result.assert_nodes({"draft": "done", "send": "done"})
    assert list(result.runs) == ["draft", "review", "draft#1", "review#1", "ask"]
    assert result.snapshot["loopCounters"] == {"review->draft": 1}
    assert result.run("review#1").messages[1].text == "Judge: Owls fly."
    result.run("draft#1").assert_tool_calls(("done", {"result": "Owls fly."}))
    assert (result.questions, result.events[-1]) == ({}, "run.completed")
    assert "no run of 'publish'; there are draft, review, draft#1, review#1, ask\n" in failure_of(result.run, "publish")


def test_test_answers_a_question_of_the_flow(tester: AgentTester, fixtures: Path) -> None:
    waiting = tester.run_flow(FLOW, AGENTS, fixtures, INPUTS)

    assert (waiting.status, waiting.questions) == ("waiting", {"ask": "Publish Owls fly.?"})
    assert failure_of(waiting.assert_completed) == (
        "the flow run is waiting (input), not completed\n\n"
        "draft: done\nreview: done\nask: running\n  run of ask: waiting (input): Publish Owls fly.?\nsend: pending"
    )
    refused = failure_of(tester.answer, waiting, "review", "yes")
    assert refused == "node 'review' asks no question; open questions: ask"
    result = tester.answer(waiting, "ask", "no")
    result.assert_completed()
    assert "-send: done\n+send: skipped" in failure_of(result.assert_nodes, {"send": "done"})
    assert '- "ask": "yes"\n+ "ask": "no"' in failure_of(result.assert_outputs, {"ask": "yes"})
    assert '+  "ask": "done",' in failure_of(waiting.assert_same, result)
    assert "has no price" in failure_of(result.assert_cost, at_most=1)


def test_approvals_and_missing_calls(tester: AgentTester, fixtures: Path) -> None:
    rules = {"approvals": [{"tools": "done", "action": "ask", "reason": "Sure?"}]}
    agents = [{**AGENTS[0], "policies": rules}, AGENTS[1]]
    (fixtures / "review.json").write_text(json.dumps({"calls": [turn("again")]}))

    waiting = tester.run_flow(FLOW, agents, fixtures, INPUTS)
    assert "run of draft#1: waiting (approval)" in failure_of(waiting.assert_completed)
    stuck = tester.approve(waiting)

    failed = failure_of(stuck.assert_completed)
    assert "\nreview: running\n  run of review#1: paused (fixture_exhausted): No fixture for review call 1\n" in failed
    nobody = failure_of(tester.deny, stuck)
    assert nobody == "the flow run does not wait for one approval; nodes that wait for one: none"


def test_invalid_input_raises_an_error_with_its_reason(tester: AgentTester, fixtures: Path) -> None:
    with pytest.raises(InvalidFlowInputs, match="'topic' is a required property"):
        tester.run_flow(FLOW, AGENTS, fixtures)
    with pytest.raises(InvalidFlow, match="critic"):
        tester.run_flow(FLOW, AGENTS[:1], fixtures, INPUTS)
    with pytest.raises(ValueError, match="node 'draft' of the flow asks no question; nodes that do: ask"):
        tester.run_flow(FLOW, AGENTS, fixtures, INPUTS, answers={"draft": "yes"})
    with pytest.raises(ValueError, match="node 'ask' of the flow calls no tool; nodes that do: send"):
        tester.run_flow(FLOW, AGENTS, fixtures, INPUTS, tool_outputs={"ask": 1})
