"""Every accepted command ends as applied, superseded or refused, on every path of a run (invariant O2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from runs.actions.fork import fork
from runs.actions.resume import resume
from runs.lifecycle import inbox, transitions
from runs.models import AgentRun, RunCommand
from runs.providers.base import ModelCall
from runs.statuses import RunStatus
from runs.worker.worker import Worker
from tests.support.engine import MakeScripted, elsewhere, http, time_has_come, with_policies
from tests.support.factories import drive
from tests.support.run_checks import check
from tests.support.scripted_model import Move

pytestmark = pytest.mark.django_db(transaction=True)
CALLS = [["ledger_read"]]
Wish = Callable[..., Any]


def outcomes(run: AgentRun) -> list[tuple[str, str | None]]:
    return list(RunCommand.objects.filter(run=run).order_by("id").values_list("type", "outcome"))


def asking(run_of: list[AgentRun], wishes: Iterable[Callable[[AgentRun], Any]], *moves: Move) -> Callable[..., Any]:
    """Return a play that posts the wishes during the first model call."""
    left = list(wishes)

    def play(_: ModelCall) -> Iterable[Move]:
        while left:
            wish = left.pop(0)
            yield elsewhere(lambda wish=wish: wish(run_of[0]))  # type: ignore[misc]
        yield from moves or ["Done."]

    return play


def asked(scripted: MakeScripted, *wishes: Callable[[AgentRun], Any], moves: Iterable[Move] = ()) -> AgentRun:
    holder: list[AgentRun] = []
    run = scripted(asking(holder, wishes, *moves))
    holder.append(run)
    return run


def pause(run: AgentRun) -> Any:
    return inbox.pause(run.pk, by="ann")


def stop(run: AgentRun) -> Any:
    return inbox.stop(run.pk, by="ann")


def send(run: AgentRun) -> Any:
    return inbox.send(run.pk, "Mind the gap.", by="ann")


def test_the_first_of_several_pauses_is_applied_and_the_others_are_superseded(scripted: MakeScripted) -> None:
    run = drive(asked(scripted, pause, pause, pause, send))

    assert (run.status, run.status_reason) == (RunStatus.PAUSED, "operator")
    assert outcomes(run) == [
        ("pause", "applied"),
        ("pause", "superseded"),
        ("pause", "superseded"),
        ("send", None),
    ]
    check(run)
    new = drive(resume(run.pk, by="ann").run)
    assert outcomes(run)[-1] == ("send", "applied")
    assert outcomes(new) == []
    check(run)
    check(new)


def test_a_stop_supersedes_pauses_and_refuses_messages(scripted: MakeScripted) -> None:
    run = drive(asked(scripted, pause, send, stop, stop))

    assert run.status == RunStatus.STOPPED
    assert outcomes(run) == [
        ("pause", "superseded"),
        ("send", "refused"),
        ("stop", "applied"),
        ("stop", "superseded"),
    ]
    check(run)


def test_a_pause_that_comes_with_the_last_answer_is_superseded(scripted: MakeScripted) -> None:
    run = drive(asked(scripted, pause, pause))

    assert run.status == RunStatus.COMPLETED
    assert outcomes(run) == [("pause", "superseded")] * 2
    check(run)


def test_stopping_a_paused_run_refuses_the_messages_queued_for_its_resume(scripted: MakeScripted) -> None:
    run = scripted(calls=CALLS)
    for wish in (pause, send, stop):
        wish(run)

    run.refresh_from_db()
    assert run.status == RunStatus.STOPPED
    assert outcomes(run) == [("pause", "applied"), ("send", "refused"), ("stop", "applied")]
    check(run)


def test_a_kill_supersedes_earlier_commands(scripted: MakeScripted) -> None:
    run = scripted(calls=CALLS)
    assert transitions.claim(run.pk, "worker")
    for wish in (pause, stop, send):
        wish(run)

    resume(run.pk, by="ann", kill=True)

    assert outcomes(run) == [("pause", "superseded"), ("stop", "superseded"), ("send", "applied")]
    check(run)


def test_a_run_that_fails_refuses_messages(scripted: MakeScripted, worker: Worker) -> None:
    run = asked(scripted, send, moves=[http(401)])
    run = drive(with_policies(run, on_error="fail"), worker)

    assert run.status == RunStatus.FAILED
    assert outcomes(run) == [("send", "refused")]
    check(run)


@pytest.mark.parametrize(("wish", "status"), [(pause, RunStatus.PAUSED), (stop, RunStatus.STOPPED)])
def test_a_command_takes_precedence_over_a_policy_that_fails_the_run(
    scripted: MakeScripted, worker: Worker, wish: Wish, status: RunStatus
) -> None:
    run = drive(with_policies(asked(scripted, wish, moves=[http(401)]), on_error="fail"), worker)

    assert run.status == status
    assert [outcome for _, outcome in outcomes(run)] == ["applied"]
    check(run)


@pytest.mark.parametrize(("wish", "status"), [(pause, RunStatus.PAUSED), (stop, RunStatus.STOPPED)])
@pytest.mark.parametrize("policy", [None, "escalate", {"action": "resume", "cooldown": "5m"}, "fail"])
def test_a_run_that_cannot_be_loaded_obeys_commands(
    scripted: MakeScripted, worker: Worker, wish: Wish, status: RunStatus, policy: Any
) -> None:
    """A stop must survive a policy wait that would otherwise resume the run."""
    run = with_policies(scripted(calls=CALLS), **({"on_error": policy} if policy else {}))
    run.agent_config["tools"] = ["gone"]
    run.save(update_fields=["agent_config"])
    assert transitions.claim(run.pk, "worker")
    wish(run)
    assert transitions.expire_leases("worker") == 1

    run = drive(run, worker)

    assert run.status == status
    assert [outcome for _, outcome in outcomes(run)] == ["applied"]
    check(run)


def test_a_message_to_a_run_that_its_policy_resumes_is_delivered(scripted: MakeScripted, worker: Worker) -> None:
    from runs.worker import sweep

    left = [http(401)]

    def play(_: ModelCall) -> Iterable[Move]:
        yield left.pop() if left else "Done."

    run = drive(with_policies(scripted(play), on_error={"action": "resume", "cooldown": "5m"}), worker)
    assert (run.status, run.status_reason) == (RunStatus.WAITING, "on_error")
    send(run)
    time_has_come(run)
    assert sweep.resume_due() == 1

    assert outcomes(run) == [("send", "applied")]
    new = drive(AgentRun.objects.get(resumed_from=run), worker)
    assert new.status == RunStatus.COMPLETED
    check(AgentRun.objects.get(pk=run.pk))


def test_a_fork_does_not_affect_the_commands_of_its_source(scripted: MakeScripted) -> None:
    run = drive(scripted(calls=[["ledger_read"], ["ledger_read"]], max_steps=1))
    assert run.status == RunStatus.PAUSED
    send(run)

    new = fork(run.pk, by="ann", step=1)

    assert outcomes(run) == [("send", None)]
    assert outcomes(new) == []
    check(run)
