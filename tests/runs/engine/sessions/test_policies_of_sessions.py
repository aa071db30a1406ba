"""Effects of resumes, policies and restarts on runs of Claude Code."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from django.conf import settings
from django.utils import timezone

from runs import chaos
from runs.actions.resume import ResumeResult, resume
from runs.models import AgentRun, AgentRunToolCall, CliSession
from runs.providers.claude_cli import transcripts
from runs.worker.in_process import advance_ready
from runs.worker.worker import Worker
from tests.support.claude.stub_program import StubProgram
from tests.support.engine.fixture_types import DieAt
from tests.support.engine.policy_occasions import applied, lineage, time_has_come
from tests.support.factories import drive, make_project
from tests.support.run_checks import check, events

pytestmark = pytest.mark.django_db(transaction=True)
MakeRun = Callable[..., AgentRun]
BASH = {"tool": "Bash", "input": {"command": "ls"}, "output": "ran {command}"}
#: The pause makes sure that the record is up to date with the program's output.
PLAN = ({"text": "I look."}, BASH, {"text": "All done.", "first": {"sleep": 0.3}})
LIMITED = {"result": "success", "is_error": True, "api_error_status": 429, "errors": ["API Error: 429"]}


def config_of(run: AgentRun) -> Path:
    path: Path = settings.AGENTOPS_HOME / "claude" / str(run.project_id)
    return path


def resumed(arguments: list[str]) -> list[str]:
    return [argument for argument in arguments if argument.startswith("--resume=")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("message", "append", "has_transcript", "heard"),
    [
        (None, True, True, "continue"),
        ("Go left.", True, True, "Go left."),
        ("Go left.", False, True, "Go left."),
        ("Go left.", False, False, "Go left."),
        (None, True, False, "Begin.\n\ncontinue"),
        ("Go left.", True, False, "Begin.\n\nGo left."),
    ],
)
def test_a_resume_starts_the_program_with_the_expected_session_and_message(
    session_run: MakeRun, program: StubProgram, *, message: str | None, append: bool, has_transcript: bool, heard: str
) -> None:
    """S-103: arguments and input of the program. A message is never an argument."""
    run = drive(session_run(*PLAN, max_steps=1))
    session = CliSession.objects.get(run=run)
    if not has_transcript:
        path = transcripts.path_of(config_of(run), session.pk)
        assert path is not None
        path.unlink()

    drive(resume(run.pk, by="ann", message=message, append=append, max_steps=50).run)

    assert resumed(program.starts[1]) == ([f"--resume={session.pk}"] if has_transcript and append else [])
    assert program.heard[1] == heard
    assert not any("Go left." in argument for argument in program.starts[1])
    run.refresh_from_db()
    assert run.prompt == "Begin."


@pytest.mark.slow
def test_a_run_never_resumes_the_session_of_another_run(session_run: MakeRun, program: StubProgram) -> None:
    """S-106: neither a newer session of the same or another project, nor a session whose ID shares a prefix."""
    run = drive(session_run(*PLAN, max_steps=1))
    other = drive(session_run(*PLAN, project=make_project("beta"), max_steps=1))
    neighbour = drive(session_run(*PLAN, project=run.project, slug="neighbour", max_steps=1))
    session = CliSession.objects.get(run=run)
    path = transcripts.path_of(config_of(run), session.pk)
    assert path is not None
    path.rename(path.with_name(f"{session.pk}0.jsonl"))
    (path.with_name(f"{str(session.pk)[:-1]}.jsonl")).write_text("")
    assert config_of(other) != config_of(run) == config_of(neighbour)

    new = drive(resume(run.pk, by="ann", max_steps=50).run)

    assert resumed(program.starts[-1]) == []
    assert [event.payload.get("lost") for event in events(new) if event.type == "run.session"] == [True]


def test_two_concurrent_resumes_start_one_program(session_run: MakeRun, program: StubProgram) -> None:
    """S-110."""
    run = drive(session_run(*PLAN, max_steps=1))

    first, second = resume(run.pk, by="ann", max_steps=50), resume(run.pk, by="bob")
    drive(first.run)

    assert (first.is_existing, second.is_existing, second.run.pk) == (False, True, first.run.pk)
    assert len(program.starts) == 2


def test_a_rate_limited_session_restarts_after_the_cooldown(
    session_run: MakeRun, program: StubProgram, worker: Worker
) -> None:
    """S-111: once for each attempt and not before the cooldown; then the run is escalated."""
    rule = {"match": ["rate_limited"], "action": "resume", "cooldown": "60s", "attempts": 2}
    run = drive(session_run(LIMITED, settings={"max_retries": 0}, policies={"on_error": [rule]}), worker)
    assert (run.status, run.status_reason, run.error_type) == ("waiting", "on_error", "rate_limited")

    for starts in (1, 2):
        assert advance_ready(worker) == 0
        assert len(program.starts) == starts
        time_has_come(lineage(run)[-1])
        assert advance_ready(worker) == 1
        assert len(program.starts) == starts + 1
    last = lineage(run)[-1]
    assert (last.status, last.status_reason) == ("paused", "escalated")
    assert [one.get("exhausted") for one in applied(last)] == [True]


@pytest.mark.parametrize(("command", "status"), [("true", "completed"), ("false", "paused")])
def test_a_gate_decides_about_a_failed_session(
    session_run: MakeRun, monkeypatch: pytest.MonkeyPatch, command: str, status: str
) -> None:
    """S-113."""
    monkeypatch.setattr(settings, "AGENTOPS_GATE_COMMANDS", ["true", "false"])
    rules = {"on_error": {"action": "gate", "run": command}}
    run = drive(session_run({"text": "Half."}, {"exit": 1}, settings={"max_retries": 0}, policies=rules))

    assert run.status == status


def test_a_restarted_worker_recovers_only_the_dead_session(
    session_run: MakeRun, program: StubProgram, worker: Worker, die_at: DieAt
) -> None:
    """S-114: the other running session, whose worker still renews its lease, is not touched."""
    dead, live = session_run(*PLAN), session_run(*PLAN, slug="other")
    assert die_at(dead, "turn.committed")
    assert die_at(live, "turn.committed")
    AgentRun.objects.filter(pk=live.pk).update(lease_expires_at=timezone.now() + timedelta(minutes=1))
    before = AgentRun.objects.get(pk=live.pk)

    assert advance_ready(worker) == 1

    dead.refresh_from_db()
    live.refresh_from_db()
    assert (dead.status, dead.result) == ("completed", "All done.")
    assert (live.status, live.lease_epoch, live.lease_owner) == ("running", before.lease_epoch, before.lease_owner)
    assert CliSession.objects.filter(run=live).count() == 1


@pytest.mark.parametrize("point", ["session.stored", "turn.committed", "tool.running", "tool.returned"])
def test_a_killed_session_changes_nothing_later(
    session_run: MakeRun, program: StubProgram, worker: Worker, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """S-115: its program writes more output, and ends, after the run was killed and resumed."""
    run = session_run(*PLAN)
    done: list[ResumeResult] = []

    def kill(name: str) -> None:
        if name == point and not done:
            done.append(resume(run.pk, by="ann", kill=True))

    monkeypatch.setattr(chaos, "point", kill)
    assert worker.drive(run.pk)
    monkeypatch.undo()

    new = AgentRun.objects.get(pk=done[0].run.pk)
    assert new.status == "queued"
    run.refresh_from_db()
    assert (run.status, run.lease_owner) == ("resumed", None)
    [paused] = [event for event in events(run) if event.type == "run.paused"]
    assert not [
        event for event in events(run) if event.source == "worker" and event.seq > paused.seq and not event.late
    ]
    new = drive(new, worker)
    # "done" if the old program wrote its last answer before it was killed.
    assert (new.status, new.result in ("All done.", "done")) == ("completed", True)
    assert program.ledger.count("Bash") <= 1 + AgentRunToolCall.objects.filter(run=new).count()
    check(run)
    check(new)
