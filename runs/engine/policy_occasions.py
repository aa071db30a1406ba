"""The occasions on which a policy may act on a run, and the default without a rule for an occasion."""

from __future__ import annotations

from pydantic import ValidationError
from pydantic_ai.messages import ModelResponse

from runs.agents import policies
from runs.agents.policies import ErrorKind, Policies, PolicyAction, Trigger, kind_of, rule_for
from runs.engine import ending, policy_acts
from runs.engine.drive import Drive
from runs.engine.ending import STOP_OR_MESSAGE, STOP_OR_PAUSE
from runs.engine.leases import Lease
from runs.engine.policy_acts import Occasion
from runs.engine.releases import DecideAgain, HeldRun, UnloadedRun
from runs.engine.results import Progress, ShutdownDue, StopPending
from runs.engine.turns import open_call
from runs.lifecycle import causes, command_outcomes
from runs.lifecycle.causes import LLM_COMPLETE, STEP
from runs.models import AgentRun
from runs.providers import finish_reasons
from runs.providers.base import FixtureExhausted
from runs.providers.finish_reasons import AnswerFault
from runs.providers.retries import Failure
from runs.statuses import PauseReason, WaitReason


def on_error(drive: Drive, failure: Failure) -> Progress:
    """Handle a model failure after the last attempt. Without a rule the run pauses.

    If a fixture has no more answers, the run pauses: that is not an error of the model.
    """
    if failure.error_type == FixtureExhausted.code:
        return ending.pause_exhausted(drive, failure.message)
    kind = kind_of(failure.error_type)
    occasion = Occasion(Trigger.ON_ERROR, failure.error_type, failure.message, failure.message, kind)
    if (progress := policy_acts.act(drive, drive.policies, occasion)) is not None:
        return progress
    return ending.pause_error(drive, failure.error_type, failure.message, details=failure.details)


def on_max_steps(drive: Drive) -> Progress:
    """Handle a run at its step limit. It pauses unless a rule of on_error names `max_turns`."""
    detail = ending.steps_used(drive.run)
    occasion = Occasion(Trigger.ON_ERROR, causes.MAX_TURNS, detail, detail, ErrorKind.MAX_TURNS)
    return policy_acts.act(drive, drive.policies, occasion) or ending.pause_max_steps(drive)


#: Why an answer is not whole → the policy about it, and the reason of the pause.
_ANSWER_FAULTS = {
    AnswerFault.CUT: (Trigger.ON_CUT, PauseReason.ANSWER_CUT),
    AnswerFault.REFUSED: (Trigger.ON_REFUSED, PauseReason.ANSWER_REFUSED),
}


def of_answer(answer: ModelResponse) -> Occasion | None:
    """Return the occasion of an answer that was cut off or refused; None for a whole answer."""
    fault = finish_reasons.fault_of(answer)
    if fault is None:
        return None
    trigger, reason = _ANSWER_FAULTS[fault]
    detail = finish_reasons.explain(answer)
    return Occasion(trigger, reason, detail, detail)


def pause_after_answer(held_run: HeldRun, occasion: Occasion) -> Progress:
    """Pause a run on an occasion of its answer."""
    reason = PauseReason(occasion.error_type)
    return ending.pause_error(held_run, reason, occasion.error, context=LLM_COMPLETE, reason=reason)


def on_answer_fault(drive: Drive) -> Progress:
    """Handle an answer that was cut off or refused. Without a rule the run pauses."""
    assert drive.last_answer is not None
    occasion = of_answer(drive.last_answer)
    assert occasion is not None
    return policy_acts.act(drive, drive.policies, occasion) or pause_after_answer(drive, occasion)


def on_load_failure(run: AgentRun, lease: Lease, error: Exception) -> Progress:
    """Handle a run whose agent or conversation cannot be loaded. A pending stop or pause has priority.

    By default the run pauses, because a missing provider or tool may be installed later. It fails only if the stored
    conversation is invalid. A rule with a gate (a program that decides) is skipped, because it needs a loaded run.
    """
    held_run = UnloadedRun(run, lease)
    try:
        rules = policies.parse(run.agent_config.get("policies") or {})
    except ValueError:
        rules = Policies(rules={})
    while True:
        try:
            return _release_unloaded(held_run, rules, error)
        except DecideAgain:
            continue  # a command arrived before the commit: decide again with it


def _release_unloaded(held_run: UnloadedRun, rules: Policies, error: Exception) -> Progress:
    """Release a run that cannot be loaded. Raises `DecideAgain` if a command has arrived."""
    error_type = "unusable_agent"
    if (progress := ending.follow_command(held_run)) is not None:
        return progress
    rule = rule_for(rules, Trigger.ON_ERROR)
    if rule is not None and rule.action is not PolicyAction.GATE:
        progress = policy_acts.act(held_run, rules, Occasion(Trigger.ON_ERROR, error_type, str(error), str(error)))
        assert progress is not None
        return progress
    if isinstance(error, ValidationError):
        text = f"The stored conversation cannot be read: {error}"
        return ending.fail(held_run, error_type, text, unless=STOP_OR_PAUSE)
    return ending.pause_error(held_run, error_type, str(error), context=STEP)


def on_dead(drive: Drive) -> Progress:
    """Handle a run whose last worker died. Returns CONTINUE without a rule for deaths."""
    if command_outcomes.pending_types(drive.run.pk) & STOP_OR_PAUSE:
        return Progress.CONTINUE
    where = f"in step {drive.run.step_count + 1}"
    occasion = Occasion(Trigger.ON_DEAD, "worker_died", f"the worker died {where}", where)
    try:
        return policy_acts.act(drive, drive.policies, occasion) or Progress.CONTINUE
    except (DecideAgain, StopPending):
        return Progress.CONTINUE
    except ShutdownDue:
        # By this reason the next worker applies the on_dead rule.
        return ending.hand_back(drive, WaitReason.ON_DEAD)


def on_idle(drive: Drive) -> Progress:
    """Handle an answer without a call of a tool that ends the run. Called only if there is a rule."""
    error = "the agent answered without calling done"
    return policy_acts.act(drive, drive.policies, Occasion(Trigger.ON_IDLE, "idle", error, "")) or Progress.CONTINUE


def on_prompt(drive: Drive) -> Progress:
    """Handle a question of the agent. Without a rule, or with a pending message, the run waits for the answer."""
    question = open_call.question(drive)
    assert question is not None
    text = question.question
    occasion = Occasion(Trigger.ON_PROMPT, "asked", f"the agent asks: {text}", text, question=question)
    progress = None
    if not question.is_for_program and not command_outcomes.pending_types(drive.run.pk) & STOP_OR_MESSAGE:
        progress = policy_acts.act(drive, drive.policies, occasion)
    return progress or ending.wait_for_answer(drive, question)
