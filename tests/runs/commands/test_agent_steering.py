"""Finding a run and controlling it: `agent resume`, `pause`, `stop`, `send`, `signal`."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest
from django.db import connections

from runs.lifecycle import transitions
from runs.models import AgentRun, AgentRunMessage, RunCommand
from runs.statuses import RunStatus
from tests.support.factories import make_project
from tests.support.remote import Program
from timeline import log
from timeline.models import Event, Log

MakeRun = Callable[..., AgentRun]
Command = Callable[..., str]


def with_id(run: AgentRun, text: str) -> UUID:
    """Copy the run's row with the given ID."""
    made = UUID(text)
    Log.objects.create(pk=made, project=run.project)
    copy = AgentRun.objects.get(pk=run.pk)
    copy.log_id = copy.root_run_id = made
    copy.save(force_insert=True)
    return made


# --- Finding a run ----------------------------------------------------------------------------------------------


@pytest.mark.breaks_invariants("rows that are made to be found, without a log")
def test_a_run_can_be_named_by_its_id_and_by_a_unique_prefix(make_run: MakeRun, command: Command) -> None:
    run = make_run()
    alone = with_id(run, "ab12cd34-0000-7000-8000-000000000001")

    names = ["ab12", "AB12", "ab12cd34", "ab12cd34-", "ab12cd34-0000-7", "ab12cd340000", str(alone), alone.hex]
    for name in names:
        assert json.loads(command("agent", "show", name, "--json"))["id"] == str(alone)


@pytest.mark.breaks_invariants("rows that are made to be found, without a log")
@pytest.mark.parametrize("verb", ["show", "resume", "pause", "stop"])
def test_an_ambiguous_beginning_is_refused_with_the_candidates(make_run: MakeRun, refused: Any, verb: str) -> None:
    """The command never picks the first match."""
    run = make_run(RunStatus.PAUSED)
    twins = [with_id(run, f"ab12cd34-0000-7000-8000-00000000000{n}") for n in (1, 2)]
    events = Event.objects.count()

    code, line = refused("agent", verb, "ab12cd")
    assert code == 4
    assert line == f"'ab12cd' matches more than one run: {twins[1]} (paused), {twins[0]} (paused)"
    assert (Event.objects.count(), AgentRun.objects.count()) == (events, 3)


def test_a_prefix_that_is_too_short_is_ambiguous_even_with_one_run(make_run: MakeRun, refused: Any) -> None:
    run = make_run()
    for short in (str(run.pk)[:1], str(run.pk)[:3]):
        code, line = refused("agent", "show", short)
        assert (code, str(run.pk) in line, "4 characters" in line) == (4, True, True)


@pytest.mark.breaks_invariants("rows that are made to be found, without a log")
def test_at_most_ten_candidates_are_listed(make_run: MakeRun, refused: Any) -> None:
    run = make_run()
    for number in range(12):
        with_id(run, f"ab12cd34-0000-7000-8000-0000000000{number:02}")
    _, line = refused("agent", "show", "ab12")

    assert line.count("(queued)") == 10
    assert line.endswith(" and more")


@pytest.mark.breaks_invariants("rows that are made to be found, without a log")
@pytest.mark.parametrize(
    "name",
    ["ffff", "f", "", "-", "xyz1", "ab12-cd34", "a" * 33, "019a%", "\udcff", "{ab12}", "１２３４", "01a1f883" * 9],
)
def test_an_unknown_run_is_not_found(make_run: MakeRun, refused: Any, name: str) -> None:
    run = make_run()
    with_id(run, "ab12cd34-0000-7000-8000-000000000001")

    for words in (["resume", "--", name], ["show", "--", name], ["send", "--", name, "Hi"]):
        code, line = refused("agent", *words)
        assert (code, line.startswith("run not found: ")) == (3, True)


# --- resume -----------------------------------------------------------------------------------------------------
def test_resume_prints_only_the_id_of_the_new_run(make_run: MakeRun, command: Command) -> None:
    """The old run's messages do not change, and the new user message comes last."""
    old = make_run(RunStatus.PAUSED, labels=["nightly"])
    before = list(AgentRunMessage.objects.values_list("pk", "sha256"))
    printed = command("agent", "resume", str(old.pk), "--message", "Go on, please", "--max-steps", "7")

    new = AgentRun.objects.get(pk=printed.strip())
    assert printed == f"{new.pk}\n"
    assert (new.resumed_from_id, new.root_run_id, new.max_steps, new.labels) == (old.pk, old.pk, 7, ["nightly"])
    assert list(AgentRunMessage.objects.filter(run=old).values_list("pk", "sha256")) == before
    assert [row.role for row in new.messages.all()] == ["user"]
    assert log.read(new.pk)[0].payload["by"].startswith("cli:")
    assert log.read(old.pk)[-1].payload["by"].startswith("cli:")


def test_replace_starts_a_new_conversation(make_run: MakeRun, command: Command, refused: Any) -> None:
    old = make_run(RunStatus.PAUSED)
    assert refused("agent", "resume", str(old.pk), "--replace")[0] == 2

    new = AgentRun.objects.get(pk=command("agent", "resume", str(old.pk), "--replace", "--message", "Anew").strip())
    assert (new.starts_fresh, new.prompt) == (True, "Anew")


def test_a_second_resume_prints_the_existing_successor(
    make_run: MakeRun, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    old = make_run(RunStatus.PAUSED)
    first = command("agent", "resume", str(old.pk))
    capsys.readouterr()
    second = command("agent", "resume", str(old.pk), "--message", "again")

    assert first == second
    assert capsys.readouterr().err == f"{old.pk} was already resumed; it is continued by {first}"
    row = json.loads(command("agent", "resume", str(old.pk), "--json"))
    assert (row["id"], row["already_resumed"]) == (first.strip(), True)
    assert AgentRun.objects.count() == 2


def test_concurrent_resumes_create_one_run(transactional_db: None, make_run: MakeRun, command: Command) -> None:
    old = make_run(RunStatus.PAUSED)

    def one(_: int) -> str:
        try:
            return command("agent", "resume", str(old.pk))
        finally:
            connections.close_all()

    with ThreadPoolExecutor(6) as pool:
        assert len(set(pool.map(one, range(6)))) == 1
    assert AgentRun.objects.count() == 2


@pytest.mark.parametrize("status", ["queued", "running", "completed", "failed", "stopped"])
def test_only_paused_runs_can_be_resumed(make_run: MakeRun, refused: Any, status: str) -> None:
    """The error names the status of the run."""
    run = make_run(RunStatus(status))
    events = Event.objects.count()

    assert refused("agent", "resume", str(run.pk)) == (5, f"only paused runs can be resumed; this one is {status}")
    assert (Event.objects.count(), AgentRun.objects.count()) == (events, 1)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--max-steps", "0"], 7),
        (["--max-steps", "-5"], 7),
        (["--max-steps", "2147483648"], 7),
        (["--message", ""], 7),
        (["--message", "  "], 7),
        (["--message", "x" * 200_001], 7),
    ],
)
def test_invalid_resumes_are_refused(make_run: MakeRun, refused: Any, words: list[str], code: int) -> None:
    """Rows 74, 77, 78."""
    run = make_run(RunStatus.PAUSED)

    assert refused("agent", "resume", str(run.pk), *words)[0] == code
    assert AgentRun.objects.get().status == "paused"


@pytest.mark.breaks_invariants("only the number of its steps is set")
@pytest.mark.parametrize(("steps", "limit"), [(45, 95), (480, 500), (499, 500)])
def test_a_resumed_run_shows_its_step_limit(make_run: MakeRun, command: Command, steps: int, limit: int) -> None:
    """The limit is the budget added to the steps so far, up to 500."""
    run = make_run(RunStatus.PAUSED)
    AgentRun.objects.filter(pk=run.pk).update(step_count=steps)
    row = json.loads(command("agent", "resume", str(run.pk), "--json"))

    assert (row["step_count"], row["step_limit"]) == (steps, limit)


@pytest.mark.breaks_invariants("only the number of its steps is set")
@pytest.mark.parametrize("steps", [500, 501])
def test_no_run_is_created_at_the_limit_of_total_steps(make_run: MakeRun, refused: Any, steps: int) -> None:
    run = make_run(RunStatus.PAUSED)
    AgentRun.objects.filter(pk=run.pk).update(step_count=steps)

    code, line = refused("agent", "resume", str(run.pk))
    assert (code, "used all of its 500 steps" in line, AgentRun.objects.count()) == (5, True, 1)


# --- pause, stop, send ------------------------------------------------------------------------------------------
def test_pause_pauses_the_run(make_run: MakeRun, command: Command) -> None:
    """Row 84: a second pause writes no event."""
    run = make_run()
    assert command("agent", "pause", str(run.pk)) == f"{run.pk} paused (by an operator)\n"
    events = Event.objects.count()
    assert command("agent", "pause", str(run.pk)) == f"{run.pk} paused (by an operator)\n"
    assert Event.objects.count() == events
    assert log.read(run.pk)[-1].payload["by"].startswith("cli:")


def test_stop_stops_the_run(make_run: MakeRun, command: Command) -> None:
    run = make_run(RunStatus.PAUSED)
    assert command("agent", "stop", str(run.pk)) == f"{run.pk} stopped (by an operator)\n"
    row = json.loads(command("agent", "stop", str(run.pk), "--json"))
    assert (row["id"], row["status"]) == (str(run.pk), "stopped")


def test_the_output_says_when_a_running_run_applies_the_command(make_run: MakeRun, command: Command) -> None:
    run = make_run(RunStatus.RUNNING)

    assert command("agent", "pause", str(run.pk)) == f"{run.pk} running; pauses after its current step\n"
    assert command("agent", "stop", str(run.pk)) == f"{run.pk} running; stops at its next step\n"
    assert (
        command("agent", "send", str(run.pk), "Hi")
        == f"{run.pk} running; receives the message before its next model call\n"
    )
    assert list(RunCommand.objects.order_by("id").values_list("type", flat=True)) == ["pause", "stop", "send"]


def test_send_stores_the_message(make_run: MakeRun, command: Command) -> None:
    run = make_run(RunStatus.PAUSED)

    said = command("agent", "send", str(run.pk), "caf\udce9")
    assert said == f"{run.pk} paused (by an operator); receives the message when it is resumed\n"
    sent = RunCommand.objects.get()
    assert (sent.payload, sent.created_by[:4]) == ({"message": "caf\ufffd"}, "cli:")


@pytest.mark.parametrize("status", ["completed", "failed", "stopped"])
@pytest.mark.parametrize("verb", ["pause", "stop", "send"])
def test_an_ended_run_accepts_no_commands(make_run: MakeRun, refused: Any, status: str, verb: str) -> None:
    """Row 81; stopping a stopped run succeeds."""
    run = make_run(RunStatus(status))
    if (verb, status) == ("stop", "stopped"):
        return
    words = ["agent", verb, str(run.pk), *(["Hi"] if verb == "send" else [])]

    assert refused(*words) == (5, f"a {status} run accepts no commands")
    assert not RunCommand.objects.exists()


def test_an_empty_message_is_refused(make_run: MakeRun, refused: Any) -> None:
    assert refused("agent", "send", str(make_run().pk), " ")[0] == 7


def test_a_resumed_run_accepts_no_commands(make_run: MakeRun, command: Command, refused: Any) -> None:
    run = make_run(RunStatus.PAUSED)
    command("agent", "resume", str(run.pk))

    assert refused("agent", "pause", str(run.pk)) == (5, "a resumed run accepts no commands")


def test_a_claim_between_the_lookup_and_the_command_is_respected(make_run: MakeRun, command: Command) -> None:
    """The command decides with the locked row, not with the row of the earlier lookup."""
    run = make_run()
    transitions.claim(run.pk, "a worker")

    assert "running" in command("agent", "pause", str(run.pk))


@pytest.mark.parametrize(("verb", "affected"), [("stop", [0, 1, 2, 3]), ("pause", [0, 1, 3])])
def test_a_dry_run_lists_all_runs_that_a_stop_or_pause_affects(
    make_run: MakeRun, command: Command, verb: str, affected: list[int]
) -> None:
    top = make_run()
    one, two = (make_run(prompt=name, parent_id=top.pk) for name in ("One", "Two"))
    runs = [top, one, two, make_run(prompt="Leaf", parent_id=one.pk)]
    make_run(prompt="Ended", parent_id=top.pk)
    command("agent", "stop", str(AgentRun.objects.get(title="Ended").pk))
    command("agent", "pause", str(two.pk))
    events = Event.objects.count()

    rows = json.loads(command("agent", verb, str(top.pk), "--dry-run", "--json"))
    assert [row["id"] for row in rows] == [str(runs[index].pk) for index in affected]
    assert [line.split()[0] for line in command("agent", verb, str(top.pk), "--dry-run").splitlines()] == [
        row["id"] for row in rows
    ]
    assert Event.objects.count() == events
    command("agent", verb, str(top.pk))
    status = {"stop": "stopped", "pause": "paused"}[verb]
    assert set(AgentRun.objects.filter(pk__in=[runs[i].pk for i in affected]).values_list("status", flat=True)) == {
        status
    }


# --- Signals ----------------------------------------------------------------------------------------------------


def test_a_signal_is_sent_to_a_remote_run(command: Command, db: None) -> None:
    run = Program(make_project()).start_run()
    out = command("agent", "signal", str(run.pk), "payment", "--payload", '{"cents": 5}')
    command("agent", "signal", str(run.pk), "later")

    assert out == f"{run.pk} queued; receives the signal when it waits for it\n"
    payloads = RunCommand.objects.filter(run=run).order_by("received_at").values_list("payload", flat=True)
    assert list(payloads) == [{"name": "payment", "payload": {"cents": 5}}, {"name": "later", "payload": None}]


def test_an_invalid_signal_is_refused(make_run: MakeRun, refused: Any, db: None) -> None:
    run = Program(make_project()).start_run()
    code, line = refused("agent", "signal", str(run.pk), "payment", "--payload", "{")
    assert code == 7
    assert line.startswith("--payload must be JSON: ")
    code, line = refused("agent", "signal", str(make_run().pk), "payment")
    assert line == "only runs of durable functions receive signals"
    assert not RunCommand.objects.exists()
