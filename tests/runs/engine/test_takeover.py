"""A worker loses its run without noticing: only the fence at its next write stops it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest

from runs import chaos
from runs.conversation import transcript as transcripts
from runs.conversation.transcript import Conversation
from runs.engine import leases
from runs.lifecycle import inbox
from runs.models import AgentRun, Approval, Attempt, RunCommand
from runs.statuses import RunStatus
from runs.worker.worker import Worker
from tests.support.child_processes import OUTSIDE_TRANSACTIONS
from tests.support.engine import Died, MakeScripted, with_hooks
from tests.support.factories import drive
from tests.support.run_checks import check, events, transcript

pytestmark = pytest.mark.django_db(transaction=True)
CALLS = [["ledger_idempotent", "ledger_read"], ["ledger_once"]]
#: Points outside transactions only: inside one, the row is locked and the run cannot be taken over.
POINTS = OUTSIDE_TRANSACTIONS


@pytest.fixture
def pair(worker: Worker) -> Iterator[tuple[Worker, Worker]]:
    """Return the worker that loses its run and the worker that takes it over."""
    other = Worker()
    yield worker, other
    other.close(5)


@pytest.fixture
def drive_until_taken_over(pair: tuple[Worker, Worker], monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Drive a run with the first worker; at a crash point, the second worker takes the run over.

    A real takeover takes longer than a write proves the lease; here the proof expires immediately.
    """
    worker, other = pair
    monkeypatch.setattr(leases, "PROOF_PART", 0)

    def go(run: AgentRun, point: str) -> None:
        left = [1]

        def take_over(name: str) -> None:
            if name == point and left:
                left.pop()
                AgentRun.objects.filter(pk=run.pk).update(lease_expires_at=datetime(2020, 1, 1, tzinfo=UTC))
                assert other.drive(run.pk)

        monkeypatch.setattr(chaos, "point", take_over)
        assert worker.drive(run.pk)
        assert not left, "the point was never met"

    return go


@pytest.mark.parametrize("point", POINTS)
def test_a_worker_that_lost_its_run_writes_nothing_more(
    scripted: MakeScripted,
    pair: tuple[Worker, Worker],
    drive_until_taken_over: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    point: str,
) -> None:
    _, other = pair
    script = {"chunks": 6, "pause_s": 0.05} if point == "model.streaming" else {}
    undisturbed = transcript(drive(scripted(calls=CALLS, **script), other))
    run = scripted(calls=CALLS, **script)
    ledger = Path(run.agent_config["settings"]["ledger"])
    ledger.unlink()

    drive_until_taken_over(run, point)

    check(run)
    assert (run.status, run.lease_epoch) == (RunStatus.COMPLETED, 2)
    assert transcript(run) == undisturbed
    lines = events(run)
    [taken_over] = [event.seq for event in lines if event.type == "run.recovered"]
    assert not [event for event in lines if event.epoch == 1 and event.seq > taken_over]
    epochs = [int(line.split(" ")[4]) for line in ledger.read_text().splitlines()]
    assert epochs == sorted(epochs), "a tool was run for the worker that was taken over"
    assert list(Attempt.objects.filter(run=run).order_by("epoch").values_list("end_reason", flat=True)) == [
        "fenced",
        "completed",
    ]
    assert "outside of any rule" not in caplog.text


def test_a_worker_that_lost_its_run_does_not_deliver_a_message(
    scripted: MakeScripted,
    pair: tuple[Worker, Worker],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The new holder has delivered it; the old worker gets the fencing error, not an error of a duplicate position."""
    worker, other = pair
    run = scripted(calls=[])
    inbox.send(run.pk, "And one more thing.", by="somebody")
    pending, left = inbox.pending_commands, [1]

    def take_over(run_id: UUID) -> list[RunCommand]:
        commands = pending(run_id)
        if left:
            left.pop()
            AgentRun.objects.filter(pk=run.pk).update(lease_expires_at=datetime(2020, 1, 1, tzinfo=UTC))
            assert other.drive(run.pk)
        return commands

    monkeypatch.setattr(inbox, "pending_commands", take_over)
    assert worker.drive(run.pk)
    assert not left, "no message was taken"

    check(run)
    assert run.status == RunStatus.COMPLETED
    assert [m.content["parts"][0]["content"] for m in run.messages.filter(role="user")].count(
        "And one more thing."
    ) == 1
    assert Attempt.objects.get(run=run, epoch=1).end_reason == "fenced"
    assert "outside of any rule" not in caplog.text


def test_a_worker_that_lost_its_run_while_loading_drops_the_loaded_data(
    scripted: MakeScripted,
    pair: tuple[Worker, Worker],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It has loaded the conversation, and then the calls of an answer that was stored later."""
    worker, other = pair
    run = scripted(calls=CALLS)
    load, left = transcripts.load, [1]

    def die_after_the_answer(name: str) -> None:
        if name == "turn.committed":
            raise Died

    def take_over(found: AgentRun) -> Conversation:
        conversation = load(found)
        if left:
            left.pop()
            AgentRun.objects.filter(pk=run.pk).update(lease_expires_at=datetime(2020, 1, 1, tzinfo=UTC))
            with monkeypatch.context() as dying:
                dying.setattr(chaos, "point", die_after_the_answer)
                with pytest.raises(Died):
                    other.drive(run.pk)
        return conversation

    monkeypatch.setattr(transcripts, "load", take_over)
    assert worker.drive(run.pk)
    assert not left, "nothing was loaded"

    AgentRun.objects.filter(pk=run.pk).update(lease_expires_at=datetime(2020, 1, 1, tzinfo=UTC))
    run = drive(run, worker)
    check(run)
    assert run.status == RunStatus.COMPLETED
    assert Attempt.objects.get(run=run, epoch=1).end_reason == "fenced"
    assert "outside of any rule" not in caplog.text


def test_a_worker_that_lost_its_run_requests_no_second_approval(
    scripted: MakeScripted, drive_until_taken_over: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """It gets the fencing error, not an error about the existing approval."""
    rules = [{"tools": "ledger_.*", "action": "ask", "reason": "it writes"}]
    run = with_hooks(scripted(calls=[["ledger_once"]]), approvals=rules)

    drive_until_taken_over(run, "approval.before")

    check(run)
    assert (run.status, run.status_reason, run.lease_epoch) == (RunStatus.WAITING, "approval", 2)
    assert Approval.objects.filter(run=run).count() == 1
    assert "unexpected error" not in caplog.text
