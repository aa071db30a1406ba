"""Kill a worker with a Claude Code session: another worker continues the session, and no tool runs twice."""

from __future__ import annotations

import time
from typing import Any

import pytest

from agentops.accounts.models import Project
from runs.lifecycle import creation, inbox
from runs.models import Agent, AgentRun, AgentRunToolCall, CliSession
from runs.statuses import RunStatus
from tests.support.databases import reconnect
from tests.support.programs.stub_cli import StubProgram
from tests.support.run_checks import check
from tests.support.stage import Stage
from tests.support.timing import eventually, process_ends

BASH = {"tool": "Bash", "input": {"command": "ls"}, "output": "ran {command}"}
PLAN = [{"text": "I look.", "then": {"sleep": 0.4}}, BASH, {"text": "All done.", "first": {"sleep": 0.4}}]
LATE_S = 4


@pytest.fixture
def program(stage: Stage) -> StubProgram:
    folder = stage.home / "program"
    folder.mkdir()
    (stage.home / "work").mkdir()
    return StubProgram(folder)


@pytest.fixture(autouse=True)
def allowed(stage: Stage, program: StubProgram, settings: Any) -> None:
    """Allow the same program and directories in this process, because it creates the runs."""
    settings.AGENTOPS_CLAUDE_CLI = str(program.folder / "claude")
    settings.AGENTOPS_TOOL_ROOTS = [str(stage.home / "work")]


def session_run(stage: Stage, program: StubProgram, *plan: dict[str, Any]) -> AgentRun:
    program.script(list(plan))
    reconnect()
    agent = Agent.objects.create(
        project=Project.objects.create(slug="crash", name="Crash"),
        slug="coder",
        provider="claude_cli",
        model="default",
        tools=[],
        settings={"root": str(stage.home / "work"), "allowed_tools": ["Bash"]},
    )
    return creation.create(agent.project, agent, "Begin.", by="test")


def worker(stage: Stage, program: StubProgram, chaos: str = "") -> None:
    environment = {
        "AGENTOPS_CLAUDE_CLI": str(program.folder / "claude"),
        "AGENTOPS_TOOL_ROOTS": str(stage.home / "work"),
        # Outside the directory of the agents' files, as the settings require.
        "AGENTOPS_HOME": str(stage.home / "home"),
    }
    stage.worker(chaos=chaos, **environment)


POINTS = ["session.stored", "session.started", "session.said", "model.streaming", "tool.running"]


@pytest.mark.parametrize("point", POINTS)
def test_another_worker_continues_the_session(stage: Stage, program: StubProgram, point: str) -> None:
    """At any time of the kill, including before the first output of the program."""
    run = session_run(stage, program, *PLAN)
    worker(stage, program, chaos=f"{point}:1")
    stage.workers[0].killed()
    worker(stage, program)

    stage.reaches(run, RunStatus.COMPLETED)

    assert run.result == "All done."
    # The kill came before or after the effect. The program cannot know, and does not repeat the call.
    assert len(program.ledger) <= 1
    assert CliSession.objects.filter(run=run).count() == 2
    assert program.heard[0] == "Begin."
    assert program.heard.count("Begin.") <= 2
    check(run)


@pytest.mark.parametrize("is_stopped", [False, True], ids=["recovered", "stopped"])
def test_a_sub_agent_ends_with_its_program(stage: Stage, program: StubProgram, *, is_stopped: bool) -> None:
    """This also holds if the run is stopped before another worker has restarted the program."""
    acts = [{"text": "I look."}, BASH]
    agent = {"tool": "Agent", "input": {"prompt": "Look."}, "output": "x", "subagent": acts, "meanwhile": {"sleep": 1}}
    run = session_run(stage, program, agent, {"text": "All done."})
    worker(stage, program, chaos="session.subagent_stored:1")
    stage.workers[0].killed()
    child = AgentRun.objects.get(parent_run=run)
    assert child.status == RunStatus.RUNNING
    if is_stopped:
        inbox.stop(run.pk, by="ann")
    worker(stage, program)

    stage.reaches(run, RunStatus.STOPPED if is_stopped else RunStatus.COMPLETED)

    child.refresh_from_db()
    assert child.status == RunStatus.STOPPED
    assert len(program.starts) == (1 if is_stopped else 2)
    check(run)
    check(child)


def test_a_stop_ends_a_running_sub_agent(stage: Stage, program: StubProgram) -> None:
    """It ends with its program in the middle of its tool, and the model gets no further request."""
    slow = {**BASH, "meanwhile": {"sleep": 60}}
    agent = {"tool": "Agent", "input": {"prompt": "Look."}, "output": "x", "subagent": [{"text": "I look."}, slow]}
    run = session_run(stage, program, agent, {"text": "All done."})
    worker(stage, program)
    eventually(lambda: "Bash" in program.ledger, why="the sub-agent's tool runs")

    inbox.stop(run.pk, by="ann")
    stage.reaches(run, RunStatus.STOPPED)

    child = AgentRun.objects.get(parent_run=run)
    assert (child.status, AgentRunToolCall.objects.get(run=child).status) == (RunStatus.STOPPED, "unknown")
    process_ends(int((program.folder / "pid").read_text()))
    check(run)
    check(child)


def test_messages_that_the_program_has_received_are_not_sent_again(stage: Stage, program: StubProgram) -> None:
    """Two messages are sent as one, and the worker is killed before the answer."""
    run = session_run(stage, program, {"text": "I look.", "first": {"sleep": 0.5}}, {"text": "All done."})
    inbox.send(run.pk, "And hurry.", by="ann")
    worker(stage, program, chaos="session.said:1")
    stage.workers[0].killed()
    worker(stage, program)

    stage.reaches(run, RunStatus.COMPLETED)

    heard = "Begin.\n\nAnd hurry."
    assert program.heard in ([heard, "continue"], [heard])


def test_processes_started_by_a_killed_session_are_killed(stage: Stage, program: StubProgram) -> None:
    """Otherwise the tool would still have its effect while the run continues without it."""
    late = stage.home / "late"
    slow = {"spawn": ["sh", "-c", f"sleep {LATE_S}; echo late > {late}"]}
    run = session_run(stage, program, {**BASH, "meanwhile": slow}, {"text": "All done."})
    worker(stage, program, chaos="tool.returned:1")
    stage.workers[0].killed()
    ended = time.monotonic()
    worker(stage, program)

    stage.reaches(run, RunStatus.COMPLETED)
    eventually(lambda: time.monotonic() > ended + LATE_S + 1, why="its time is over")
    assert not late.exists()
