"""`agentops.testing`: agents run on fixtures in this process, and failed assertions show the differences."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agentops.testing import AgentTester, RunResult, UnusableFixture
from runs.errors import InvalidAgent
from runs.fixtures.fixture_files import SHIPPED
from tests.support.recordings import recording
from tests.support.run_checks import failure_of

pytestmark = pytest.mark.django_db(transaction=True)
AGENT: dict[str, Any] = {
    "agent_id": "verifier-agent",
    "provider": "llm",
    "model": "anthropic:claude-sonnet-4-5",
    "instructions": "Verify.",
    "tools": ["done"],
}
TRANSCRIPT = """
    system: Verify.
    user: Check the list.
    assistant: Two tasks lack an owner.
    call: Read {"path": "tasks.md"}
    completed: - [ ] a
    - [ ] b

    user: continue
    assistant: All tasks have an owner now.
"""


@pytest.fixture
def plain() -> Path:
    return recording("fixtures-format/workflow-abc")


def test_tester_plays_files_and_folders_and_reports_results(tester: AgentTester, plain: Path, tmp_path: Path) -> None:
    (tmp_path / "agent.json").write_text(json.dumps(AGENT))

    result = tester.run_twice(tmp_path / "agent.json", plain, "Check the list.")

    result.assert_completed()
    result.assert_transcript(TRANSCRIPT)
    result.assert_tool_calls(("Read", {"path": "tasks.md"}))
    result.assert_tool_calls("Read")
    result.assert_said("lack an owner")
    assert (result.status, result.steps, result.input_tokens, result.output_tokens) == ("completed", 2, 230, 32)
    assert [message.role for message in result.messages].count("user") == 2
    assert result.events[-1] == "run.completed"
    assert tester.run(AGENT, plain / "verifier-agent.json").messages[1].text.startswith("Verify the analysis")


def test_failures_show_the_difference(tester: AgentTester, plain: Path) -> None:
    result = tester.run(AGENT, plain, "Check the list.", max_steps=1)
    whole = tester.run(AGENT, plain, "Check the list.")

    failed = failure_of(result.assert_completed)
    assert failed.startswith("the run is paused (max_steps), not completed\n\nsystem: Verify.\nuser: Check the list.")
    assert "\n-call: Write {}\n" in failure_of(result.assert_transcript, "call: Write {}")
    lines = failure_of(result.assert_tool_calls, ("Read", {"path": "x"}), "Write").splitlines()
    assert lines[3:] == ["@@ -1,2 +1 @@", '-Read {"path": "x"}', "-Write", '+Read {"path": "tasks.md"}']
    assert failure_of(result.assert_said, "owner now").startswith("no answer contains 'owner now'")
    assert "\n+assistant: All tasks have an owner now." in failure_of(result.assert_same, whole)
    assert "has no price" in failure_of(result.assert_cost, at_most=1)
    assert "completed, not completed (budget)" in failure_of(whole.assert_status, "completed", "budget")


def test_the_cost_of_the_recorded_model(tester: AgentTester) -> None:
    result = tester.run(AGENT, SHIPPED / "claude-code-5c.json")

    assert isinstance(result, RunResult)
    assert result.cost_usd is not None
    result.assert_cost(at_most=result.cost_usd)
    assert "more than 0.0001" in failure_of(result.assert_cost, at_most=Decimal("0.0001"))


def test_result_is_the_argument_of_done(tester: AgentTester, tmp_path: Path) -> None:
    """As on a site: the tool that ends a run is called, not replayed."""
    call = {"type": "agent:tool", "toolName": "done", "toolInput": {"result": "42"}, "toolOutput": "42"}
    calls = [{"input": {"prompt": "Go."}, "output": {"text": "I am done."}, "events": [call]}]
    (tmp_path / "ends.json").write_text(json.dumps({"calls": calls}))
    agent = {**AGENT, "policies": {"on_idle": {"action": "fail"}}}

    recorded = tester.run(agent, tmp_path / "ends.json")

    assert (recorded.status, recorded.result) == ("completed", "42")
    recorded.assert_same(tester.run(agent, tmp_path / "ends.json", real_tools=True))


def test_rules_and_own_tools_apply(tester: AgentTester, tmp_path: Path) -> None:
    call = {"type": "agent:tool", "toolName": "done", "toolInput": {"result": "42"}, "toolOutput": "recorded"}
    calls = [{"input": {"prompt": "Go."}, "output": {"text": "Done."}, "events": [call]}]
    (tmp_path / "asks.json").write_text(json.dumps({"calls": calls}))
    rules = {"approvals": [{"tools": "done", "action": "ask", "reason": "Sure?"}]}
    agent = {**AGENT, "policies": rules}

    waiting = tester.run(agent, tmp_path / "asks.json", real_tools=True)
    waiting.assert_status("waiting", "approval")
    done = tester.approve(waiting)
    denied = tester.deny(tester.run(agent, tmp_path / "asks.json"), "Not yet.")

    assert (done.status, done.result) == ("completed", "42")
    assert [call.status for call in denied.tool_calls] == ["denied"]
    assert "Not yet." in denied.transcript
    assert failure_of(tester.approve, done) == "the run waits for no approval: it is completed"


def test_unusable_files_are_named(tester: AgentTester, plain: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text('{"calls": [{"input": {"options": {}}}]}')

    with pytest.raises(UnusableFixture, match=r"broken\.json: \$\.calls\[0\]\.output: Field required"):
        tester.run(AGENT, tmp_path / "broken.json")
    with pytest.raises(UnusableFixture, match=r"missing\.json: No such file"):
        tester.run(AGENT, tmp_path / "missing.json")
    with pytest.raises(InvalidAgent, match="tools"):
        tester.run({**AGENT, "tools": ["nonsense"]}, plain, real_tools=True)
    missing = tester.run({**AGENT, "agent_id": "stranger"}, plain, "Go.")
    assert (missing.status, missing.error) == ("paused", "No fixture for stranger call 0")
