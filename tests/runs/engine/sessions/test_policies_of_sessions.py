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
from runs.hooks.base import TURN_EVENTS, HookEvent
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, CliSession
from runs.providers.claude_cli import blocks
from runs.worker.in_process import advance_ready
from runs.worker.worker import Worker
from tests.support.engine import DieAt, applied, lineage, time_has_come, use
from tests.support.factories import drive, make_project
from tests.support.programs.stub_cli import StubProgram
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
    """Arguments and input of the program. A message is never an argument."""
    run = drive(session_run(*PLAN, max_steps=1))
    session = CliSession.objects.get(run=run)
    if not has_transcript:
        path = blocks.transcript_path(config_of(run), session.pk)
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
    """Neither a newer session of the same or another project, nor a session whose ID shares a prefix."""
    run = drive(session_run(*PLAN, max_steps=1))
    other = drive(session_run(*PLAN, project=make_project("beta"), max_steps=1))
    neighbour = drive(session_run(*PLAN, project=run.project, slug="neighbour", max_steps=1))
    session = CliSession.objects.get(run=run)
    path = blocks.transcript_path(config_of(run), session.pk)
    assert path is not None
    path.rename(path.with_name(f"{session.pk}0.jsonl"))
    (path.with_name(f"{str(session.pk)[:-1]}.jsonl")).write_text("")
    assert config_of(other) != config_of(run) == config_of(neighbour)

    new = drive(resume(run.pk, by="ann", max_steps=50).run)

    assert resumed(program.starts[-1]) == []
    assert [event.payload.get("lost") for event in events(new) if event.type == "run.session"] == [True]


def test_two_concurrent_resumes_start_one_program(session_run: MakeRun, program: StubProgram) -> None:
    run = drive(session_run(*PLAN, max_steps=1))

    first, second = resume(run.pk, by="ann", max_steps=50), resume(run.pk, by="bob")
    drive(first.run)

    assert (first.is_existing, second.is_existing, second.run.pk) == (False, True, first.run.pk)
    assert len(program.starts) == 2


def test_a_rate_limited_session_restarts_after_the_cooldown(
    session_run: MakeRun, program: StubProgram, worker: Worker
) -> None:
    """Once for each attempt and not before the cooldown; then the run is escalated."""
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
    monkeypatch.setattr(settings, "AGENTOPS_GATE_COMMANDS", ["true", "false"])
    rules = {"on_error": {"action": "gate", "run": command}}
    run = drive(session_run({"text": "Half."}, {"exit": 1}, settings={"max_retries": 0}, policies=rules))

    assert run.status == status


def test_a_restarted_worker_recovers_only_the_dead_session(
    session_run: MakeRun, program: StubProgram, worker: Worker, die_at: DieAt
) -> None:
    """The other running session, whose worker still renews its lease, is not touched."""
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
    """Its program writes more output, and ends, after the run was killed and resumed."""
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


def test_hooks_of_turns_do_not_end_the_program(
    session_run: MakeRun, program: StubProgram, told: Callable[..., None]
) -> None:
    """The program continues its turn after an answer whose hooks were called."""
    seen: list[HookEvent] = []
    told(watches=lambda context: seen.append(context.event))
    run = drive(session_run(*PLAN, policies={"hooks": [use("watches", *TURN_EVENTS, guard=False)]}))

    assert (run.status, len(program.starts), program.ledger) == ("completed", 1, ["Bash"])
    assert seen.count(HookEvent.TURN_END) >= 2
    check(run)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    ("stop_reason", "reason"), [("max_tokens", "answer_cut"), ("refusal", "answer_refused"), ("end_turn", "")]
)
def test_the_stop_reason_of_the_last_answer_decides(
    session_run: MakeRun, program: StubProgram, stop_reason: str, reason: str, *, whole: bool
) -> None:
    """It arrives in a delta, or in the lines of the answer. After a resume the session continues."""
    half = {"text": "Half", "stop_reason": stop_reason, "whole": whole, "then": {"result": "success"}}
    run = drive(session_run(half, {"text": "Whole."}))

    if not reason:
        assert (run.status, run.result) == ("completed", "Half")
        return
    assert (run.status, run.status_reason, run.error_type) == ("paused", reason, reason)
    assert stop_reason in run.error_message
    new = drive(resume(run.pk, by="user:oscar").run)
    assert (new.status, new.result, program.heard) == ("completed", "Whole.", ["Begin.", "continue"])


@pytest.mark.parametrize("stop_reason", ["max_tokens", "refusal"])
def test_a_program_continues_after_such_an_answer_by_itself(
    session_run: MakeRun, program: StubProgram, stop_reason: str
) -> None:
    """It has run the calls of the answer, too."""
    run = drive(session_run({**BASH, "stop_reason": stop_reason}, {"text": "All done."}))

    assert (run.status, run.result, program.ledger) == ("completed", "All done.", ["Bash"])
    call = AgentRunToolCall.objects.get(run=run)
    assert (call.status, call.output) == ("completed", "ran ls")
    assert [message.finish_reason for message in AgentRunMessage.objects.filter(run=run, role="assistant")] == [
        "length" if stop_reason == "max_tokens" else "content_filter",
        "stop",
    ]
