"""Resume: a new run continues a paused run, with the whole conversation and a new step budget."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connection, connections
from pydantic_ai.messages import ModelMessage, ModelRequest
from pytest_django import Settings

from runs.actions.resume import ResumeResult, resume
from runs.errors import InvalidMaxSteps, MessageEmpty
from runs.lifecycle import inbox
from runs.models import AgentRun, AgentRunMessage, RunCommand
from runs.providers import messages
from runs.statuses import RunStatus
from runs.worker.worker import Worker
from tests.support.engine import MakeScripted, endless, plain, texts
from tests.support.factories import drive, make_agent, make_run
from tests.support.run_checks import check, events, refuses

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_resume_continues_at_the_next_step_with_the_whole_conversation(scripted: MakeScripted) -> None:
    requests: list[tuple[int, list[ModelMessage]]] = []
    run = drive(scripted(endless(requests), max_steps=3))

    assert (run.status, run.status_reason, run.step_count) == (RunStatus.PAUSED, "max_steps", 3)
    check(run)
    later = drive(resume(run.pk, by="ann", message="Go on, please.").run)

    run.refresh_from_db()
    assert run.status == RunStatus.RESUMED
    assert (later.status, later.step_base, later.step_count) == (RunStatus.PAUSED, 3, 6)
    assert [number for number, _ in requests] == [1, 2, 3, 4, 5, 6]
    assert texts(requests[3][1]) == [
        "> Follow the script.",
        "> Go.",
        "< Step 1.",
        "< call-1",
        "> did 1",
        "< Step 2.",
        "< call-2",
        "> did 2",
        "< Step 3.",
        "< call-3",
        "> did 3",
        "> Go on, please.",
    ]
    assert sorted({m.step_number for m in later.messages.all()}) == [4, 5, 6]
    check(later)


def test_the_message_of_a_resume_is_recorded_as_a_command(scripted: MakeScripted) -> None:
    """The command records the sender and comes before the message; a resume without a message records no command."""
    run = drive(scripted(endless([]), max_steps=1))
    new = resume(run.pk, by="ann", message="Go on with token=sk_live_abcdefghijklmnop1234.").run
    bare = resume(drive(new).pk, by="ann").run

    command = RunCommand.objects.get(run=new)
    assert (command.type, command.created_by, command.applied_at is not None) == ("send", "ann", True)
    created, received, added = events(new)[:3]
    assert [e.type for e in (created, received, added)] == ["run.created", "command.received", "message.added"]
    assert (received.payload["by"], received.payload["type"], received.phase) == ("ann", "send", "queued")
    assert received.payload["payload"] == command.payload
    assert AgentRunMessage.objects.get(pk=added.ref_id).content["parts"][0]["content"] == command.payload["message"]
    assert not RunCommand.objects.filter(run=bare).exists()
    check(new)


def test_fifty_concurrent_resumes_create_one_run(scripted: MakeScripted) -> None:
    run = drive(scripted(endless([]), max_steps=1))
    answers: list[ResumeResult | Exception] = []
    gate = threading.Barrier(50)

    def click() -> None:
        try:
            gate.wait(60)
            answers.append(resume(run.pk, by="ann"))
        except Exception as error:
            answers.append(error)
        finally:
            connections.close_all()

    clicks = [threading.Thread(target=click) for _ in range(50)]
    for each in clicks:
        each.start()
    for each in clicks:
        each.join(60)

    assert not [answer for answer in answers if isinstance(answer, Exception)]
    assert len(answers) == 50
    found = [answer for answer in answers if isinstance(answer, ResumeResult)]
    assert len({answer.run.pk for answer in found}) == 1
    assert sum(not answer.is_existing for answer in found) == 1
    assert AgentRun.objects.filter(resumed_from=run).count() == 1
    assert [event.type for event in events(run)].count("run.resumed") == 1


def test_a_chain_of_resumes_rebuilds_every_message_once(scripted: MakeScripted) -> None:
    requests: list[tuple[int, list[ModelMessage]]] = []
    run = drive(scripted(endless(requests), max_steps=2))
    chain = [run]
    for number in range(3):
        chain.append(drive(resume(chain[-1].pk, by="ann", message=f"Again {number}.").run))
        assert (chain[-1].status, chain[-1].step_count) == (RunStatus.PAUSED, 4 + 2 * number)

    assert [number for number, _ in requests] == list(range(1, 9))
    for each in chain:
        check(each)
    rows = [m for each in chain for m in AgentRunMessage.objects.filter(run=each).order_by("position")]
    # The last request holds every message once and in order, except the last answer and its result.
    sent = requests[-1][1]
    stored = messages.merge(messages.load(row.content) for row in rows[:-2])
    assert [plain(message) for message in sent] == [plain(message) for message in stored]
    said = texts(sent)
    assert len(said) == len(set(said))
    assert {each.root_run_id for each in chain} == {run.pk}
    kinds = [isinstance(message, ModelRequest) for message in sent]
    assert kinds == [number % 2 == 0 for number in range(len(kinds))], "turns do not alternate"


def test_the_limit_of_total_steps_ends_a_lineage_exactly(scripted: MakeScripted, settings: Settings) -> None:
    settings.AGENTOPS_MAX_TOTAL_STEPS = 5
    run = drive(scripted(endless([]), max_steps=3))
    later = drive(resume(run.pk, by="ann").run)

    assert (later.status, later.status_reason, later.step_count) == (RunStatus.PAUSED, "max_steps", 5)
    before = AgentRun.objects.count()
    with refuses("max_total_steps_exceeded"):
        resume(later.pk, by="ann")
    assert AgentRun.objects.count() == before
    later.refresh_from_db()
    assert later.status == RunStatus.PAUSED


def test_a_resume_with_append_false_starts_a_new_conversation(scripted: MakeScripted) -> None:
    requests: list[tuple[int, list[ModelMessage]]] = []
    run = drive(scripted(endless(requests), max_steps=2))

    later = drive(resume(run.pk, by="ann", message="Something else.", append=False).run)

    assert texts(requests[2][1]) == ["> Follow the script.", "> Something else."]
    assert requests[2][0] == 3
    assert (later.step_base, later.step_count) == (2, 4)
    again = drive(resume(later.pk, by="ann").run)
    assert texts(requests[4][1])[:2] == ["> Follow the script.", "> Something else."]
    check(again)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"message": "  "}, MessageEmpty),
        ({"max_steps": 0}, InvalidMaxSteps),
        ({"max_steps": True}, InvalidMaxSteps),
        ({"max_steps": "5"}, InvalidMaxSteps),
    ],
)
def test_a_resume_refuses_invalid_options_and_writes_nothing(
    scripted: MakeScripted, options: dict[str, Any], error: type[Exception]
) -> None:
    run = drive(scripted(endless([]), max_steps=1))
    before = (AgentRun.objects.count(), len(events(run)))

    with pytest.raises(error):
        resume(run.pk, by="ann", **options)

    run.refresh_from_db()
    assert (run.status, AgentRun.objects.count(), len(events(run))) == (RunStatus.PAUSED, *before)


def test_only_a_paused_run_can_be_resumed(scripted: MakeScripted) -> None:
    queued = scripted()
    with refuses("run_not_paused") as refused:
        resume(queued.pk, by="ann")
    assert refused.value.data["run_status"] == "queued"
    done = drive(queued)
    with refuses("run_not_paused"):
        resume(done.pk, by="ann")


def test_a_resume_changes_both_runs_in_one_transaction(scripted: MakeScripted, monkeypatch: pytest.MonkeyPatch) -> None:
    from runs.lifecycle import transitions

    run = drive(scripted(endless([]), max_steps=1))

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("the process ends here")

    with monkeypatch.context() as patch:
        patch.setattr(transitions, "move", refuse)
        with pytest.raises(RuntimeError):
            resume(run.pk, by="ann")

    assert AgentRun.objects.count() == 1
    assert resume(run.pk, by="ann").is_existing is False
    assert resume(run.pk, by="ann").is_existing is True


def test_a_resume_gets_a_new_step_budget(scripted: MakeScripted, worker: Worker) -> None:
    run = drive(scripted(endless([]), max_steps=2), worker)
    later = drive(resume(run.pk, by="ann", max_steps=4).run, worker)

    assert (later.step_base, later.step_count, later.status) == (2, 6, RunStatus.PAUSED)
    assert not connection.in_atomic_block


def test_a_lowered_limit_also_lowers_the_budget_of_a_resume(settings: Settings) -> None:
    """A budget above the current limit must not keep the run paused forever."""
    run = make_run(make_agent(max_steps=500))
    inbox.pause(run.pk, by="test")
    settings.AGENTOPS_MAX_TOTAL_STEPS = 60

    assert resume(run.pk, by="test").run.max_steps == 60
