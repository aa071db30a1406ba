"""The sweep: ends waits that are over, resumes runs whose policy has scheduled a resume that is now due, and sends
missing messages. It drives no run.

A message may be lost with its broker, or with the worker that had taken it. With Redis, one sweep per period is enough
for the whole site. Without Redis, each worker has its queues in memory and fills them itself.

A resume by a policy is one transaction: it moves the run from waiting to paused, and then resumes it with the same
function as every resume. So exactly one run continues it, even if another sweep, or a person who pauses, kills or
resumes the run, acts at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Min

from agentops.base import database_clock, task_messages
from agentops.base.backing_services import FIRST
from agentops.base.database_clock import Now
from agentops.base.refusals import Refusal
from runs import chaos
from runs.actions import resume
from runs.agents import policies
from runs.agents.call_rules import InvalidPolicy
from runs.agents.policies import PolicyAction, PolicyRule, Trigger, kind_of, rule_for
from runs.conversation import transcript
from runs.database_errors import done_alone
from runs.engine import policy_acts
from runs.external.recorded_ends import notice_silence
from runs.lifecycle import approval_decisions, children, inbox, transitions, wake
from runs.models import AgentRun, Chore, WorkerProcess
from runs.models.querysets import RunQuerySet
from runs.queries.queue_state import SENT_AT, SWEEP
from runs.statuses import POLICY_WAITS, PauseReason, RunStatus
from runs.worker import worker
from runs.worker.packaged.catalogue import AGENTS
from runs.worker.packaged.registering import register_in_new_projects
from timeline.events.notice import PolicyApplied
from timeline.events.run import RunPaused
from timeline.log import Entry
from timeline.models import Source

#: The maximum number of messages that a sweep sends for runs of dead workers, and for each priority of a queue. A queue
#: in memory holds at most as many.
BATCH = 500
#: The share of the period after which the next sweep may begin: a clock that is slightly early must not skip a period.
PERIOD_SHARE = 0.8
#: How many messages are read at the head of a queue. Some may name runs that are no longer queued.
HEAD = 20
#: Seconds that a message may take between a process, Redis and a claim.
ON_ITS_WAY_S = 2.0


def sweep(*, now: bool = False) -> int:
    """End waits, and send missing messages. Returns how many messages were sent.

    Also registers the agents of installed packages in new projects.

    Does nothing if another worker swept within the period, unless `now` is set.
    """
    every = timedelta(seconds=settings.AGENTOPS_SWEEP_S * PERIOD_SHARE)
    if settings.REDIS_URL and not Chore.objects.take(SWEEP, every=every) and not now:
        return 0
    register_in_new_projects()
    end_waits()
    notice_silence()
    return send_missing()


def end_waits() -> None:
    """Continue the runs whose waits are over, and expire approvals."""
    transitions.end_waits()
    children.continue_parents()
    resume_due()
    approval_decisions.expire_due()


def send_missing() -> int:
    """Send a message for each claimable run without a message in a queue. Returns how many.

    Stops at the first message that cannot be sent, or when the worker ends.
    """
    count = 0
    for run, priority in _without_message() if wake.can_send() else ():
        chaos.point("sweep.run_seen")
        if worker.is_stopping() or not wake.send(run, priority=priority):
            break
        chaos.point("sweep.message_sent")
        count += 1
    return count


def _without_message() -> Iterator[tuple[AgentRun, int]]:
    """Yield the claimable runs without a message, each with the priority for its message."""
    # With Redis, the message may reach any worker; without it, only this one.
    code = WorkerProcess.objects.packaged_agents() if settings.REDIS_URL else AGENTS.versions()
    runnable = AgentRun.objects.runnable().with_code(code)
    for run in _left_by_dead_workers(runnable):
        yield run, FIRST
    queued = runnable.filter(status=RunStatus.QUEUED)
    for queue, priority in queued.order_by("queue", "priority").values_list("queue", "priority").distinct():
        runs = queued.filter(queue=queue, priority=priority)
        find = _lost_from_redis if settings.REDIS_URL else _missing_in_memory
        yield from find(runs, queue, priority + 1)


def _left_by_dead_workers(runnable: RunQuerySet) -> list[AgentRun]:
    """Return runs with an expired lease and without a message, up to the free capacity for their messages."""
    lapsed = runnable.filter(status=RunStatus.RUNNING)
    queues = set(lapsed.values_list("queue", flat=True))
    waiting = {run_id for queue in queues for run_id in task_messages.oldest(queue, FIRST, BATCH)}
    return list(lapsed.exclude(pk__in=waiting)[: max(BATCH - len(waiting), 0)]) if queues else []


def _missing_in_memory(queued: RunQuerySet, queue: str, priority: int) -> list[tuple[AgentRun, int]]:
    """Return the first runs without a message in this process's queue, up to the free capacity of the queue."""
    held = task_messages.oldest(queue, priority, BATCH)
    room = max(BATCH - len(held), 0)
    missing = list(queued.exclude(pk__in=held)[: room + 1])
    wake.leave_to_sweep(queue, priority, len(missing) > room)
    return [(run, priority) for run in missing[:room]]


def _lost_from_redis(queued: RunQuerySet, queue: str, priority: int) -> list[tuple[AgentRun, int]]:
    """Return the first runs whose messages were lost. Marks them as sent now, so that another sweep omits them.

    The new messages get a higher priority than those in the queue, which are younger.
    """
    head = task_messages.oldest(queue, priority, HEAD)
    before = _sent_before(queued, head)
    if before is None:
        return []
    lost = AgentRun.objects.annotate(sent_at=SENT_AT).filter(status=RunStatus.QUEUED, sent_at__lt=before)
    runs = queued.annotate(sent_at=SENT_AT).filter(sent_at__lt=before)[:BATCH]
    return [
        (run, priority - 1 if head else priority)
        for run in runs
        if lost.filter(pk=run.pk).update(message_sent_at=Now())
    ]


def _sent_before(queued: RunQuerySet, head: list[UUID]) -> datetime | None:
    """Return a time: messages sent before it are lost, because the queue only holds messages that were sent later.

    None if unknown, because no message at the head names a queued run. Times are by the database's clock.
    """
    latest = database_clock.now() - timedelta(seconds=ON_ITS_WAY_S)
    if not head:
        return latest
    oldest: datetime | None = queued.filter(pk__in=head).aggregate(at=Min(SENT_AT))["at"]
    return None if oldest is None else min(oldest, latest)


#: Trigger of a policy → the reason of the pause before its resume, if that is not `error`.
_PAUSES = {Trigger.ON_CUT: PauseReason.ANSWER_CUT, Trigger.ON_REFUSED: PauseReason.ANSWER_REFUSED}
#: Maximum number of runs that a sweep resumes.
MAX_RESUMED = 100


def resume_due() -> int:
    """Resume the runs whose policy has scheduled a resume that is due by the database's clock. Returns how many."""
    return sum(_resume_safely(run_id) for run_id in _with_due_resume().values_list("pk", flat=True)[:MAX_RESUMED])


def _with_due_resume() -> RunQuerySet:
    return AgentRun.objects.due_waits().filter(status_reason__in=POLICY_WAITS)


def _resume_safely(run_id: UUID) -> bool:
    """Resume one run. Returns whether it was resumed. An error is logged, so that it does not block other runs."""

    def act() -> bool:
        with transaction.atomic():
            return _end_policy_wait(run_id)

    return done_alone(act, "a policy could not resume a run", run_id=str(run_id))


def _end_policy_wait(run_id: UUID) -> bool:
    """Resume a run, or escalate if that is refused. Returns whether it was resumed."""
    # FOR NO KEY UPDATE, as for commands: see runs.lifecycle.inbox.
    due_runs = _with_due_resume().select_for_update(skip_locked=True, no_key=True, of=("self",))
    run = due_runs.filter(pk=run_id).first()
    if run is None:
        return False  # another sweep or a person was faster
    trigger = Trigger(run.status_reason)
    try:
        with transaction.atomic():
            _resume_by_policy(run, trigger)
    except (Refusal, InvalidPolicy) as error:
        _escalate(AgentRun.objects.get(pk=run_id), trigger, str(error))
        return False
    return True


def _resume_by_policy(run: AgentRun, trigger: Trigger) -> None:
    """Pause and resume a run. Raises `Refusal`, for example if its steps are used up, and `InvalidPolicy`."""
    rule = _rule(run, trigger)
    by, reason = inbox.policy_name(trigger), _PAUSES.get(trigger, PauseReason.ERROR)
    paused = RunPaused(reason=reason, by=by)
    transitions.move(run, RunStatus.PAUSED, paused, source=Source.POLICY, reason=reason, not_before=None)
    message = rule.message
    if message is None and run.is_durable and trigger in policies.OF_ANSWERS:
        # Without a message, its resume would accept the answer: see runs.remote.ends.
        message = transcript.CONTINUE
    resume.resume(run.pk, by=by, message=message, append=rule.append, source=Source.POLICY, reason=trigger.value)


def _rule(run: AgentRun, trigger: Trigger) -> PolicyRule:
    """Return the rule that scheduled the resume, from the agent's definition in the run. Raises `InvalidPolicy`."""
    rules = policies.parse(run.agent_config.get("policies") or {})
    rule = rule_for(rules, trigger, kind_of(run.error_type))
    if rule is None or rule.action is not PolicyAction.RESUME:
        raise InvalidPolicy(f"{trigger} no longer has a rule that resumes the run", [trigger])
    return rule


def _escalate(run: AgentRun, trigger: Trigger, why: str) -> None:
    """Pause a run that cannot be resumed for the reason `why`, and notify people."""
    event = PolicyApplied(trigger=trigger, action=PolicyAction.ESCALATE, reason=policy_acts.clean(why))
    reason = PauseReason.ESCALATED
    paused = RunPaused(reason=reason, by=inbox.policy_name(trigger), detail=event.describe())
    options: dict[str, Any] = {"source": Source.POLICY, "reason": reason, "not_before": None}
    transitions.move(run, RunStatus.PAUSED, paused, events_before=[Entry(event)], **options)
    policy_acts.notify_people(run, event)
