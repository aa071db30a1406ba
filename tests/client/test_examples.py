"""The examples in docs/examples/client, run unchanged with the real packages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentops.accounts.access import SYSTEM
from agentops.client.delivery import shared_delivery
from runs.actions import run_actions
from runs.models import AgentRun, Approval
from runs.upkeep import invariants, replay_check
from tests.support.clients import Site
from tests.support.factories import make_agent, make_awaiting_approval, make_run
from tests.support.machine import ROOT
from tests.support.timelines import finish
from timeline.models import Event

EXAMPLES = ROOT / "docs/examples/client"
GUIDE = ROOT / "docs/guides/client.md"
#: The output of each example, the roles of its messages, its tool calls, and its tokens.
EXPECTED: dict[str, tuple[Any, ...]] = {
    "plain_loop": (
        "6 words.",
        ["user", "assistant", "tool_result", "assistant"],
        [("count_words", "completed", {"text": "How many words has this sentence?"}, 6)],
        (55, 12),
    ),
    "pydantic_ai_agent": (
        "It is sunny in Zürich.",
        ["user", "assistant", "tool_result", "assistant"],
        [("get_weather", "completed", {"city": "a"}, "sunny in a")],
        None,
    ),
    "openai_agents": (
        "It is on its way.",
        ["user", "assistant", "tool_result", "assistant", "tool_result", "assistant"],
        [
            ("transfer_to_clerk", "completed", {}, "clerk goes on"),
            ("look_up", "completed", {"order": "17"}, "order 17 has been sent"),
        ],
        (150, 30),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_example_records_a_run(site: Site, name: str) -> None:
    env = {"PATH": os.environ["PATH"], "SITE_URL": site.url, "SITE_KEY": site.key("ingest"), "PYTHONUTF8": "1"}
    process = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")], env=env, capture_output=True, text=True, check=False, timeout=90
    )

    says, roles, calls, tokens = EXPECTED[name]
    assert (process.returncode, process.stdout.strip(), process.stderr) == (0, says, "")
    run = AgentRun.objects.get()
    assert (run.status, run.result or run.summary) == ("completed", says)
    assert list(run.messages.order_by("position").values_list("role", flat=True)) == roles
    rows = run.tool_calls.order_by("step_number")
    assert [(row.tool_name, row.status, row.input, row.output) for row in rows] == calls
    assert tokens is None or (run.input_tokens, run.output_tokens) == tokens
    assert run.input_tokens > 0
    if name == "openai_agents":
        handoff = Event.objects.get(log=run.pk, type="handoff").payload
        assert (handoff["from_agent"], handoff["to_agent"]) == ("desk", "clerk")
    assert [one for one in invariants.check(run.pk) if not one.warning_only] == []
    assert replay_check.differences(run.pk) == []


def test_guide_examples_work(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Run the guide's Python examples in order, on a site with the agent that they name."""
    agent = make_agent(site.project, slug="demo-replay")
    finish(make_run(agent, labels=["ci"]))
    paused = make_run(agent, labels=["ci"])
    run_actions.pause(SYSTEM, paused)
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    follow, control, approve, record = blocks
    names: dict[str, Any] = {"url": site.url, "key": site.key("read", "write", "ingest")}
    # There is no worker: the test stops the started run as soon as the example follows it.
    names["stop"] = lambda run: finish(AgentRun.objects.get(pk=run.id))

    exec(follow.replace("    for event in", "    stop(run)\n    for event in"), names)
    exec(control, names)
    make_awaiting_approval(site.project)
    exec(approve, names)
    exec(record, names)
    shared_delivery(names["url"], names["key"]).close()

    printed = capsys.readouterr().out
    assert "run.stopped" in printed
    assert f"{paused.pk} operator" in printed
    assert Approval.objects.get().state == Approval.State.APPROVED
    paused.refresh_from_db()
    assert (paused.status, paused.resumed_as.status) == ("resumed", "stopped")
    assert AgentRun.objects.get(source="external").summary == "A test failed."


def test_every_example_is_run() -> None:
    assert {path.stem for path in Path(EXAMPLES).glob("*.py")} == EXPECTED.keys()
