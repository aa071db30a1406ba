"""Roll back a turn that a crash left unfinished, so that the model is called again.

This is an exception: normally the next worker finishes a committed turn. A turn is rolled back if the agent's policy
says so, or if its messages cannot be read, and never after one of its tools was started. Nothing is deleted, and the
cost of the turn still counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.db import transaction

from agentops.base.database_clock import Now
from runs import chaos
from runs.agents import policies
from runs.agents.policies import OnCrash
from runs.conversation import tool_results
from runs.engine.leases import Lease
from runs.engine.safe_commit import commit_safely, do_nothing
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, Attempt, Checkpoint, TurnUsage
from runs.providers import messages
from runs.statuses import AFTER_A_DEATH, RunStatus, ToolStatus
from timeline import log
from timeline.events.run import RunRolledBack
from timeline.log import Entry
from timeline.models import LeaseLost, Source

Role = AgentRunMessage.Role


@dataclass(frozen=True)
class _UnfinishedTurn:
    """The last answer of a run, its tool calls, and their results so far."""

    answer: AgentRunMessage
    calls: list[AgentRunToolCall]
    results: list[AgentRunMessage]

    @property
    def has_started_call(self) -> bool:
        """Whether a tool of the turn may have had an effect."""
        return any(call.starts for call in self.calls)

    @property
    def planned_calls(self) -> list[AgentRunToolCall]:
        return [call for call in self.calls if call.status == ToolStatus.PLANNED]


def roll_back_unstarted_turn(run: AgentRun, lease: Lease) -> None:
    """Roll back the last turn, by the agent's policy, if its worker crashed before it started any of the calls.

    Raises `InvalidPolicy`.
    """
    policy = policies.parse(run.agent_config.get("policies") or {}).on_crash
    if policy is not OnCrash.ROLL_BACK or not _is_after_crash(run, lease):
        return
    turn = _last_turn(run)
    if turn is None or turn.has_started_call or not turn.planned_calls:
        return
    if turn.answer.epoch != lease.epoch:  # a turn of this worker is not a leftover
        _roll_back(run, lease, turn, "crash")


def roll_back_unreadable_turn(run: AgentRun, lease: Lease) -> bool:
    """Roll back the last turn if any of its messages cannot be read. Returns whether it was rolled back."""
    turn = _last_turn(run)
    if turn is None or turn.has_started_call or all(map(_is_readable, [turn.answer, *turn.results])):
        return False
    if Checkpoint.objects.filter(run=run, step_number=run.step_count).exists():
        return False
    _roll_back(run, lease, turn, "unreadable")
    return True


def _is_after_crash(run: AgentRun, lease: Lease) -> bool:
    """Whether the previous worker died with the run. False if it handed the run back, or an operator took the run."""
    return Attempt.objects.filter(run=run, epoch=lease.epoch - 1, end_reason__in=AFTER_A_DEATH).exists()


def _last_turn(run: AgentRun) -> _UnfinishedTurn | None:
    """Return the turn of the last step; None if the step has no answer."""
    of_step = AgentRunMessage.objects.filter(run=run, step_number=run.step_count, rolled_back_at=None)
    answer = of_step.filter(role=Role.ASSISTANT).first()
    if answer is None:
        return None
    calls = list(AgentRunToolCall.objects.filter(message=answer).order_by("id"))
    results = of_step.filter(pk__in=[call.result_message_id for call in calls if call.result_message_id])
    return _UnfinishedTurn(answer, calls, list(results.order_by("position")))


def _is_readable(message: AgentRunMessage) -> bool:
    try:
        messages.load(message.content)
    except (ValueError, TypeError):
        return False
    return True


def _roll_back(run: AgentRun, lease: Lease, turn: _UnfinishedTurn, reason: str) -> None:
    """Mark the messages of the turn as rolled back, deny its calls, and set the run back to the step before."""
    step, answer, planned_calls = run.step_count, turn.answer, turn.planned_calls
    rows = [answer, *turn.results]
    payload = RunRolledBack(reason=reason, positions=[row.position for row in rows])

    def write() -> None:
        with transaction.atomic():
            held_run = AgentRun.objects.filter(
                pk=run.pk, lease_epoch=lease.epoch, status=RunStatus.RUNNING, step_count=step
            )
            if not held_run.update(step_count=step - 1):
                raise LeaseLost(f"run {run.pk} was taken over from epoch {lease.epoch}")
            AgentRunMessage.objects.filter(pk__in=[row.pk for row in rows]).update(rolled_back_at=Now())
            usages = TurnUsage.objects.filter(run=run, step_number=step, outcome=TurnUsage.Outcome.ANSWERED)
            usages.update(outcome=TurnUsage.Outcome.ROLLED_BACK)
            entries = [Entry(payload, step=step, ref_id=answer.pk), *tool_results.withdraw(planned_calls)]
            log.append(run.pk, entries, source=Source.WORKER, epoch=lease.epoch)

    chaos.point("recovery.before")
    rolled_back_answer = AgentRunMessage.objects.filter(pk=answer.pk).exclude(rolled_back_at=None)
    commit_safely(write, is_committed=rolled_back_answer.exists, read_result=do_nothing, lease=lease)
    run.step_count = step - 1
    chaos.point("recovery.done")
