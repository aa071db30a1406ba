"""Apply a policy to a run: one guarded move, with its `policy.applied` event in the same transaction.

If a worker dies before the commit, the next worker makes the same decision. A stop, a pause or a message that arrives
before the commit has priority: see `DecideAgain`.
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
from runs.agents.policies import OF_ANSWERS, ErrorKind, Policies, PolicyAction, PolicyRule, Trigger, kind_of, rule_for
from runs.agents.policy_commands import GateVerdict
from runs.conversation import transcript
from runs.engine import ending
from runs.engine.drive import Drive
from runs.engine.ending import STOP_OR_MESSAGE, STOP_OR_PAUSE
from runs.engine.releases import DecideAgain, HeldRun, release_run
from runs.engine.results import Progress
from runs.engine.safe_commit import commit_safely, do_nothing
from runs.engine.turns import open_call
from runs.lifecycle import causes, command_outcomes, inbox, moves
from runs.lifecycle.wake import wake_sweep
from runs.models import AgentRun, AgentRunMessage, RunCommand
from runs.statuses import PauseReason, RunStatus, WaitReason
from runs.tools.agent_tools import Question
from timeline import log
from timeline.events import EventType
from timeline.events.notice import PolicyApplied
from timeline.events.run import RunPaused, RunWaiting
from timeline.log import Entry
from timeline.models import Source

NUDGE = "You have not called `done`. Continue the task; when it is finished, call `done` with the result."
#: Characters of a text in an event.
MAX_TEXT = 1_000


#: Completes a run, with the arguments of `PolicyAct.move_options`.
Complete = Callable[..., Progress]


@dataclass(frozen=True)
class Occasion:
    """An occasion on which a policy may act."""

    trigger: Trigger
    #: The type and the text of the error, in case the run fails or resumes because of this occasion.
    error_type: str
    error: str
    #: The reason in the `policy.applied` event.
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
    #: Completes a run that is not loaded.
    complete: Complete | None

    @property
    def reports_error(self) -> bool:
        """Whether the act is about an error: of the model call, or of an answer that is not accepted."""
        is_rejected = self.occasion.trigger in OF_ANSWERS and self.rule.action is not PolicyAction.ACCEPT
        return self.occasion.trigger is Trigger.ON_ERROR or is_rejected

    def with_event(self, **changes: Any) -> PolicyAct:
        """Return the act with changed fields of its event."""
        return replace(self, event=self.event.model_copy(update=changes))

    def move_options(self) -> dict[str, Any]:
        """Return the arguments of `move` that all acts share: the source, and the events to append before the move."""
        occasion = self.occasion
        error: list[Entry] = []
        if self.reports_error:
            context = causes.LLM_COMPLETE if occasion.trigger in OF_ANSWERS else None
            text = clean(occasion.error) or ""
            error = causes.error_event(self.held_run.run, occasion.error_type, text, context=context)
        return {"source": Source.POLICY, "events_before": [*error, Entry(self.event)]}


def act(held_run: HeldRun, rules: Policies, occasion: Occasion, *, complete: Complete | None = None) -> Progress | None:
    """Apply the policy for an occasion. Returns None if no rule covers it.

    `complete`: for a run that is not loaded, if a rule for the occasion may complete it.
    """
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
    return _ACTS[rule.action](PolicyAct(held_run, occasion, rule, event, complete))


def count_attempts(run: AgentRun, rules: Policies, occasion: Occasion) -> int:
    """Return how often the policy has acted on such an occasion in the lineage; for an answer, how often in a row.

    Counts stored rows, so a restart or a resume does not reset the number. Each rule of on_error is counted separately.
    """
    if occasion.trigger is Trigger.ON_IDLE:
        return inbox.count_policy_messages(run.root_run_id, occasion.trigger)
    if occasion.trigger in OF_ANSWERS:
        return _count_in_a_row(run, occasion.trigger)
    resumed = AgentRun.objects.filter(
        root_run=run.root_run_id, status=RunStatus.RESUMED, status_reason=occasion.trigger
    )
    if occasion.trigger is not Trigger.ON_ERROR:
        return resumed.count()
    rule = rule_for(rules, occasion.trigger, occasion.kind)
    kinds = map(kind_of, resumed.values_list("error_type", flat=True))
    return sum(rule_for(rules, occasion.trigger, kind) is rule for kind in kinds)


def _count_in_a_row(run: AgentRun, trigger: Trigger) -> int:
    """Return how often the policy has resumed a run because of its last answer, since the last whole answer.

    In between, each run has only one answer.
    """
    rows = AgentRun.objects.filter(root_run=run.root_run_id).values_list(
        "pk", "resumed_from", "status_reason", "step_count"
    )
    resumed_from = {pk: (previous, reason, steps) for pk, previous, reason, steps in rows}
    count, current, steps = 0, run.pk, run.step_count
    while (previous := resumed_from[current][0]) in resumed_from:
        _, reason, steps_before = resumed_from[previous]
        if reason not in OF_ANSWERS or steps - steps_before > 1:
            break
        count += reason == trigger
        current, steps = previous, steps_before
    return count


def _nudge(act: PolicyAct) -> Progress:
    """Send a message to the agent through the inbox. The message has a unique key, so it is delivered once."""
    run, epoch = act.held_run.run, act.held_run.epoch
    text, number = act.rule.message or NUDGE, act.event.attempt or 1
    command = inbox.policy_message(run.pk, text, trigger=act.occasion.trigger, number=number)
    events = [*act.move_options()["events_before"], inbox.received_event(command)]

    def write() -> None:
        with transaction.atomic():
            # Posting a command locks this row too, so no command can arrive before the commit.
            AgentRun.objects.select_for_update(no_key=True, of=("self",)).get(pk=run.pk)
            if command_outcomes.pending_types(run.pk):
                raise DecideAgain
            log.append(run.pk, events, source=Source.POLICY, epoch=epoch)
            command.save(force_insert=True)

    existing = RunCommand.objects.filter(run=run, key=command.key)
    commit_safely(write, is_committed=existing.exists, read_result=do_nothing, lease=act.held_run.lease)
    return Progress.CONTINUE


def _pause(act: PolicyAct) -> Progress:
    """Pause the run, as without a policy: members are notified."""
    occasion = act.occasion
    reason = PauseReason(occasion.error_type)
    message, _ = REDACTOR.clean_text(occasion.error)
    columns = {"error_type": occasion.error_type, "error_message": message}
    paused = RunPaused(reason=reason, detail=message[:2000])
    options = act.move_options() | columns
    return release_run(act.held_run, RunStatus.PAUSED, paused, reason=reason, unless=STOP_OR_PAUSE, **options)


def _accept(act: PolicyAct) -> Progress:
    """Take the answer as if it were whole: it completes the run, or the run continues with the results of its calls."""
    drive = act.held_run
    if not isinstance(drive, Drive) or act.occasion.trigger is Trigger.ON_REFUSED:
        return _complete(act)
    if drive.conversation.last_role != AgentRunMessage.Role.TOOL_RESULT:
        return _complete(act)
    entry = Entry(act.event, step=drive.run.step_count)

    def write() -> None:
        with transaction.atomic():
            log.append(drive.run.pk, [entry], source=Source.POLICY, epoch=drive.epoch)

    commit_safely(write, is_committed=partial(has_accepted, drive.run), read_result=do_nothing, lease=drive.lease)
    return Progress.CONTINUE


def has_accepted(run: AgentRun) -> bool:
    """Return whether a policy has accepted the last answer of a run, and the run continues after it."""
    accepted = log.events_of(run.pk).filter(type=EventType.POLICY_APPLIED, step=run.step_count)
    return accepted.filter(payload__action=PolicyAction.ACCEPT.value).exists()


def _complete(act: PolicyAct) -> Progress:
    if act.complete is not None:
        return act.complete(**act.move_options())
    assert isinstance(act.held_run, Drive)
    return ending.complete(act.held_run, **act.move_options())


def _fail(act: PolicyAct) -> Progress:
    occasion = act.occasion
    text, unless = act.rule.message or occasion.error, _UNLESS_FAILED[occasion.trigger]
    return ending.fail(act.held_run, occasion.error_type, text, unless=unless, **act.move_options())


def _resume(act: PolicyAct) -> Progress:
    """Move the run to waiting, until runs.worker.sweep resumes it. Escalates if no steps are left."""
    run, occasion = act.held_run.run, act.occasion
    if run.step_count >= settings.AGENTOPS_MAX_TOTAL_STEPS:
        why = f"the lineage has used all of its {settings.AGENTOPS_MAX_TOTAL_STEPS} steps"
        return _escalate(act.with_event(action=PolicyAction.ESCALATE, attempt=None), why)
    wait_s = policies.wait_s(act.rule, (act.event.attempt or 1) - 1)
    until = _database_time(run) + timedelta(seconds=wait_s)
    reason = WaitReason(occasion.trigger)
    message, _ = REDACTOR.clean_text(occasion.error)
    return release_run(
        act.held_run,
        RunStatus.WAITING,
        RunWaiting(reason=reason, until=until),
        reason=reason,
        not_before=until,
        error_type=occasion.error_type[:64],
        error_message=message,
        then=None if wait_s else wake_sweep,
        unless=STOP_OR_PAUSE,
        **act.with_event(until=until).move_options(),
    )


def _escalate(act: PolicyAct, why: str = "") -> Progress:
    """Notify people. A run with a question waits for the answer; any other run pauses."""
    held_run, occasion, reason = act.held_run, act.occasion, PauseReason.ESCALATED
    act = act.with_event(reason=clean(": ".join(filter(None, [occasion.detail, why]))))
    move_options = act.move_options() | {"then": partial(notify_people, held_run.run, act.event)}
    if occasion.question is not None:
        assert isinstance(held_run, Drive)
        unless = STOP_OR_MESSAGE | STOP_OR_PAUSE
        return ending.wait_for_answer(held_run, occasion.question, unless=unless, **move_options)
    paused = RunPaused(reason=reason, by=inbox.policy_name(occasion.trigger), detail=act.event.describe())
    return release_run(held_run, RunStatus.PAUSED, paused, reason=reason, unless=STOP_OR_PAUSE, **move_options)


def _gate(act: PolicyAct) -> Progress:
    """Run the gate, outside of any transaction. The run completes if the gate passes; otherwise it escalates."""
    drive = act.held_run
    assert isinstance(drive, Drive)
    assert act.rule.run is not None
    verdict = _verdict(drive, act)
    drive.check()
    act = act.with_event(passed=verdict.passed, output=verdict.output or None)
    return _complete(act.with_event(reason=verdict.reason)) if verdict.passed else _escalate(act, verdict.reason)


def _verdict(drive: Drive, act: PolicyAct) -> GateVerdict:
    """Execute the rule's command, and return its verdict. Raises `StopPending` or `ShutdownDue` if interrupted."""
    trigger = act.occasion.trigger
    context = open_call.context_of_gate(drive, f"gate:{trigger}:{drive.run.step_count}")
    chaos.point("tool.running")
    verdict = policy_commands.execute(
        act.rule.run or "",
        policy_commands.GateInput(context, trigger, transcript.last_answer(drive.conversation)),
        drive.check_for_stop,
    )
    chaos.point("tool.returned")
    return verdict


def notify_people(run: AgentRun, event: PolicyApplied) -> None:
    """Notify the project of an escalation, in the caller's transaction."""
    text, _ = REDACTOR.clean_text(event.describe())
    moves.notify_members(run, notifications.Kind.ESCALATED, "Escalated", text)


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
    **dict.fromkeys(OF_ANSWERS, STOP_OR_MESSAGE | STOP_OR_PAUSE),
}
_ACTS: dict[PolicyAction, Callable[[PolicyAct], Progress]] = {
    PolicyAction.NUDGE: _nudge,
    PolicyAction.DONE: _complete,
    PolicyAction.FAIL: _fail,
    PolicyAction.RESUME: _resume,
    PolicyAction.ESCALATE: _escalate,
    PolicyAction.GATE: _gate,
    PolicyAction.PAUSE: _pause,
    PolicyAction.ACCEPT: _accept,
}
