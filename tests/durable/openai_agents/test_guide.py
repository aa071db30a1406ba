"""The examples of docs/guides/openai-agents.md, on a running site."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import Agent

from agentops.client import Client
from agentops.durable import DurableFunction
from agentops.durable.openai_agents import durable_function
from runs.models import AgentRun
from runs.statuses import RunStatus
from tests.support.durable import DurableSite
from tests.support.machine import ROOT

pytestmark = pytest.mark.django_db
GUIDE = ROOT / "docs/guides/openai-agents.md"
#: Each agent of the guide, its prompt, whether a person approves something, and the result of its run.
EXPECTED = {
    "refund-desk": ("Where is order 17?", True, "500 cents refunded for order 17"),
    "bank": ("Go.", False, "receipt archived"),
    "front": ("Go.", False, "The tide is high at noon."),
    "reports": ("Go.", True, "published: The tide is high at noon."),
    "chat": ("t1: Hello", False, "Hello"),
}


def blocks() -> list[str]:
    """Return the Python examples of the guide."""
    return re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture
def person(durable_site: DurableSite) -> Iterator[Client]:
    with Client(durable_site.site.url, durable_site.site.key("read", "write")) as client:
        yield client


def test_examples_of_the_guide(durable_site: DurableSite, person: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTOPS_URL", durable_site.site.url)
    monkeypatch.setenv("AGENTOPS_API_KEY", durable_site.site.key("read", "write"))
    names: dict[str, Any] = {"__name__": "guide"}
    for block in blocks():
        exec(block, names)
    functions = [value for value in names.values() if isinstance(value, DurableFunction)]
    agents = {name: durable_function(names[name]) for name in ("desk", "checker", "tutor")}
    served = [*functions, *agents.values()]

    with durable_site.serving(*served):
        runs = {name: durable_site.start(name, prompt) for name, (prompt, _, _) in EXPECTED.items()}
        tripped = durable_site.start("tutor", "A sum, please.")
        for name, (_, is_approved, _) in EXPECTED.items():
            if is_approved:
                approve(durable_site, person, runs[name])
        results = {name: durable_site.completes(run).result for name, run in runs.items()}
        durable_site.reaches(tripped, RunStatus.PAUSED, reason="error")

    assert results == {name: result for name, (_, _, result) in EXPECTED.items()}
    assert "no_sums" in tripped.error_message
    assert AgentRun.objects.get(parent_run=runs["front"]).agent_config["agent_id"] == "fact-checker"
    assert isinstance(names["desk"], Agent)


def approve(site: DurableSite, person: Client, run: AgentRun) -> None:
    site.reaches(run, RunStatus.WAITING, reason="approval")
    [approval] = person.approvals(run_id=str(run.pk), kind="approval", state="pending")
    person.approve(run.pk, approval.call_id)


def test_the_first_example_as_a_program(durable_site: DurableSite, person: Client, tmp_path: Path) -> None:
    """It waits for the approval without a process: the first one ends by SIGTERM, a second one continues."""
    program = tmp_path / "refund_desk.py"
    program.write_text(blocks()[0], encoding="utf-8")
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "AGENTOPS_URL": durable_site.site.url,
        "AGENTOPS_API_KEY": durable_site.site.key("work"),
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
    }

    def process() -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, str(program)], env=env, stderr=subprocess.PIPE, text=True)

    def end(started: subprocess.Popen[str]) -> None:
        started.send_signal(signal.SIGTERM)
        _, errors = started.communicate(timeout=40)
        assert (started.returncode, errors) == (0, "")

    first = process()
    run = durable_site.start("refund-desk", "Where is order 17?")
    durable_site.reaches(run, RunStatus.WAITING, reason="approval")
    end(first)
    approve(durable_site, person, run)
    second = process()
    durable_site.completes(run)
    end(second)

    assert run.result == "500 cents refunded for order 17"
