"""Resume the runs for which a policy has scheduled a resume that is now due.

Called by the sweep. One transaction moves the run from waiting to paused and then to resumed, with the same function as
every resume. So there is exactly one successor, even if another sweep, or a person who pauses, kills or resumes the
run, acts at the same time.
"""

from __future__ import annotations

from uuid import UUID

from django.db import transaction

from agentops.base.refusals import Refusal
from runs.actions import resume
from runs.agents import policies
from runs.agents.policies import PolicyAction, PolicyRule, Trigger, kind_of, rule_for
from runs.agents.policy_errors import InvalidPolicy
from runs.database_errors import done_alone
from runs.engine import policy_acts
from runs.lifecycle import inbox, transitions
from runs.models import AgentRun
from runs.models.querysets import RunQuerySet
from runs.statuses import POLICY_WAITS, PauseReason, RunStatus
from timeline.events.command import PolicyApplied
from timeline.events.run import RunPaused
from timeline.log import Entry
from timeline.models import Source

BATCH = 100


def end_waits() -> int:
    """Resume the runs whose cooldown is over by the database's clock. Returns how many continued."""
    return sum(_resume_safely(run_id) for run_id in _due().values_list("pk", flat=True)[:BATCH])


def _due() -> RunQuerySet:
    return AgentRun.objects.due_waits().filter(status_reason__in=POLICY_WAITS)


def _resume_safely(run_id: UUID) -> bool:
    """Resume one run, and return whether it continues. An error in one run does not keep others waiting."""

    def act() -> bool:
        with transaction.atomic():
            return _end(run_id)

    return done_alone(act, "a policy could not resume a run", run_id=str(run_id))


def _end(run_id: UUID) -> bool:
    # NO KEY, as for a command: see runs.lifecycle.inbox.
    due_runs = _due().select_for_update(skip_locked=True, no_key=True, of=("self",))
    run = due_runs.filter(pk=run_id).first()
    if run is None:
        return False  # another sweep or a person was faster
    trigger = Trigger(run.status_reason)
    try:
        with transaction.atomic():
            _resume(run, trigger)
    except (Refusal, InvalidPolicy) as error:
        _escalate(AgentRun.objects.get(pk=run_id), trigger, str(error))
        return False
    return True


def _resume(run: AgentRun, trigger: Trigger) -> None:
    rule = _rule(run, trigger)
    by = inbox.policy_name(trigger)
    paused = RunPaused(reason=PauseReason.ERROR, by=by)
    transitions.move(run, RunStatus.PAUSED, paused, source=Source.POLICY, reason=PauseReason.ERROR, not_before=None)
    resume.resume(run.pk, by=by, message=rule.message, append=rule.append, source=Source.POLICY, reason=trigger.value)


def _rule(run: AgentRun, trigger: Trigger) -> PolicyRule:
    """Return the rule that scheduled the resume, from the definition that the run keeps of its agent."""
    rules = policies.parse(run.agent_config.get("policies") or {})
    rule = rule_for(rules, trigger, kind_of(run.error_type))
    if rule is None or rule.action is not PolicyAction.RESUME:
        raise InvalidPolicy(f"{trigger} no longer has a rule that resumes the run", [trigger])
    return rule


def _escalate(run: AgentRun, trigger: Trigger, why: str) -> None:
    """Pause the run and notify people: its steps are used up, or its policy is invalid."""
    event = PolicyApplied(trigger=trigger, action=PolicyAction.ESCALATE, reason=policy_acts.clean(why))
    paused = RunPaused(reason=PauseReason.ESCALATED, by=inbox.policy_name(trigger), detail=event.describe())
    transitions.move(
        run,
        RunStatus.PAUSED,
        paused,
        source=Source.POLICY,
        reason=PauseReason.ESCALATED,
        events_before=[Entry(event)],
        not_before=None,
    )
    policy_acts.notify_people(run, event)
