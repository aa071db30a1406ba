"""`agentops agent resume --all`: the selected runs, the confirmation before active runs are taken, and the output."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from agentops.accounts.access import SYSTEM
from agentops.accounts.memberships import create_project
from agentops.accounts.models import AuditEntry
from runs.actions import agent_definitions
from runs.lifecycle import creation, inbox
from runs.models import AgentRun
from runs.statuses import RunStatus
from tests.support.command_line import DEFINITION, Command

P, Q, S = RunStatus.PAUSED, RunStatus.QUEUED, RunStatus.STOPPED


def lines(text: str) -> dict[str, tuple[str, str]]:
    return {cells[1]: (cells[0], cells[2]) for cells in (line.split("\t") for line in text.splitlines())}


def test_all_paused_runs_are_resumed_and_the_others_are_listed(
    make_run: Callable[..., AgentRun], command: Command
) -> None:
    """Without --kill, active runs are skipped with a reason."""
    paused, live, _ = (make_run(status) for status in (P, Q, S))
    told = lines(command("agent", "resume", "--all", "--message", "Go on."))

    new = AgentRun.objects.get(resumed_from=paused)
    assert told == {
        str(paused.pk): ("resumed", str(new.pk)),
        str(live.pk): ("skipped", "run_not_paused: only paused runs can be resumed; this one is queued"),
    }
    assert new.prompt == "Go on."
    assert AuditEntry.objects.get(action="run.resumed").actor.startswith("cli:")
    assert list(lines(command("agent", "resume", "--all"))) == [str(live.pk), str(new.pk)]


def test_resume_all_can_be_limited_to_a_project(
    make_run: Callable[..., AgentRun], command: Command, refused: Any
) -> None:
    mine = make_run(P)
    beta = create_project("beta", "Beta", actor=SYSTEM)
    other = creation.create(beta, agent_definitions.apply(beta, DEFINITION, by="test")[0], "Hello", by="test")
    inbox.pause(other.pk, by="test")

    assert list(lines(command("agent", "resume", "--all", "--project", "beta"))) == [str(other.pk)]
    assert AgentRun.objects.get(pk=mine.pk).status == "paused"
    assert refused("agent", "resume", "--all", "--project", "nowhere")[0] == 3


@pytest.mark.parametrize(
    "words",
    [[], ["--all", "0123"], ["--kill"], ["--project", "alpha", "0123"], ["--all", "--replace"], ["--dry-run"]],
    ids=" ".join,
)
def test_invalid_options_exit_with_2(db: None, refused: Any, words: list[str]) -> None:
    """Neither a run nor --all, both, or an option of the other form."""
    assert refused("agent", "resume", *words)[0] == 2


def test_unknown_and_ambiguous_ids_have_exit_codes(make_run: Callable[..., AgentRun], refused: Any) -> None:
    """An unknown ID exits with 3; an ambiguous prefix, or a single character, exits with 4 and lists the
    candidates.
    """
    runs = [make_run(P) for _ in range(2)]
    shared = str(runs[0].pk)[:8]
    assert str(runs[1].pk).startswith(shared[:4])

    assert refused("agent", "resume", "ffffffff")[0] == 3
    for beginning in (shared[:4], shared[:1]):
        code, line = refused("agent", "resume", beginning)
        assert code == 4
        assert all(str(run.pk) in line for run in runs)
    assert AgentRun.objects.count() == 2


def test_live_runs_are_taken_only_where_confirmed(
    make_run: Callable[..., AgentRun], command: Command, refused: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal, --yes is required; on a terminal, the command asks."""
    live, running = make_run(Q), make_run(RunStatus.RUNNING)
    before = list(AgentRun.objects.order_by("pk").values())

    code, line = refused("agent", "resume", "--all", "--kill")
    assert (code, "2 active runs" in line, "--yes" in line) == (5, True, True)
    assert "resumed" in command("agent", "resume", "--all", "--kill", "--dry-run")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: "n")
    assert refused("agent", "resume", "--all", "--kill")[0] == 5
    assert list(AgentRun.objects.order_by("pk").values()) == before

    told = lines(command("agent", "resume", "--all", "--kill", "--yes"))
    assert {told[str(run.pk)][0] for run in (live, running)} == {"resumed"}
    assert AuditEntry.objects.filter(action="run.killed").count() == 2


def test_ctrl_d_cancels(make_run: Callable[..., AgentRun], refused: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    run = make_run(RunStatus.RUNNING)
    monkeypatch.setattr("sys.stdin", Terminal())

    assert refused("agent", "resume", "--all", "--kill") == (5, "cancelled: nothing was changed")
    assert AgentRun.objects.get(pk=run.pk).status == "running"


def test_resume_all_without_paused_runs_succeeds(make_run: Callable[..., AgentRun], command: Command) -> None:
    """Both lists are empty, and this is not an error."""
    make_run(S)

    assert json.loads(command("agent", "resume", "--all", "--json")) == {"resumed": [], "skipped": []}


@pytest.mark.breaks_invariants("only the number of its steps is set")
def test_a_run_that_cannot_be_resumed_does_not_affect_the_others(
    make_run: Callable[..., AgentRun], command: Command
) -> None:
    """An active run that cannot be resumed is not taken from its worker."""
    capped, live = make_run(RunStatus.RUNNING), make_run(RunStatus.RUNNING)
    AgentRun.objects.filter(pk=capped.pk).update(step_count=500)
    told = lines(command("agent", "resume", "--all", "--kill", "--yes"))

    assert (told[str(live.pk)][0], told[str(capped.pk)][0]) == ("resumed", "skipped")
    assert told[str(capped.pk)][1].startswith("max_total_steps_exceeded")
    before = capped.lease_epoch
    capped.refresh_from_db()
    assert (capped.status, capped.lease_epoch) == ("running", before)


def test_a_single_run_can_be_killed(make_run: Callable[..., AgentRun], command: Command) -> None:
    run = make_run(RunStatus.RUNNING)
    [line] = command("agent", "resume", str(run.pk), "--kill", "--dry-run").splitlines()
    assert line == f"resumed\t{run.pk}\t-"
    assert AgentRun.objects.get(pk=run.pk).status == "running"
    new = command("agent", "resume", str(run.pk), "--kill").strip()
    assert str(AgentRun.objects.get(resumed_from=run).pk) == new


def test_resume_all_prints_json(make_run: Callable[..., AgentRun], command: Command) -> None:
    paused, live = make_run(P), make_run(Q)
    told = json.loads(command("agent", "resume", "--all", "--json"))

    new = AgentRun.objects.get(resumed_from=paused)
    assert told["resumed"] == [{"id": str(paused.pk), "resumed_as": str(new.pk)}]
    assert [(one["id"], one["code"]) for one in told["skipped"]] == [(str(live.pk), "run_not_paused")]
