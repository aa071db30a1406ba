"""Fork: a new run continues from a checkpoint, with another message or another agent.

Everything is validated before the first write. Messages up to the checkpoint are referenced, not copied; see
runs.conversation.ancestry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction

from agentops.base.refusals import Conflict, Invalid
from runs.actions import agent_definitions
from runs.actions.resume import check_message
from runs.conversation import ancestry, transcript
from runs.errors import InvalidAgent, RunNotFound
from runs.lifecycle import creation, inbox
from runs.lifecycle.creation import Opening, Origin
from runs.models import AgentRun, AgentRunMessage, Checkpoint

#: Fields of the agent that a fork may change.
EDITABLE = ("model", "instructions", "max_steps", "settings")


def fork(
    run_id: UUID,
    *,
    by: str,
    step: int | None = None,
    checkpoint_id: UUID | None = None,
    message: str | None = None,
    media: Sequence[creation.Media] = (),
    agent: Mapping[str, Any] | None = None,
    front_end_tools: creation.FrontEndTools | None = None,
) -> AgentRun:
    """Create a run that continues from a checkpoint in the conversation of run `run_id`: by step, or by its ID.

    The new run is the root of a new lineage. Its step numbers continue from the checkpoint, with a new step budget, up
    to the cap. Its `forked_from` is the run that made the checkpoint, which may be a run that run `run_id` continues.

    The model receives the conversation up to the checkpoint, and then `message` with its `media`. Without a message it
    continues from the results of its tools; after a final answer it gets "continue". `agent` contains changed fields of
    the definition, see `EDITABLE`; instructions replace the earlier ones. `front_end_tools` replace the run's tools.

    Writes nothing and raises `RunNotFound`, `MessageEmpty`, `InvalidAgent`, `Invalid` (`no_checkpoint`) or `Conflict`
    (`max_total_steps_exceeded`).
    """
    check_message(message)
    with transaction.atomic():
        run = AgentRun.objects.filter(pk=run_id).first()
        if run is None:
            raise RunNotFound(f"no run {run_id}")
        checkpoint = _checkpoint(run, step, checkpoint_id)
        # Locked, so that a concurrent removal cannot hide the run.
        origin = inbox.lock_run(checkpoint.run_id, "project", "agent")
        checkpoint.run = origin
        opening = Opening(
            config=creation.with_front_end_tools(_config(origin, agent or {}), front_end_tools),
            turns=_turns(checkpoint, message, media),
            max_steps=None if "max_steps" in (agent or {}) else creation.within_cap(origin.max_steps),
            title=origin.title,
            labels=origin.labels,
            by=by,
            message=message,
        )
        return creation.open_run(origin.project, origin.agent, opening, Origin(forked_at=checkpoint))


def _checkpoint(run: AgentRun, step: int | None, checkpoint_id: UUID | None) -> Checkpoint:
    """Return the checkpoint to fork from. Raises `Invalid`, or `Conflict` if no step is left after it."""
    if (step is None) == (checkpoint_id is None):
        raise Invalid("exactly one of step and checkpoint is required", pointer="/step")
    checkpoint = ancestry.checkpoint_of(run, step=step, checkpoint_id=checkpoint_id)
    if checkpoint is None:
        position, pointer = (f"step {step}", "/step") if step is not None else ("this ID", "/checkpoint")
        raise Invalid(
            f"the conversation of this run has no checkpoint at {position}", code="no_checkpoint", pointer=pointer
        )
    cap = settings.AGENTOPS_MAX_TOTAL_STEPS
    if checkpoint.step_number >= cap:
        text = f"at this checkpoint the lineage has used all of its {cap} steps"
        raise Conflict(text, code="max_total_steps_exceeded", steps=checkpoint.step_number)
    return checkpoint


def _config(origin: AgentRun, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the frozen agent with the changes. Raises `InvalidAgent`, whose pointer begins with `/agent`."""
    if unknown := sorted(changes.keys() - set(EDITABLE)):
        raise InvalidAgent(f"a fork cannot change the {unknown[0]!r} of an agent", pointer=f"/agent/{unknown[0]}")
    if origin.agent_config.get("instructions") and changes.get("instructions") == "":
        text = "instructions cannot be removed, only replaced"
        raise InvalidAgent(text, pointer="/agent/instructions")
    try:
        return agent_definitions.changed_config(origin.project, origin.agent_config, changes)
    except InvalidAgent as error:
        error.data["pointer"] = f"/agent{error.data.get('pointer', '')}"
        raise


def _turns(checkpoint: Checkpoint, message: str | None, media: Sequence[creation.Media]) -> list[creation.UserTurn]:
    """Return the user message of the fork; none if the model continues from the results of its tools."""
    if message is not None or media:
        return [creation.turn_of(message, media)]
    last = AgentRunMessage.objects.filter(run=checkpoint.run_id, position=checkpoint.last_message_position)
    is_answered = last.filter(role=AgentRunMessage.Role.ASSISTANT).exists()
    return [transcript.CONTINUE] if is_answered else []
