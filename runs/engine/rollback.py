"""Roll back: a turn that a dead worker left half-done leaves the conversation, and the model is asked again.

It is the exception: a committed turn is otherwise rolled forward. Nothing is deleted, and what the turn has cost stays
counted. A turn of which a tool was started stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.db.models.functions import Now

from runs import chaos
from runs.agents import policies
from runs.agents.policies import OnCrash
from runs.conversation import tool_results
from runs.engine.leases import Lease
from runs.engine.safe_commit import durably, nothing
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, Attempt, Checkpoint, TurnUsage
from runs.providers import messages
from runs.statuses import AFTER_A_DEATH, RunStatus, ToolStatus
from timeline import log
from timeline.errors import LeaseLost
from timeline.events.run import RunRolledBack
from timeline.log import Entry
from timeline.models import Source

Role = AgentRunMessage.Role


@dataclass(frozen=True)
class _HalfTurn:
    """The last answer of a run, its tool calls, and their results so far."""

    answer: AgentRunMessage
    calls: list[AgentRunToolCall]
    results: list[AgentRunMessage]

    @property
    def started(self) -> bool:
        """Whether a tool of it may have had an effect: then it is never taken back."""
        return any(call.starts for call in self.calls)

    @property
    def planned(self) -> list[AgentRunToolCall]:
        return [call for call in self.calls if call.status == ToolStatus.PLANNED]


def wanted(config: Mapping[str, Any]) -> bool:
    """Whether the agent wants a half-done turn taken back; raises `InvalidPolicy`."""
    return policies.parse(config.get("policies") or {}).on_crash is OnCrash.ROLL_BACK


def half_done_turn(run: AgentRun, lease: Lease) -> None:
    """After a crash: take the turn back that a dead worker left with calls of which none was started."""
    if not wanted(run.agent_config) or not _after_a_crash(run, lease):
        return
    turn = _last_turn(run)
    if turn is None or turn.started or not turn.planned:
        return
    if turn.answer.epoch != lease.epoch:  # our own turn is not half-done, we are about to do it
        _take_back(run, lease, turn, "crash")


def unreadable_turn(run: AgentRun, lease: Lease) -> bool:
    """Take the last turn back where a message of it cannot be read; whether it was that, and is gone."""
    turn = _last_turn(run)
    if turn is None or turn.started or all(map(_readable, [turn.answer, *turn.results])):
        return False
    if Checkpoint.objects.filter(run=run, step_number=run.step_count).exists():
        return False
    _take_back(run, lease, turn, "unreadable")
    return True


def _after_a_crash(run: AgentRun, lease: Lease) -> bool:
    """Whether the worker before lost the run; one that handed it back, or that an operator took it from, did not."""
    return Attempt.objects.filter(run=run, epoch=lease.epoch - 1, end_reason__in=AFTER_A_DEATH).exists()


def _last_turn(run: AgentRun) -> _HalfTurn | None:
    of_step = AgentRunMessage.objects.filter(run=run, step_number=run.step_count, rolled_back_at=None)
    answer = of_step.filter(role=Role.ASSISTANT).first()
    if answer is None:
        return None
    calls = list(AgentRunToolCall.objects.filter(message=answer).order_by("id"))
    results = of_step.filter(pk__in=[call.result_message_id for call in calls if call.result_message_id])
    return _HalfTurn(answer, calls, list(results.order_by("position")))


def _readable(message: AgentRunMessage) -> bool:
    try:
        messages.load(message.content)
    except (ValueError, TypeError):
        return False
    return True


def _take_back(run: AgentRun, lease: Lease, turn: _HalfTurn, reason: str) -> None:
    step, answer, planned = run.step_count, turn.answer, turn.planned
    rows = [answer, *turn.results]
    rolled_back = RunRolledBack(reason=reason, positions=[row.position for row in rows])

    def write() -> None:
        with transaction.atomic():
            mine = AgentRun.objects.filter(
                pk=run.pk, lease_epoch=lease.epoch, status=RunStatus.RUNNING, step_count=step
            )
            if not mine.update(step_count=step - 1):
                raise LeaseLost(f"run {run.pk} was taken over from epoch {lease.epoch}")
            AgentRunMessage.objects.filter(pk__in=[row.pk for row in rows]).update(rolled_back_at=Now())
            answered = TurnUsage.objects.filter(run=run, step_number=step, outcome=TurnUsage.Outcome.ANSWERED)
            answered.update(outcome=TurnUsage.Outcome.ROLLED_BACK)
            entries = [Entry(rolled_back, step=step, ref_id=answer.pk), *tool_results.withdraw(planned)]
            log.append(run.pk, entries, source=Source.WORKER, epoch=lease.epoch)

    chaos.point("recovery.before")
    taken_back = AgentRunMessage.objects.filter(pk=answer.pk).exclude(rolled_back_at=None)
    durably(write, landed=taken_back.exists, found=nothing, lease=lease)
    run.step_count = step - 1
    chaos.point("recovery.done")
