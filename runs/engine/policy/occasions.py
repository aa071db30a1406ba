"""The occasions on which a policy may act on a run, and what happens without a rule for them."""

from __future__ import annotations

from pydantic import ValidationError

from runs.agents import policies
from runs.agents.policies import ErrorKind, Policies, PolicyAction, Trigger, kind_of, rule_for
from runs.engine import ending
from runs.engine.drive import Drive
from runs.engine.ending import ASKED_TO_END, SPOKEN_TO
from runs.engine.leases import Lease
from runs.engine.leaving import DecideAgain, Unopened
from runs.engine.policy import acts
from runs.engine.policy.acts import Occasion
from runs.engine.results import Progress
from runs.engine.stopping import LetGo, StopAsked
from runs.engine.turns import open_call
from runs.lifecycle import causes, inbox
from runs.models import AgentRun, RunCommand
from runs.providers.base import FixtureExhausted
from runs.providers.retries import Failure
from runs.statuses import WaitReason


def on_error(drive: Drive, failure: Failure) -> Progress:
    """The model failed and no attempt is left. Without a rule the run pauses, or fails if it cannot be resumed.

    A recording that ends is not an error of the model: the run pauses.
    """
    if failure.error_type == FixtureExhausted.code:
        return ending.pause_exhausted(drive, failure.message)
    kind = kind_of(failure.error_type)
    occasion = Occasion(Trigger.ON_ERROR, failure.error_type, failure.message, failure.message, kind)
    if (progress := acts.act(drive, drive.policies, occasion)) is not None:
        return progress
    if failure.resumable:
        return ending.pause_error(drive, failure.error_type, failure.message, details=failure.details)
    return ending.fail(drive, failure.error_type, failure.message)


def on_max_steps(drive: Drive) -> Progress:
    """The run has used up its steps. It pauses unless a rule of on_error names `max_turns`."""
    detail = f"{drive.run.step_count} steps made"
    occasion = Occasion(Trigger.ON_ERROR, causes.MAX_TURNS, detail, detail, ErrorKind.MAX_TURNS)
    return acts.act(drive, drive.policies, occasion) or ending.pause_max_steps(drive)


def on_unopened(run: AgentRun, lease: Lease, error: Exception) -> Progress:
    """The run cannot be loaded. Without a rule it pauses, since what is missing can come back.

    It fails only if its conversation cannot be read. A pending stop or pause goes first. A gate is not run.
    """
    held = Unopened(run, lease)
    try:
        rules = policies.parse(run.agent_config.get("policies") or {})
    except ValueError:
        rules = Policies(rules={})
    while True:
        try:
            return _leave_unopened(held, rules, error)
        except DecideAgain:
            continue


def _leave_unopened(held: Unopened, rules: Policies, error: Exception) -> Progress:
    pending, error_type = inbox.waiting(held.run.pk), "unusable_agent"
    if RunCommand.Type.STOP in pending:
        return ending.stop(held)
    if RunCommand.Type.PAUSE in pending:
        return ending.pause(held)
    rule = rule_for(rules, Trigger.ON_ERROR)
    if rule is not None and rule.action is not PolicyAction.GATE:
        progress = acts.act(held, rules, Occasion(Trigger.ON_ERROR, error_type, str(error), str(error)))
        assert progress is not None
        return progress
    if isinstance(error, ValidationError):
        text = f"The stored conversation cannot be read: {error}"
        return ending.fail(held, error_type, text, unless=ASKED_TO_END)
    return ending.pause_error(held, error_type, str(error))


def on_dead(drive: Drive) -> Progress:
    """The last worker died and this one has taken over. Returns CONTINUE without a rule for that."""
    if inbox.waiting(drive.run.pk) & ASKED_TO_END:
        return Progress.CONTINUE
    where = f"in step {drive.run.step_count + 1}"
    occasion = Occasion(Trigger.ON_DEAD, "worker_died", f"its worker died {where}", where)
    try:
        return acts.act(drive, drive.policies, occasion) or Progress.CONTINUE
    except (DecideAgain, StopAsked):
        return Progress.CONTINUE
    except LetGo:
        # The reason makes the next worker decide about the death.
        return ending.hand_back(drive, WaitReason.ON_DEAD)


def on_idle(drive: Drive) -> Progress:
    """The agent answered without calling a tool that ends the run. Called only if a rule is about that."""
    error = "it answered without saying that it is done"
    return acts.act(drive, drive.policies, Occasion(Trigger.ON_IDLE, "idle", error, "")) or Progress.CONTINUE


def on_prompt(drive: Drive) -> Progress:
    """The agent asks a person. Without a rule, and with a message pending, the run waits for the answer."""
    question = open_call.question(drive)
    assert question is not None
    text = question.question
    occasion = Occasion(Trigger.ON_PROMPT, "asked", f"it asks: {text}", text, question=question)
    progress = None
    if not inbox.waiting(drive.run.pk) & SPOKEN_TO:
        progress = acts.act(drive, drive.policies, occasion)
    return progress or ending.wait_for_answer(drive, question)
