"""Kill: a running run is taken from its worker and resumed; only the fence at its next write stops the worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from runs import chaos
from runs.actions.resume import ResumeResult, resume
from runs.lifecycle import inbox, transitions
from runs.models import AgentRun, AgentRunToolCall, Attempt
from runs.statuses import RunStatus
from runs.worker.worker import Worker
from tests.support.child_processes import OUTSIDE_TRANSACTIONS
from tests.support.engine import MakeScripted
from tests.support.factories import drive
from tests.support.run_checks import check, events

pytestmark = pytest.mark.django_db(transaction=True)
CALLS = [["ledger_idempotent", "ledger_read"], ["ledger_once"], ["ledger_read"]]
#: Points outside transactions only: inside one, kill waits for the lock on the run's row.
POINTS = OUTSIDE_TRANSACTIONS


@pytest.mark.parametrize("point", POINTS)
def test_a_worker_whose_run_was_killed_writes_nothing_more(
    scripted: MakeScripted,
    worker: Worker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    point: str,
) -> None:
    """One transaction fences (epoch + 1), pauses and resumes, whichever crash point the worker is at."""
    run = scripted(calls=CALLS, **({"chunks": 6, "pause_s": 0.05} if point == "model.streaming" else {}))
    ledger = Path(run.agent_config["settings"]["ledger"])
    done: list[ResumeResult] = []

    def kill(name: str) -> None:
        if name == point and not done:
            done.append(resume(run.pk, by="ann", message="Go on.", kill=True))

    monkeypatch.setattr(chaos, "point", kill)
    assert worker.drive(run.pk)
    monkeypatch.undo()
    [outcome] = done

    check(run)
    assert outcome.status_before is RunStatus.RUNNING
    assert (run.status, run.lease_epoch, run.lease_owner) == (RunStatus.RESUMED, 2, None)
    # The result of a tool that ends later is stored as late, because the worker no longer holds the run.
    lines = [event for event in events(run) if not event.late]
    [paused] = [event for event in lines if event.type == "run.paused"]
    assert (paused.payload["reason"], paused.payload["by"], lines[-1].type) == ("operator", "ann", "run.resumed")
    # The pause event follows the worker's last event; no event of the worker follows it.
    assert not [event for event in lines if event.source == "worker" and event.seq > paused.seq]
    ends = list(Attempt.objects.filter(run=run).order_by("epoch").values_list("owner", "end_reason"))
    assert ends[1:] == [("ann", "killed")]
    assert ends[0][1] in ("fenced", "operator")

    later = drive(AgentRun.objects.get(pk=outcome.run.pk), worker)
    check(later)
    assert later.status == RunStatus.COMPLETED
    effects = [line.split(" ")[1] for line in ledger.read_text().splitlines()] if ledger.exists() else []
    once = AgentRunToolCall.objects.filter(tool_name="ledger_once").values_list("call_id", flat=True)
    assert all(effects.count(call_id) <= 1 for call_id in once)
    assert "outside of any rule" not in caplog.text


def test_a_kill_answers_earlier_commands(scripted: MakeScripted) -> None:
    run = scripted(calls=CALLS)
    assert transitions.claim(run.pk, "worker")
    for wish in (inbox.pause, inbox.stop):
        wish(run.pk, by="ann")
    inbox.send(run.pk, "Not lost.", by="ann")

    new = resume(run.pk, by="ann", kill=True).run

    assert inbox.pending_commands(run.pk) == []
    assert [row.content["parts"][0]["content"] for row in new.messages.order_by("position")] == [
        "Not lost.",
        "continue",
    ]
    check(run)
