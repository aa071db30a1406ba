"""Apply a policy to a run: one guarded move, with its `policy.applied` event in the same transaction.

If a worker dies before the commit, the next worker decides the same. A stop, a pause or a message that arrives before
the commit has priority: see `DecideAgain`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.conf import settings
from django.db import transaction

from agentops.accounts import notifications
from agentops.base.database_clock import Now
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs import chaos
from runs.agents import policies, policy_commands
from runs.agents.policies import ErrorKind, Policies, PolicyAction, PolicyRule, Trigger, kind_of, rule_for
from runs.agents.policy_commands import CommandVerdict
from runs.conversation import transcript
from runs.engine import ending
from runs.engine.drive import Drive
from runs.engine.ending import STOP_OR_MESSAGE, STOP_OR_PAUSE
from runs.engine.releases import DecideAgain, HeldRun, release_run
from runs.engine.results import Progress
from runs.engine.safe_commit import commit_safely, do_nothing
from runs.engine.turns import open_call
from runs.lifecycle import causes, command_outcomes, inbox
from runs.lifecycle.wake import wake_sweep
from runs.models import AgentRun, RunCommand
from runs.statuses import PauseReason, RunStatus, WaitReason
from runs.tools.conversation_tools import Question
from timeline import log
from timeline.events.command import PolicyApplied
from timeline.events.run import RunPaused, RunWaiting
from timeline.log import Entry
from timeline.models import Source

NUDGE = "You have not called `done`. Continue the task; when it is finished, call `done` with the result."
#: Characters of a text in an event.
MAX_TEXT = 1_000


@dataclass(frozen=True)
class Occasion:
    """An occasion on which a policy may act."""

    trigger: Trigger
    #: The error, if the run fails because of it.
    error_type: str
    error: str
    #: Details beyond the trigger.
    detail: str
    kind: ErrorKind = ErrorKind.OTHER
    #: The question, for on_prompt.
    question: Question | None = None


@dataclass(frozen=True)
class PolicyAct:
    """A rule to apply on an occasion, and the event that reports it."""

    held_run: HeldRun
    occasion: Occasion
    rule: PolicyRule
    event: PolicyApplied

    @property
    def by(self) -> str:
        """The name of the policy as the author of commands and events."""
        return inbox.policy_name(self.occasion.trigger)

    def move_options(self, **more: Any) -> dict[str, Any]:
        """Return the arguments of a move that name the policy as its source. `more` changes the event."""
        occasion = self.occasion
        is_error = occasion.trigger is Trigger.ON_ERROR
        error = (
            causes.error_event(self.held_run.run, occasion.error_type, clean(occasion.error) or "") if is_error else []
        )
        return {"source": Source.POLICY, "events_before": [*error, Entry(self.event.model_copy(update=more))]}


def act(held_run: HeldRun, rules: Policies, occasion: Occasion) -> Progress | None:
    """Apply the policy for an occasion. Returns None if no rule covers it."""
    attempts = count_attempts(held_run.run, rules, occasion)
    verdict = policies.decide(rules, occasion.trigger, attempt_count=attempts, kind=occasion.kind)
    if verdict is None:
        return None
    rule = verdict.rule
    event = PolicyApplied(
        trigger=occasion.trigger,
        action=rule.action,
        kind=occasion.kind if occasion.trigger is Trigger.ON_ERROR else None,
        attempt=attempts + 1 if rule.is_counted else None,
        attempts=rule.attempts if rule.is_counted or verdict.exhausted else None,
        exhausted=verdict.exhausted or None,
        gate=rule.run,
        reason=clean(occasion.detail),
    )
    return _ACTS[rule.action](PolicyAct(held_run, occasion, rule, event))


def count_attempts(run: AgentRun, rules: Policies, occasion: Occasion) -> int:
    """Count how often a policy has acted on such an occasion in the lineage.

    Stored rows are counted, so a restart or a resume does not reset the number. Each rule of on_error has separate
    attempts.
    """
    if occasion.trigger is Trigger.ON_IDLE:
        return inbox.policy_turns(run.root_run_id, occasion.trigger)
    resumed = AgentRun.objects.filter(
        root_run=run.root_run_id, status=RunStatus.RESUMED, status_reason=occasion.trigger
    )
    if occasion.trigger is not Trigger.ON_ERROR:
        return resumed.count()
    rule = rule_for(rules, occasion.trigger, occasion.kind)
    kinds = map(kind_of, resumed.values_list("error_type", flat=True))
    return sum(rule_for(rules, occasion.trigger, kind) is rule for kind in kinds)


def _nudge(act: PolicyAct) -> Progress:
    """Send a message to the agent through the inbox. Its unique key makes sure that it is delivered once."""
    run, epoch = act.held_run.run, act.held_run.epoch
    number = act.event.attempt or 1
    command, received_event = inbox.policy_turn(
        run.pk, act.rule.message or NUDGE, trigger=act.occasion.trigger, number=number
    )
    events = act.move_options()["events_before"]

    def write() -> None:
        with transaction.atomic():
            # Posting a command locks this row too: see runs.lifecycle.inbox.
            AgentRun.objects.select_for_update(no_key=True, of=("self",)).get(pk=run.pk)
            if command_outcomes.pending_types(run.pk):
                raise DecideAgain
            log.append(run.pk, [*events, received_event], source=Source.POLICY, epoch=epoch)
            command.save(force_insert=True)

    existing = RunCommand.objects.filter(run=run, key=command.key)
    commit_safely(write, is_committed=existing.exists, read_result=do_nothing, lease=act.held_run.lease)
    return Progress.CONTINUE


def _complete(act: PolicyAct) -> Progress:
    assert isinstance(act.held_run, Drive)
    return ending.complete(act.held_run, **act.move_options())


def _fail(act: PolicyAct) -> Progress:
    occasion = act.occasion
    text, unless = act.rule.message or occasion.error, _UNLESS_FAILED[occasion.trigger]
    return ending.fail(act.held_run, occasion.error_type, text, unless=unless, **act.move_options())


def _resume(act: PolicyAct) -> Progress:
    """Move the run to waiting until its policy resumes it: see runs.engine.due_resumes."""
    run, occasion = act.held_run.run, act.occasion
    if run.step_count >= settings.AGENTOPS_MAX_TOTAL_STEPS:
        why = f"the lineage has used all of its {settings.AGENTOPS_MAX_TOTAL_STEPS} steps"
        return _escalate(replace(act, event=act.event.model_copy(update=_ESCALATED)), why)
    wait = policies.wait_s(act.rule, (act.event.attempt or 1) - 1)
    until = _database_time(run) + timedelta(seconds=wait)
    reason = WaitReason(occasion.trigger)
    message, _ = REDACTOR.clean_text(occasion.error)
    then: Callable[[], Any] = do_nothing if wait else wake_sweep
    return release_run(
        act.held_run, RunStatus.WAITING, RunWaiting(reason=reason, until=until), reason=reason, not_before=until,
        error_type=occasion.error_type[:64], error_message=message, then=then, unless=STOP_OR_PAUSE,
        **act.move_options(until=until),
    )  # fmt: skip


def _escalate(act: PolicyAct, why: str = "") -> Progress:
    """Notify people. A run with a question keeps waiting for the answer; any other run pauses."""
    run, occasion = act.held_run.run, act.occasion
    event = act.event.model_copy(update={"reason": clean(": ".join(filter(None, [occasion.detail, why])))})
    move_options = replace(act, event=event).move_options()
    then = partial(notify_people, run, event)
    if occasion.question is not None:
        assert isinstance(act.held_run, Drive)
        unless = STOP_OR_MESSAGE | STOP_OR_PAUSE
        return ending.wait_for_answer(act.held_run, occasion.question, then=then, unless=unless, **move_options)
    paused = RunPaused(reason=PauseReason.ESCALATED, by=act.by, detail=event.describe())
    return release_run(
        act.held_run, RunStatus.PAUSED, paused, reason=PauseReason.ESCALATED, then=then,
        unless=STOP_OR_PAUSE, **move_options,
    )  # fmt: skip


def _gate(act: PolicyAct) -> Progress:
    """Run the gate, outside of any transaction. Its result decides whether the run is complete."""
    drive = act.held_run
    assert isinstance(drive, Drive)
    assert act.rule.run is not None
    verdict = _verdict(drive, act)
    drive.check()
    event = act.event.model_copy(update={"passed": verdict.passed, "output": verdict.output or None})
    if verdict.passed:
        return _complete(replace(act, event=event.model_copy(update={"reason": verdict.reason})))
    return _escalate(replace(act, event=event), verdict.reason)


def _verdict(drive: Drive, act: PolicyAct) -> CommandVerdict:
    trigger, step = act.occasion.trigger, drive.run.step_count
    name = f"gate:{trigger}:{step}"
    context = open_call.context_of_gate(drive, name)
    chaos.point("tool.running")
    verdict = policy_commands.execute(
        act.rule.run or "", policy_commands.CommandInput(context, trigger, transcript.last_answer(drive.conversation)),
        drive.check_for_stop,
    )  # fmt: skip
    chaos.point("tool.returned")
    return verdict


def notify_people(run: AgentRun, event: PolicyApplied) -> None:
    """Notify the project of an escalation, in the caller's transaction."""
    title, _ = REDACTOR.clean_text(f"Escalated: {run.title or run.agent_config.get('agent_id') or run.pk}")
    text, _ = REDACTOR.clean_text(event.describe())
    notifications.notify(run.project_id, kind=notifications.Kind.ESCALATED, title=title, text=text, run_id=run.pk)


def clean(text: str) -> str | None:
    """Redact a text and cut it for an event; None if nothing is left."""
    return REDACTOR.clean_text(text)[0][:MAX_TEXT] or None


def _database_time(run: AgentRun) -> datetime:
    """Return the database's time, which decides when a cooldown is over."""
    now: datetime = AgentRun.objects.annotate(now=Now()).values_list("now", flat=True).get(pk=run.pk)
    return now


#: Commands that have priority over a policy that ends the run as failed.
_UNLESS_FAILED: dict[Trigger, frozenset[Any]] = {
    Trigger.ON_ERROR: STOP_OR_PAUSE,
    Trigger.ON_DEAD: STOP_OR_PAUSE,
    Trigger.ON_IDLE: STOP_OR_MESSAGE | STOP_OR_PAUSE,
    Trigger.ON_PROMPT: STOP_OR_MESSAGE | STOP_OR_PAUSE,
}
_ESCALATED = {"action": PolicyAction.ESCALATE, "attempt": None}
_ACTS: dict[PolicyAction, Callable[[PolicyAct], Progress]] = {
    PolicyAction.NUDGE: _nudge,
    PolicyAction.DONE: _complete,
    PolicyAction.FAIL: _fail,
    PolicyAction.RESUME: _resume,
    PolicyAction.ESCALATE: _escalate,
    PolicyAction.GATE: _gate,
}
