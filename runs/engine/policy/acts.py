"""What a policy does about a run: one guarded move, with its `policy.applied` event in the same transaction.

A worker that dies leaves a run about which the next one decides the same. What somebody has asked for meanwhile (a
stop, a pause, a message) goes before: see `DecideAgain`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models.functions import Now

from agentops.projects import notifications
from runs import chaos
from runs.agents import policies, policy_commands
from runs.agents.policies import ErrorKind, Policies, PolicyAction, PolicyRule, Trigger, kind_of, rule_for
from runs.agents.policy_commands import CommandVerdict
from runs.conversation import transcript
from runs.engine import ending
from runs.engine.drive import Drive
from runs.engine.ending import ASKED_TO_END, SPOKEN_TO
from runs.engine.leaving import DecideAgain, Held, leave
from runs.engine.results import Progress
from runs.engine.safe_commit import durably, nothing
from runs.engine.turns import open_call
from runs.lifecycle import causes, inbox
from runs.lifecycle.wake import wake
from runs.models import AgentRun, RunCommand
from runs.statuses import PauseReason, RunStatus, WaitReason
from runs.tools.speaking import Question
from timeline import log
from timeline.events.command import PolicyApplied
from timeline.events.run import RunPaused, RunWaiting
from timeline.log import Entry
from timeline.models import Source
from timeline.redaction.redact import DEFAULT as REDACTOR

NUDGE = "You have not said that you are done. Go on with the task; when it is finished, call `done` with the result."
#: Of a text in an event.
MOST = 1_000


@dataclass(frozen=True)
class Occasion:
    """What has happened to a run."""

    trigger: Trigger
    #: For a run that fails of it.
    error_type: str
    error: str
    #: What the trigger alone does not say.
    detail: str
    kind: ErrorKind = ErrorKind.OTHER
    #: Of on_prompt.
    asked: Question | None = None


@dataclass(frozen=True)
class PolicyAct:
    """What a policy wants done about an occasion, and how the event of it begins."""

    held: Held
    occasion: Occasion
    rule: PolicyRule
    told: PolicyApplied

    @property
    def by(self) -> str:
        return inbox.policy_name(self.occasion.trigger)

    def explained(self, **more: Any) -> dict[str, Any]:
        """The policy's part of a move."""
        occasion = self.occasion
        is_error = occasion.trigger is Trigger.ON_ERROR
        error = causes.entry(self.held.run, occasion.error_type, clean(occasion.error) or "") if is_error else []
        return {"source": Source.POLICY, "told": [*error, Entry(self.told.model_copy(update=more))]}


def act(held: Held, wanted: Policies, occasion: Occasion) -> Progress | None:
    """Do what the policy wants; None where no rule is about this."""
    made = attempts_made(held.run, wanted, occasion)
    verdict = policies.decide(wanted, occasion.trigger, made=made, kind=occasion.kind)
    if verdict is None:
        return None
    rule = verdict.rule
    told = PolicyApplied(
        trigger=occasion.trigger,
        action=rule.action,
        kind=occasion.kind if occasion.trigger is Trigger.ON_ERROR else None,
        attempt=made + 1 if rule.counted else None,
        attempts=rule.attempts if rule.counted or verdict.exhausted else None,
        exhausted=verdict.exhausted or None,
        gate=rule.run,
        reason=clean(occasion.detail),
    )
    return _ACTS[rule.action](PolicyAct(held, occasion, rule, told))


def attempts_made(run: AgentRun, wanted: Policies, occasion: Occasion) -> int:
    """How often a policy has acted on such an occasion in the lineage, whoever resumed it in between: what is counted
    are the rows that the acts left, so it survives every restart. Each rule of on_error has its own attempts."""
    if occasion.trigger is Trigger.ON_IDLE:
        return inbox.policy_turns(run.root_run_id, occasion.trigger)
    resumed = AgentRun.objects.filter(
        root_run=run.root_run_id, status=RunStatus.RESUMED, status_reason=occasion.trigger
    )
    if occasion.trigger is not Trigger.ON_ERROR:
        return resumed.count()
    rule = rule_for(wanted, occasion.trigger, occasion.kind)
    kinds = map(kind_of, resumed.values_list("error_type", flat=True))
    return sum(rule_for(wanted, occasion.trigger, kind) is rule for kind in kinds)


def _nudge(act: PolicyAct) -> Progress:
    """A user turn by way of the inbox, under a key of its own: it is delivered once, whoever drives the run then."""
    run, epoch = act.held.run, act.held.epoch
    number = act.told.attempt or 1
    command, said = inbox.policy_turn(run.pk, act.rule.message or NUDGE, trigger=act.occasion.trigger, number=number)
    told = act.explained()["told"]

    def write() -> None:
        with transaction.atomic():
            # Whoever posts a command holds this row: see runs.lifecycle.inbox.
            AgentRun.objects.select_for_update(no_key=True, of=("self",)).get(pk=run.pk)
            if inbox.waiting(run.pk):
                raise DecideAgain
            log.append(run.pk, [*told, said], source=Source.POLICY, epoch=epoch)
            command.save(force_insert=True)

    there = RunCommand.objects.filter(run=run, key=command.key)
    durably(write, landed=there.exists, found=nothing, lease=act.held.lease)
    return Progress.CONTINUE


def _done(act: PolicyAct) -> Progress:
    assert isinstance(act.held, Drive)
    return ending.complete(act.held, **act.explained())


def _fail(act: PolicyAct) -> Progress:
    occasion = act.occasion
    text, unless = act.rule.message or occasion.error, _UNLESS_FAILED[occasion.trigger]
    return ending.fail(act.held, occasion.error_type, text, unless=unless, **act.explained())


def _resume(act: PolicyAct) -> Progress:
    """Wait, without a worker, for the time at which the policy resumes it: see `policy_waits`."""
    run, occasion = act.held.run, act.occasion
    if run.step_count >= settings.AGENTOPS_MAX_TOTAL_STEPS:
        why = f"the maximum total steps of {settings.AGENTOPS_MAX_TOTAL_STEPS} are used up"
        return _escalate(replace(act, told=act.told.model_copy(update=_ESCALATED)), why)
    wait = policies.wait_s(act.rule, (act.told.attempt or 1) - 1)
    until = _database_time(run) + timedelta(seconds=wait)
    reason = WaitReason(occasion.trigger)
    message, _ = REDACTOR.clean_text(occasion.error)
    then: Callable[[], Any] = nothing if wait else partial(wake, run.pk)
    return leave(
        act.held, RunStatus.WAITING, RunWaiting(reason=reason, until=until), reason=reason, not_before=until,
        error_type=occasion.error_type[:64], error_message=message, then=then, unless=ASKED_TO_END,
        **act.explained(until=until),
    )  # fmt: skip


def _escalate(act: PolicyAct, why: str = "") -> Progress:
    """Hand it to people. One that asks goes on waiting for the answer, which they can give; any other one pauses."""
    run, occasion = act.held.run, act.occasion
    told = act.told.model_copy(update={"reason": clean(": ".join(filter(None, [occasion.detail, why])))})
    explained = replace(act, told=told).explained()
    then = partial(tell_people, run, told)
    if occasion.asked is not None:
        assert isinstance(act.held, Drive)
        unless = SPOKEN_TO | ASKED_TO_END
        return ending.wait_for_answer(act.held, occasion.asked, then=then, unless=unless, **explained)
    paused = RunPaused(reason=PauseReason.ESCALATED, by=act.by, detail=told.describe())
    return leave(
        act.held, RunStatus.PAUSED, paused, reason=PauseReason.ESCALATED, then=then,
        unless=ASKED_TO_END, **explained,
    )  # fmt: skip


def _gate(act: PolicyAct) -> Progress:
    """Ask the gate, outside of any transaction; it says whether the run counts as done."""
    drive = act.held
    assert isinstance(drive, Drive)
    assert act.rule.run is not None
    verdict = _verdict(drive, act)
    drive.check()
    told = act.told.model_copy(update={"passed": verdict.passed, "output": verdict.output or None})
    if verdict.passed:
        return _done(replace(act, told=told.model_copy(update={"reason": verdict.why})))
    return _escalate(replace(act, told=told), verdict.why)


def _verdict(drive: Drive, act: PolicyAct) -> CommandVerdict:
    trigger, step = act.occasion.trigger, drive.run.step_count
    name = f"gate:{trigger}:{step}"
    context = open_call.context_of_gate(drive, name)
    chaos.point("tool.running")
    verdict = policy_commands.ask(
        act.rule.run or "", policy_commands.CommandInput(context, trigger, transcript.last_answer(drive.conversation)),
        drive.check_for_stop,
    )  # fmt: skip
    chaos.point("tool.returned")
    return verdict


def tell_people(run: AgentRun, told: PolicyApplied) -> None:
    """The notification of an escalation, in its transaction."""
    title, _ = REDACTOR.clean_text(f"Escalated: {run.title or run.agent_config.get('agent_id') or run.pk}")
    text, _ = REDACTOR.clean_text(told.describe())
    notifications.notify(run.project_id, kind=notifications.Kind.ESCALATED, title=title, text=text, run_id=run.pk)


def clean(text: str) -> str | None:
    """Redacted before it is cut: half a secret is none that anybody recognises."""
    return REDACTOR.clean_text(text)[0][:MOST] or None


def _database_time(run: AgentRun) -> datetime:
    """Cooldowns are judged by the database's clock, so they are set by it too."""
    now: datetime = AgentRun.objects.annotate(now=Now()).values_list("now", flat=True).get(pk=run.pk)
    return now


#: What was asked of a run goes before a policy that lets it fail.
_UNLESS_FAILED: dict[Trigger, frozenset[Any]] = {
    Trigger.ON_ERROR: ASKED_TO_END,
    Trigger.ON_DEAD: ASKED_TO_END,
    Trigger.ON_IDLE: SPOKEN_TO | ASKED_TO_END,
    Trigger.ON_PROMPT: SPOKEN_TO | ASKED_TO_END,
}
_ESCALATED = {"action": PolicyAction.ESCALATE, "attempt": None}
_ACTS: dict[PolicyAction, Callable[[PolicyAct], Progress]] = {
    PolicyAction.NUDGE: _nudge,
    PolicyAction.DONE: _done,
    PolicyAction.FAIL: _fail,
    PolicyAction.RESUME: _resume,
    PolicyAction.ESCALATE: _escalate,
    PolicyAction.GATE: _gate,
}
