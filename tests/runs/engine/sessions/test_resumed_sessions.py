"""Continued sessions: after a worker's death, a resume or a message, and without a transcript."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connection

from runs import chaos
from runs.actions.fork import fork
from runs.actions.resume import resume
from runs.errors import RunNotFound
from runs.lifecycle import inbox
from runs.management.agent.references import find_run
from runs.models import AgentRun, AgentRunToolCall, CliSession, RunError
from runs.providers.claude_cli import blocks
from runs.worker.worker import Worker
from tests.support.engine import DieAt
from tests.support.factories import drive, make_run
from tests.support.programs.stub_cli import StubProgram
from tests.support.run_checks import check, events
from tests.support.timing import eventually, process_ends
from timeline.events import describe

pytestmark = pytest.mark.django_db(transaction=True)
MakeRun = Callable[..., AgentRun]
BASH = {"tool": "Bash", "input": {"command": "ls"}, "output": "ran {command}"}
#: The pause makes sure that the record is up to date with the program's output.
PLAN = ({"text": "I look."}, BASH, {"text": "All done.", "first": {"sleep": 0.3}})
#: Text that breaks an unescaped shell command, command line or line of JSON.
AWKWARD = '--resume=\'x\' `id` $(id) "q" \\ \n{"type": "result"}\n😀 ' + "x" * 100_000


def sessions(run: AgentRun) -> list[CliSession]:
    return list(CliSession.objects.filter(run__root_run=run.root_run).order_by("created_at"))


@pytest.mark.parametrize(
    ("point", "heard"),
    [
        ("session.stored", ["Begin."]),
        ("session.started", ["Begin."]),
        ("turn.committed", ["Begin.", "continue"]),
        ("tool.marked_running", ["Begin.", "continue"]),
        ("tool.returned", ["Begin.", "continue"]),
        ("end.before", ["Begin."]),
    ],
)
def test_a_session_continues_after_its_worker_dies(
    session_run: MakeRun, program: StubProgram, die_at: DieAt, point: str, heard: list[str]
) -> None:
    run = session_run(*PLAN)
    assert die_at(run, point)

    run = drive(run)

    assert (run.status, run.result) == ("completed", "All done.")
    assert program.heard == heard
    assert program.ledger.count("Bash") <= 1
    used = [str(session.pk) for session in sessions(run)]
    resumed = [argument for argument in program.starts[-1] if argument.startswith("--resume=")]
    # The program resumes the first session, as a fork with a new ID.
    assert resumed == ([f"--resume={used[0]}"] if "continue" in heard else [])
    assert run.session_id == used[-1]
    check(run)


@pytest.mark.slow
def test_a_database_error_before_the_program_starts_is_not_a_model_failure(
    session_run: MakeRun, worker: Worker
) -> None:
    """Three model failures would use up the attempts."""
    run, failures = session_run(*PLAN), [OperationalError("the server has gone away")] * 4

    def fail(execute: Any, sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
        if "agent_run_cli_sessions" in sql and failures:
            raise failures.pop()
        return execute(sql, params, many, context)

    with connection.execute_wrapper(fail):
        run = drive(run, worker)

    assert not failures
    assert (run.status, run.result, run.lease_epoch) == ("completed", "All done.", 1)
    assert not RunError.objects.filter(run=run).exists()
    assert "retry.scheduled" not in [event.type for event in events(run)]
    check(run)


def test_an_interrupted_call_has_an_unknown_outcome(session_run: MakeRun, worker: Worker, die_at: DieAt) -> None:
    """The program knows the outcome and the record does not, so no person decides and no output is invented."""
    run = session_run(*PLAN)
    assert die_at(run, "tool.returned")

    call = AgentRunToolCall.objects.get(run=drive(run, worker))
    assert call.status == "unknown"
    assert "ran ls" not in str(call.output)


def test_the_newest_session_with_a_transcript_is_resumed(
    session_run: MakeRun, program: StubProgram, worker: Worker, die_at: DieAt, settings: Any
) -> None:
    """The newest of three attempts has no transcript."""
    run = session_run({"text": "One."}, BASH, BASH, BASH, {"text": "All done."})
    for _ in range(3):
        assert die_at(run, "tool.marked_running")
    transcript(settings, sessions(run)[2]).unlink()

    run = drive(run, worker)

    assert run.result == "All done."
    assert f"--resume={sessions(run)[1].pk}" in program.starts[-1]


def test_a_session_without_a_transcript_starts_over_and_records_it(
    session_run: MakeRun, program: StubProgram, worker: Worker, die_at: DieAt, settings: Any
) -> None:
    run = session_run(*PLAN)
    assert die_at(run, "turn.committed", hit=2)
    transcript(settings, sessions(run)[0]).unlink()

    run = drive(run, worker)

    assert run.result == "All done."
    assert program.heard == ["Begin.", "Begin."]
    assert not any(argument.startswith("--resume=") for argument in program.starts[-1])
    begun = [event for event in events(run) if event.type == "run.session"]
    assert [event.payload.get("lost") for event in begun] == [None, True]
    said = describe(begun[1].type, begun[1].payload)
    assert "begins anew, because no transcript of the earlier steps can be continued" in said


def transcript(settings: Any, session: CliSession) -> Path:
    path = blocks.transcript_path(settings.AGENTOPS_HOME / "claude" / str(session.run.project_id), session.pk)
    assert path is not None
    return path


def test_a_resumed_run_continues_in_its_session(session_run: MakeRun, program: StubProgram) -> None:
    """A message reaches the program through its input, with any content. The default message is "continue"."""
    run = drive(session_run(*PLAN, {"text": "More."}, {"text": "Most."}, max_steps=1))
    assert (run.status, run.status_reason) == ("paused", "max_steps")

    bare = drive(resume(run.pk, by="ann", max_steps=1).run)
    last = drive(resume(bare.pk, by="ann", message=AWKWARD, max_steps=50).run)

    assert last.status == "completed"
    assert program.heard == ["Begin.", "continue", AWKWARD]
    first, second, _ = sessions(run)
    assert [f"--resume={session.pk}" for session in (first, second)] == [
        next(argument for argument in arguments if argument.startswith("--resume=")) for arguments in program.starts[1:]
    ]
    assert all("--fork-session" in arguments for arguments in program.starts[1:])


def test_media_of_a_resume_reach_the_program(session_run: MakeRun, program: StubProgram) -> None:
    """As blocks of the API after the text; without a text they replace "continue"."""
    image, pdf = ({"kind": "binary", "media_type": kind, "data": "AAAA"} for kind in ("image/png", "application/pdf"))
    run = drive(session_run(*PLAN, {"text": "More."}, {"text": "Most."}, max_steps=1))

    second = drive(resume(run.pk, by="ann", message="See.", media=[image], max_steps=1).run)
    drive(resume(second.pk, by="ann", media=[pdf], max_steps=50).run)

    sent_blocks = [
        {"type": name, "source": {"type": "base64", "media_type": kind, "data": "AAAA"}}
        for name, kind in (("image", "image/png"), ("document", "application/pdf"))
    ]
    assert program.heard == ["Begin.", [{"type": "text", "text": "See."}, sent_blocks[0]], [sent_blocks[1]]]


def test_a_resume_with_append_false_starts_a_new_session(session_run: MakeRun, program: StubProgram) -> None:
    run = drive(session_run(*PLAN, max_steps=1))

    drive(resume(run.pk, by="ann", message="Something else.", append=False, max_steps=50).run)

    assert program.heard == ["Begin.", "Something else."]
    assert not any(argument.startswith("--resume=") for argument in program.starts[1])


def test_a_message_reaches_the_running_program_once(session_run: MakeRun, program: StubProgram, worker: Worker) -> None:
    run = session_run({"text": "I wait.", "then": {"sleep": 0.5}}, {"text": "Heard."})
    inbox.send(run.pk, "And hurry.", by="ann")

    run = drive(run, worker)

    assert run.status == "completed"
    assert program.heard == ["Begin.\n\nAnd hurry."]
    assert len(program.starts) == 1


def test_a_run_can_be_looked_up_by_the_id_of_its_session(session_run: MakeRun) -> None:
    """By the whole ID of any attempt's session, not by a prefix."""
    run = drive(session_run(*PLAN, max_steps=1))
    [session] = sessions(run)

    assert find_run(str(session.pk)) == run
    with pytest.raises(RunNotFound):
        find_run(str(session.pk)[:-1])


def test_a_stop_ends_the_program_and_its_child_processes(
    session_run: MakeRun, program: StubProgram, worker: Worker, tmp_path: Path
) -> None:
    """Immediately, in the middle of a tool; also processes that left its process group."""
    left, apart = tmp_path / "left", tmp_path / "apart"
    forever = f"setsid sh -c 'echo $$ > {apart}; sleep 60' & echo $$ > {left}; while true; do sleep 0.1; done"
    slow = {"tool": "Bash", "input": {}, "output": "", "meanwhile": {"sleep": 60}}
    run = session_run({"text": "Slow.", "then": {"spawn": ["sh", "-c", forever]}}, slow)
    threading.Thread(target=stop_in_tool, args=(run, program), daemon=True).start()

    run = drive(run, worker)

    assert run.status == "stopped"
    for path in (left, apart):
        process_ends(int(path.read_text()))
    assert AgentRunToolCall.objects.get(run=run).status == "unknown"


def stop_in_tool(run: AgentRun, program: StubProgram) -> None:
    eventually(lambda: program.ledger, why="the tool runs")
    inbox.stop(run.pk, by="ann")
    connection.close()


@pytest.mark.parametrize("others", [0, 1])
def test_a_session_gives_up_its_slot_between_turns_if_another_run_waits(
    session_run: MakeRun, program: StubProgram, settings: Any, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """Never within a turn, however long; and only if another run waits, because the program has to restart."""
    settings.AGENTOPS_SLICE_S = 0.001
    run = session_run()
    ends = {"then": {"result": "success"}}
    program.script([BASH, {"text": "One.", **ends}, {"text": "Two."}])
    if others:
        make_run()
    sent: list[str] = []

    def send_after_the_turn(point: str) -> None:
        if point == "checkpoint.committed" and not sent:
            sent.append("And now?")
            inbox.send(run.pk, sent[0], by="ann")

    monkeypatch.setattr(chaos, "point", send_after_the_turn)
    run = drive(run)

    assert (run.status, run.result, program.heard) == ("completed", "Two.", ["Begin.", "And now?"])
    assert (len(program.starts), program.ledger) == (1 + others, ["Bash"])
    released = [event for event in events(run) if event.type == "run.phase" and event.payload["reason"] == "slice_over"]
    assert len(released) == others


def test_a_fork_at_the_end_continues_in_a_fork_of_the_session(session_run: MakeRun, program: StubProgram) -> None:
    """Also if the run has ended, and again for a fork of the fork."""
    ends = {"then": {"result": "success"}}
    run = drive(session_run(*PLAN[:2], *({"text": text, **ends} for text in ("All done.", "More.", "Most."))))

    forked = drive(fork(run.pk, step=3, message="Another way.", by="ann"))
    again = drive(fork(forked.pk, step=4, message="And back.", by="ann"))

    assert (forked.result, again.result) == ("More.", "Most.")
    assert program.heard == ["Begin.", "Another way.", "And back."]
    origins = [sessions(each)[0].pk for each in (run, forked)]
    for arguments, origin in zip(program.starts[1:], origins, strict=True):
        assert {f"--resume={origin}", "--fork-session"} <= set(arguments)
    [begun] = [event for event in events(forked) if event.type == "run.session"]
    assert (begun.payload["resumed"], begun.payload.get("lost")) == (str(origins[0]), None)
    check(forked)


@pytest.mark.slow
def test_a_fork_at_an_earlier_checkpoint_starts_over_and_records_it(session_run: MakeRun, program: StubProgram) -> None:
    """The session's transcript continues past the checkpoint, and the earlier run's transcript ends before it."""
    run = drive(session_run(*PLAN, {"text": "More."}, {"text": "Most."}, max_steps=1))
    resumed = drive(resume(run.pk, by="ann", max_steps=50).run)

    forked = drive(fork(resumed.pk, step=2, message="Another way.", by="ann"))

    assert not any(argument.startswith("--resume=") for argument in program.starts[-1])
    assert program.heard[-1] == "Begin.\n\ncontinue\n\nAnother way."
    [begun] = [event for event in events(forked) if event.type == "run.session"]
    assert begun.payload["lost"]
    assert "forked at an earlier checkpoint" in describe(begun.type, begun.payload)
