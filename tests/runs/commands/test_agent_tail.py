"""`agentops agent tail`: every event once and in order, up to the end of the run."""

from __future__ import annotations

import io
import json
import re
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction

from runs.actions import resume as resuming
from runs.lifecycle import transitions
from runs.management.agent import tail
from runs.models import AgentRun
from runs.statuses import RunStatus
from tests.support.command_line import MANAGE, Command
from tests.support.factories import drive
from timeline import log
from timeline.events.llm import LlmTextDelta, LlmThinkingDelta
from timeline.events.run import RunCompleted, RunFailed
from timeline.events.tool import ToolStart
from timeline.log import Entry
from timeline.models import Source

MakeRun = Callable[..., AgentRun]
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def append(run: AgentRun, *entries: Entry) -> None:
    with transaction.atomic():
        log.append(run.pk, entries, source=Source.WORKER)


def seqs(printed: str) -> list[int]:
    return [int(line.split("\t")[0]) for line in printed.splitlines()]


def tail_of(out: io.StringIO, *words: str) -> tuple[int, str]:
    """Run a tail that prints to `out`; return its exit code and message."""
    try:
        call_command("agent", "tail", *words, stdout=out)
    except CommandError as error:
        return error.returncode, str(error)
    return 0, ""


def test_tail_prints_every_event(make_run: MakeRun, command: Command) -> None:
    run = drive(make_run())
    events = log.read(run.pk)
    printed = command("agent", "tail", str(run.pk))

    assert seqs(printed) == [event.seq for event in events] == list(range(1, len(events) + 1))
    lines = [line.split("\t") for line in printed.splitlines()]
    assert {len(cells) for cells in lines} == {5}
    assert (lines[0][2:4], lines[-1][2:4]) == (["", "run.created"], ["", "run.completed"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", lines[0][1])
    asked = next(cells for cells in lines if cells[3] == "tool.start")
    assert asked[2] == "1"
    assert asked[4].startswith("Started ")
    assert "{" in asked[4], "what the tool was called with"


def test_tail_starts_after_the_given_sequence_number(make_run: MakeRun, command: Command) -> None:
    run = drive(make_run())
    last = log.read(run.pk)[-1].seq

    assert seqs(command("agent", "tail", str(run.pk), "--after", "7")) == list(range(8, last + 1))
    assert command("agent", "tail", str(run.pk), "--after", str(10**17)) == ""


@pytest.mark.parametrize("stdout", [io.StringIO, Terminal])
def test_json_prints_one_event_per_line_in_the_wire_format(make_run: MakeRun, stdout: type[io.StringIO]) -> None:
    run = make_run(prompt="\x1b[2J\u2028 end")
    append(run, Entry(LlmTextDelta(text="\x1b]0;pwned\x07")))
    out = stdout()
    call_command("agent", "tail", str(run.pk), "--json", "--no-follow", stdout=out)

    lines = out.getvalue().splitlines()
    assert [json.loads(line) for line in lines] == [json.loads(json.dumps(log.wire(e))) for e in log.read(run.pk)]
    assert not CONTROL.search(out.getvalue())


# --- Readable output --------------------------------------------------------------------------------------------
@pytest.mark.breaks_invariants("events that are made to be shown, without rows")
def test_text_deltas_are_joined_on_a_terminal(make_run: MakeRun) -> None:
    run = make_run()
    append(
        run,
        Entry(LlmThinkingDelta(text="Hm, ", index=0), step=1),
        Entry(LlmThinkingDelta(text="a greeting.", index=0), step=1),
        Entry(LlmTextDelta(text="Hel", index=1), step=1),
        Entry(LlmTextDelta(text="lo,\nworld", index=1), step=1),
        Entry(ToolStart(call_id="c1", tool_name="look", arguments={"at": "sky"}), step=1),
        Entry(LlmTextDelta(text="Blue.", index=0), step=2),
    )
    out = Terminal()
    call_command("agent", "tail", str(run.pk), "--after", "2", "--no-follow", stdout=out)

    # Each line starts with the time of its first event.
    lines = [line[len("12:03:07Z  ") :] for line in out.getvalue().splitlines()]
    assert lines == [
        "step 1    llm.thinking.delta    Hm, a greeting.",
        "step 1    llm.text.delta        Hello,",
        "                                world",
        'step 1    tool.start            Started look: {"at": "sky"}',
        "step 2    llm.text.delta        Blue.",
    ]
    assert out.getvalue().endswith("\n")


@pytest.mark.breaks_invariants("events that are made to be shown, without rows")
@pytest.mark.parametrize("stdout", [io.StringIO, Terminal])
def test_control_characters_of_events_are_not_printed(make_run: MakeRun, stdout: type[io.StringIO]) -> None:
    nasty = "\x1b]0;pwned\x07 clear\x9b2J\r\b\x00"
    run = make_run(prompt=nasty)
    append(
        run, Entry(LlmTextDelta(text=nasty)), Entry(ToolStart(call_id="c", tool_name=nasty, arguments={nasty: nasty}))
    )
    out = stdout()
    call_command("agent", "tail", str(run.pk), "--no-follow", stdout=out)

    # In a pipe, the tabs separate the columns.
    assert not CONTROL.search(out.getvalue().replace("\t", ""))
    assert "pwned" in out.getvalue()


# --- Up to the end ----------------------------------------------------------------------------------------------
def test_tail_follows_up_to_the_last_event(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two events and the end arrive during the waits; the end is printed although the next query finds an ended run."""
    run = make_run(RunStatus.RUNNING)
    waits = iter(range(10))

    def meanwhile(_: float) -> None:
        now = next(waits)
        if now in (1, 2):
            append(run, Entry(LlmTextDelta(text=f"word {now}")))
        if now == 3:
            transitions.move(run, RunStatus.COMPLETED, RunCompleted(), source=Source.WORKER)

    monkeypatch.setattr(tail.time, "sleep", meanwhile)
    out = io.StringIO()
    assert tail_of(out, str(run.pk)) == (0, "")

    assert next(waits) == 4
    assert seqs(out.getvalue()) == [event.seq for event in log.read(run.pk)]
    assert out.getvalue().splitlines()[-1].split("\t")[3] == "run.completed"


def test_tail_prints_more_events_than_a_batch(make_run: MakeRun, command: Command) -> None:
    run = make_run()
    append(run, *[Entry(LlmTextDelta(text=str(n))) for n in range(2 * tail.BATCH)])

    assert seqs(command("agent", "tail", str(run.pk), "--no-follow")) == list(range(1, 2 * tail.BATCH + 3))


@pytest.mark.parametrize("status", [RunStatus.PAUSED, RunStatus.STOPPED])
def test_an_end_other_than_completion_exits_with_1(make_run: MakeRun, status: RunStatus) -> None:
    run, out = make_run(status), io.StringIO()

    code, said = tail_of(out, str(run.pk))
    assert (code, said) == (1, f"the run is {status} (by an operator)")
    assert len(out.getvalue().splitlines()) == len(log.read(run.pk))


def test_the_reason_of_a_failure_is_printed(make_run: MakeRun) -> None:
    run = make_run(RunStatus.RUNNING)
    failed = RunFailed(error_type="boom")
    transitions.move(run, RunStatus.FAILED, failed, source=Source.WORKER, reason="boom", error_message="no\x1b way")

    assert tail_of(io.StringIO(), str(run.pk)) == (1, "the run is failed (boom): no\N{REPLACEMENT CHARACTER} way")


def test_the_run_that_continues_a_resumed_run_is_printed(make_run: MakeRun) -> None:
    run = make_run(RunStatus.PAUSED)
    new = resuming.resume(run.pk, by="test").run

    code, said = tail_of(out := io.StringIO(), str(run.pk))
    assert code == 1
    assert said.endswith(f"; continued by {new.pk}")
    assert out.getvalue().splitlines()[-1].split("\t")[3] == "run.resumed"


def test_tail_without_following_exits_with_0(make_run: MakeRun, command: Command) -> None:
    for status in (RunStatus.QUEUED, RunStatus.STOPPED, RunStatus.PAUSED):
        assert command("agent", "tail", str(make_run(status).pk), "--no-follow")


def test_ctrl_c_ends_tail(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    run = make_run()
    append(run, Entry(LlmTextDelta(text="half a")))
    monkeypatch.setattr(tail.time, "sleep", interrupt)
    out = Terminal()
    with pytest.raises(SystemExit) as ended:
        call_command("agent", "tail", str(run.pk), stdout=out)

    assert ended.value.code == 130
    assert out.getvalue().endswith("half a\n")


def test_a_run_can_be_named_by_a_prefix(make_run: MakeRun, refused: Any, command: Command) -> None:
    run = make_run()
    assert command("agent", "tail", str(run.pk)[:35], "--no-follow")
    make_run()

    assert refused("agent", "tail", "ffffffff")[0] == 3
    assert refused("agent", "tail", str(run.pk)[:4])[0] == 4


@pytest.mark.parametrize("seq", ["-1", "x", "1.5", "1_0", "٣", "9" * 19])
def test_an_invalid_sequence_number_is_refused(seq: str, make_run: MakeRun) -> None:
    with pytest.raises(CommandError, match="--after"):
        call_command("agent", "tail", str(make_run().pk), f"--after={seq}")


# --- In a separate process --------------------------------------------------------------------------------------
@pytest.mark.slow
def test_events_of_another_process_are_printed_as_they_arrive(process_env: dict[str, str], make_run: MakeRun) -> None:
    run = make_run(RunStatus.RUNNING)
    words = [*MANAGE, "agent", "tail", str(run.pk)]
    with subprocess.Popen(words, env=process_env, stdout=subprocess.PIPE, text=True) as tail:
        assert tail.stdout is not None
        for seq in range(1, 4):
            assert tail.stdout.readline().startswith(f"{seq}\t")
        append(run, Entry(LlmTextDelta(text="now")))
        assert tail.stdout.readline().split("\t")[4] == "now\n"
        transitions.move(run, RunStatus.COMPLETED, RunCompleted(), source=Source.WORKER)
        assert tail.stdout.readline().split("\t")[3] == "run.completed"
        assert tail.wait(60) == 0
