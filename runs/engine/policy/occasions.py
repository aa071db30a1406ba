"""What happens to a run that a policy may be about, and what becomes of it where no rule says so."""

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
    """The model has failed, and it is not asked again. Without a policy the run pauses; it fails only where nobody can
    resume it. A recording that ends is no failure of a model."""
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
    """The run has used up its steps: an error only to a rule that says so. Without one it pauses."""
    made = f"{drive.run.step_count} steps made"
    occasion = Occasion(Trigger.ON_ERROR, causes.MAX_TURNS, made, made, ErrorKind.MAX_TURNS)
    return acts.act(drive, drive.policies, occasion) or ending.pause_max_steps(drive)


def on_unopened(run: AgentRun, lease: Lease, error: Exception) -> Progress:
    """The run cannot be loaded as its agent says. No gate could say that it is done, and without a policy it pauses:
    what is missing can come back. Only a conversation that cannot be read ends it. What was asked of it goes before."""
    held = Unopened(run, lease)
    try:
        wanted = policies.parse(run.agent_config.get("policies") or {})
    except ValueError:
        wanted = Policies(rules={})
    while True:
        try:
            return _leave_unopened(held, wanted, error)
        except DecideAgain:
            continue


def _leave_unopened(held: Unopened, wanted: Policies, error: Exception) -> Progress:
    pending, error_type = inbox.waiting(held.run.pk), "unusable_agent"
    if RunCommand.Type.STOP in pending:
        return ending.stop(held)
    if RunCommand.Type.PAUSE in pending:
        return ending.pause(held)
    rule = rule_for(wanted, Trigger.ON_ERROR)
    if rule is not None and rule.action is not PolicyAction.GATE:
        progress = acts.act(held, wanted, Occasion(Trigger.ON_ERROR, error_type, str(error), str(error)))
        assert progress is not None
        return progress
    if isinstance(error, ValidationError):
        text = f"The stored conversation cannot be read: {error}"
        return ending.fail(held, error_type, text, unless=ASKED_TO_END)
    return ending.pause_error(held, error_type, str(error))


def on_dead(drive: Drive) -> Progress:
    """The worker before has died, and this one has taken over; CONTINUE where nobody wants more than that."""
    if inbox.waiting(drive.run.pk) & ASKED_TO_END:
        return Progress.CONTINUE
    where = f"in step {drive.run.step_count + 1}"
    occasion = Occasion(Trigger.ON_DEAD, "worker_died", f"its worker died {where}", where)
    try:
        return acts.act(drive, drive.policies, occasion) or Progress.CONTINUE
    except (DecideAgain, StopAsked):
        return Progress.CONTINUE
    except LetGo:
        # Queued for this reason, whoever takes it up decides about the death.
        return ending.hand_back(drive, WaitReason.ON_DEAD)


def on_idle(drive: Drive) -> Progress:
    """It answered, and did not say that it is done. Only asked where a rule is about that."""
    error = "it answered without saying that it is done"
    return acts.act(drive, drive.policies, Occasion(Trigger.ON_IDLE, "idle", error, "")) or Progress.CONTINUE


def on_prompt(drive: Drive) -> Progress:
    """It asks a person. Without a policy, and where somebody is talking to it, it waits for the answer."""
    question = open_call.question(drive)
    assert question is not None
    text = question.question
    occasion = Occasion(Trigger.ON_PROMPT, "asked", f"it asks: {text}", text, asked=question)
    progress = None
    if not inbox.waiting(drive.run.pk) & SPOKEN_TO:
        progress = acts.act(drive, drive.policies, occasion)
    return progress or ending.wait_for_answer(drive, question)
