"""Fork: another run continues from a checkpoint, with exactly the conversation up to that checkpoint."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage
from pytest_django import Settings

from runs.actions.fork import fork
from runs.actions.resume import resume
from runs.conversation import transcript
from runs.conversation.transcript import text_of
from runs.errors import RunNotFound
from runs.models import AgentRun, AgentRunMessage, Checkpoint
from runs.statuses import RunStatus
from runs.upkeep import invariants
from runs.upkeep.replay_check import differences
from tests.support.engine import MakeScripted, endless, plain, texts
from tests.support.factories import drive
from tests.support.run_checks import check, events, refuses
from timeline.events import describe

pytestmark = pytest.mark.django_db(transaction=True)
Requests = list[tuple[int, list[ModelMessage]]]
INSTRUCTIONS, PROMPT = "> Follow the script.", "> Go."


def step(number: int) -> list[str]:
    return [f"< Step {number}.", f"< call-{number}", f"> did {number}"]


def whole(*runs: AgentRun) -> None:
    """Check each run, compare its log with its rows, and check all invariants."""
    for run in runs:
        check(run)
        assert differences(run.pk) == []
    assert invariants.check() == []


def test_a_fork_continues_from_the_checkpoint_with_the_conversation_up_to_it(scripted: MakeScripted) -> None:
    """No message appears twice, and no message from after the checkpoint appears."""
    requests: Requests = []
    run = drive(scripted(endless(requests), max_steps=4))

    forked = fork(run.pk, by="ann", step=2, message="Another way, please.")

    assert (forked.forked_from_id, forked.forked_at_step, forked.root_run_id) == (run.pk, 2, forked.pk)
    assert (forked.step_base, forked.step_count, forked.max_steps, forked.resumed_from_id) == (2, 2, 4, None)
    assert [m.role for m in forked.messages.all()] == ["user"], "what was said before is copied"
    whole(forked)
    forked = drive(forked)
    assert requests[4][0] == 3
    assert texts(requests[4][1]) == [INSTRUCTIONS, PROMPT, *step(1), *step(2), "> Another way, please."]
    assert (forked.status, forked.step_count) == (RunStatus.PAUSED, 6)
    run.refresh_from_db()
    assert (run.status, run.step_count) == (RunStatus.PAUSED, 4)
    whole(run, forked)


def test_a_fork_without_a_message_repeats_the_model_request(scripted: MakeScripted) -> None:
    """The request is identical to the request of the step after the checkpoint."""
    requests: Requests = []
    run = drive(scripted(endless(requests), max_steps=3))

    forked = drive(fork(run.pk, by="ann", step=1))

    assert requests[3][0] == requests[1][0] == 2
    assert [plain(one) for one in requests[3][1]] == [plain(one) for one in requests[1][1]]
    whole(run, forked)


def test_a_fork_of_an_ended_run_gets_the_message_continue(scripted: MakeScripted) -> None:
    run = drive(scripted(calls=[["ledger_read"]]))
    assert (run.status, run.step_count) == (RunStatus.COMPLETED, 2)

    forked = fork(run.pk, by="ann", step=2)

    assert [text_of(m.content) for m in forked.messages.all()] == ["continue"]
    assert drive(forked).status == RunStatus.COMPLETED
    whole(run, forked)


def test_a_fork_of_a_resumed_run_includes_its_lineage(scripted: MakeScripted) -> None:
    requests: Requests = []
    run = drive(scripted(endless(requests), max_steps=2))
    later = drive(resume(run.pk, by="ann", message="On.").run)

    late = drive(fork(later.pk, by="ann", step=3, message="Late."))
    early = drive(fork(later.pk, by="ann", step=1, message="Early."))

    assert (late.forked_from_id, early.forked_from_id) == (later.pk, run.pk), "not the run that made the checkpoint"
    assert texts(requests[4][1]) == [INSTRUCTIONS, PROMPT, *step(1), *step(2), "> On.", *step(3), "> Late."]
    assert texts(requests[6][1]) == [INSTRUCTIONS, PROMPT, *step(1), "> Early."]
    whole(run, later, late, early)


def test_a_fork_can_be_forked_and_resumed(scripted: MakeScripted) -> None:
    requests: Requests = []
    run = drive(scripted(endless(requests), max_steps=2))
    first = drive(fork(run.pk, by="ann", step=1, message="First."))
    assert first.step_count == 3
    again = drive(resume(first.pk, by="ann", message="Again.").run)
    second = drive(fork(again.pk, by="ann", step=4, message="Second."))

    told = [INSTRUCTIONS, PROMPT, *step(1), "> First.", *step(2), *step(3), "> Again.", *step(4), "> Second."]
    assert texts(requests[6][1]) == told
    assert requests[6][0] == 5
    assert again.root_run_id == first.pk
    # The parent of a fork is the run that made the step: here the first fork, not its source.
    assert fork(first.pk, by="ann", step=2).forked_from_id == first.pk
    assert fork(first.pk, by="ann", step=1).forked_from_id == run.pk
    whole(run, first, again, second)


def test_a_fork_paused_before_its_first_step_resumes_in_its_conversation(scripted: MakeScripted) -> None:
    from runs.lifecycle import inbox

    requests: Requests = []
    run = drive(scripted(endless(requests), max_steps=2))
    forked = fork(run.pk, by="ann", step=1)
    inbox.pause(forked.pk, by="ann")

    later = drive(resume(forked.pk, by="ann", message="Now.").run)

    assert not later.starts_fresh
    assert texts(requests[2][1]) == [INSTRUCTIONS, PROMPT, *step(1), "> Now."]
    whole(run, forked, later)


def test_changed_instructions_replace_the_earlier_ones(scripted: MakeScripted) -> None:
    """Only the newest instructions are sent; both stay stored in their runs, and the event records the change."""
    requests: Requests = []
    run = drive(scripted(endless(requests), max_steps=2))

    forked = drive(fork(run.pk, by="ann", step=1, agent={"instructions": "Be brief.", "max_steps": 1}))
    later = drive(resume(forked.pk, by="ann", message="On.").run)
    third = drive(fork(later.pk, by="ann", step=3, agent={"instructions": "Be long."}))

    assert texts(requests[2][1]) == ["> Be brief.", PROMPT, *step(1)]
    assert texts(requests[3][1])[:2] == ["> Be brief.", PROMPT]
    assert texts(requests[4][1]) == ["> Be long.", PROMPT, *step(1), *step(2), "> On.", *step(3)]
    said = AgentRunMessage.objects.filter(role="system").order_by("created_at")
    assert [(m.run_id, text_of(m.content)) for m in said] == [
        (run.pk, "Follow the script."),
        (forked.pk, "Be brief."),
        (third.pk, "Be long."),
    ]
    assert (forked.max_steps, forked.agent_config["max_steps"], forked.agent_config["instructions"]) == (
        1,
        1,
        "Be brief.",
    )
    created = events(forked)[0].payload
    assert (created["forked_from"], created["forked_at_step"]) == (str(run.pk), 1)
    assert created["changed"] == ["instructions", "max_steps"]
    told = describe("run.created", created)
    assert f"as a fork of {run.pk} after step 1 with changed instructions and max steps" in told
    whole(run, forked, later, third)


@pytest.mark.breaks_invariants("a message is struck out by hand")
def test_a_fork_leaves_out_rolled_back_messages(scripted: MakeScripted) -> None:
    requests: Requests = []
    run = drive(scripted(endless(requests), max_steps=2))
    forked = fork(run.pk, by="ann", step=2)
    before = transcript.rows_of(forked)
    one = before[-1]
    AgentRunMessage.objects.filter(pk=one.pk).update(rolled_back_at=one.created_at)

    assert [row.pk for row in transcript.rows_of(forked)] == [row.pk for row in before[:-1]]


def test_a_resume_with_append_false_drops_the_conversation_of_the_fork(scripted: MakeScripted) -> None:
    requests: Requests = []
    run = drive(scripted(endless(requests), max_steps=1))
    forked = drive(fork(run.pk, by="ann", step=1))

    later = drive(resume(forked.pk, by="ann", message="Anew.", append=False).run)

    assert texts(requests[2][1]) == [INSTRUCTIONS, "> Anew."]
    with refuses("no_checkpoint"):
        fork(later.pk, by="ann", step=1)
    whole(run, forked, later)


def test_the_limit_of_total_steps_counts_the_steps_before_the_fork(scripted: MakeScripted, settings: Settings) -> None:
    settings.AGENTOPS_MAX_TOTAL_STEPS = 4
    run = drive(scripted(endless([]), max_steps=4))
    forked = drive(fork(run.pk, by="ann", step=3))

    assert (forked.status, forked.status_reason, forked.step_count) == (RunStatus.PAUSED, "max_steps", 4)
    before = AgentRun.objects.count()
    with refuses("max_total_steps_exceeded"):
        fork(run.pk, by="ann", step=4)
    assert AgentRun.objects.count() == before


@pytest.mark.parametrize(
    ("options", "code", "pointer"),
    [
        ({}, "invalid_input", "/step"),
        ({"step": 9}, "no_checkpoint", "/step"),
        ({"step": 0}, "no_checkpoint", "/step"),
        ({"step": 1, "message": " "}, "message_empty", "/message"),
        ({"step": 1, "agent": {"model": ""}}, "invalid_agent", "/agent/model"),
        ({"step": 1, "agent": {"max_steps": 0}}, "invalid_agent", "/agent/max_steps"),
        ({"step": 1, "agent": {"max_steps": True}}, "invalid_agent", "/agent/max_steps"),
        ({"step": 1, "agent": {"instructions": ""}}, "invalid_agent", "/agent/instructions"),
        ({"step": 1, "agent": {"settings": []}}, "invalid_agent", "/agent/settings"),
        ({"step": 1, "agent": {"tools": []}}, "invalid_agent", "/agent/tools"),
    ],
    ids=str,
)
def test_a_fork_refuses_invalid_options_and_writes_nothing(
    scripted: MakeScripted, options: dict[str, Any], code: str, pointer: str
) -> None:
    run = drive(scripted(calls=[["ledger_read"]]))
    before = (AgentRun.objects.count(), len(events(run)))

    with refuses(code) as refused:
        fork(run.pk, by="ann", **options)

    assert refused.value.data["pointer"] == pointer
    assert (AgentRun.objects.count(), len(events(run))) == before


def test_a_fork_refuses_a_checkpoint_of_another_conversation(scripted: MakeScripted) -> None:
    run, other = drive(scripted(endless([]), max_steps=2)), drive(scripted(endless([]), max_steps=2))
    theirs = Checkpoint.objects.get(run=other, step_number=1)
    forked = fork(other.pk, by="ann", checkpoint_id=theirs.pk)
    assert (forked.forked_from_id, forked.forked_at_step) == (other.pk, 1)

    with refuses("no_checkpoint"):
        fork(run.pk, by="ann", checkpoint_id=theirs.pk)
    # A checkpoint of the source run, but after the fork.
    with refuses("no_checkpoint"):
        fork(forked.pk, by="ann", checkpoint_id=Checkpoint.objects.get(run=other, step_number=2).pk)
    with pytest.raises(RunNotFound):
        fork(theirs.pk, by="ann", step=1)
