"""Processes and programs that are killed in a tool, in a model call and in a wait, and how the session continues."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta

import pytest

from agentops.base.database_clock import Now
from agentops.client import Client
from agentops.durable.claude import durable_function
from runs.models import AgentRun, AgentRunToolCall
from runs.statuses import RunStatus
from tests.support.claude_model import ClaudeModel, call
from tests.support.claude_rig import ClaudeRig
from tests.support.durable import DurableSite, steps_of
from tests.support.machine import ROOT
from tests.support.timing import eventually

PROGRAM = ROOT / "tests/support/programs/claude_agent.py"


class Processes:
    """Processes that execute the agent, one at a time."""

    def __init__(self, site: DurableSite, rig: ClaudeRig, model: ClaudeModel) -> None:
        self.site = site
        self.directory = rig.home / "agent"
        self.directory.mkdir()
        options = rig.options(model)
        self.env = {
            **options.env,
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "CLAUDE_PROGRAM": str(options.cli_path),
            "AGENTOPS_URL": site.site.url,
            "AGENTOPS_API_KEY": site.site.key("work"),
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen([sys.executable, str(PROGRAM), str(self.directory)], env=self.env)

    def kill(self, run: AgentRun) -> None:
        """Kill the process, and end the lease of its run."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(20)
        AgentRun.objects.filter(pk=run.pk).update(lease_expires_at=Now() - timedelta(seconds=1))

    @property
    def ledger(self) -> list[str]:
        path = self.directory / "ledger"
        return path.read_text().split() if path.exists() else []


@pytest.fixture
def person(durable_site: DurableSite) -> Iterator[Client]:
    with Client(durable_site.site.url, durable_site.site.key("read", "write")) as client:
        yield client


def test_a_killed_process_repeats_no_stored_step(durable_site: DurableSite, rig: ClaudeRig, person: Client) -> None:
    model = rig.model(
        [call("toolu_1", "mcp__shop__price", item="tea")],
        [call("toolu_2", "mcp__shop__charge", cents=500)],
        "Done.",
        held=2,
    )
    processes = Processes(durable_site, rig, model)
    try:
        processes.start()
        run = durable_site.start("shop", "Sell tea.")
        eventually(lambda: "charge" in processes.ledger, why="the process is in its tool")
        processes.kill(run)
        processes.start()
        durable_site.reaches(run, RunStatus.WAITING, reason="unknown_tool")
        unknown = AgentRunToolCall.objects.get(run=run, status="unknown")
        person.resolve_call(run.pk, unknown.pk, "done", "charged by hand")
        eventually(lambda: len(model.requests) == 3, why="the process is in a model call")
        processes.kill(run)
        model.release.set()
        processes.start()
        durable_site.completes(run)
    finally:
        if processes.process is not None:
            processes.process.kill()
            processes.process.wait(20)

    assert (run.result, processes.ledger) == ("Done.", ["price", "charge"])
    assert len(model.requests) == 4
    assert model.conversation == [
        ("user", ["Sell tea."]),
        ("assistant", ['mcp__shop__price({"item": "tea"})']),
        ("user", ["=500"]),
        ("assistant", ['mcp__shop__charge({"cents": 500})']),
        ("user", ["=charged by hand", "Continue from where you left off."]),
    ]
    assert {state for _, _, state in steps_of(run)} == {"done"}
    assert (run.input_tokens, run.output_tokens) == (54, 21)


#: A command that notes its execution, and kills the program that executes it.
DEADLY = call("toolu_1", "Bash", command="echo executed >> ledger; kill -9 $PPID", description="Kill")


def test_a_person_decides_about_a_call_in_which_the_program_died(
    durable_site: DurableSite, rig: ClaudeRig, person: Client
) -> None:
    options = rig.options(rig.model([DEADLY], "Done."), allowed_tools=["Bash"])
    ledger = rig.home / "work" / "ledger"

    with durable_site.serving(durable_function(options, name="shell")):
        run = durable_site.reaches(durable_site.start("shell"), RunStatus.PAUSED)
        assert "program_ended" in run.error_message
        person.resume(run.pk)
        run.refresh_from_db()
        successor = durable_site.reaches(run.resumed_as, RunStatus.WAITING, reason="unknown_tool")
        assert ledger.read_text() == "executed\n"
        unknown = AgentRunToolCall.objects.get(run=successor, status="unknown")
        person.resolve_call(successor.pk, unknown.pk, "done", "killed")
        durable_site.completes(successor)

    assert (successor.result, ledger.read_text()) == ("Done.", "executed\n")
    assert rig.models[0].conversation[2][1][0] == "=killed"


def test_a_repeatable_call_in_which_the_program_died_is_repeated(
    durable_site: DurableSite, rig: ClaudeRig, person: Client
) -> None:
    options = rig.options(rig.model([DEADLY], "Done."), allowed_tools=["Bash"])

    with durable_site.serving(durable_function(options, name="shell", effects={"Bash": "idempotent"})):
        run = durable_site.reaches(durable_site.start("shell"), RunStatus.PAUSED)
        person.resume(run.pk)
        run.refresh_from_db()
        successor = durable_site.reaches(run.resumed_as, RunStatus.PAUSED)

    assert "program_ended" in successor.error_message
    assert (rig.home / "work" / "ledger").read_text() == "executed\nexecuted\n"
