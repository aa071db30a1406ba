"""The inbox: commands are stored here. The worker that holds the run carries them out."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from django.db import transaction
from pydantic import JsonValue

from agentops.base import database_clock
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.redaction.redact import MODEL_INPUT
from agentops.base.refusals import Conflict, Invalid
from runs import chaos
from runs.errors import MessageEmpty, RunNotFound
from runs.lifecycle import questions, transitions
from runs.lifecycle.command_outcomes import mark_applied
from runs.lifecycle.moves import PHASES
from runs.lifecycle.wake import wake
from runs.models import AgentRun, RunCommand
from runs.statuses import PauseReason, RunStatus
from timeline import log
from timeline.events.command import CommandReceived
from timeline.events.run import RunPaused, RunStopped
from timeline.log import Entry
from timeline.models import Phase, Source

Type = RunCommand.Type
MAX_MESSAGE = 200_000
#: The prefix of a hook as the author of commands.
HOOK = "hook:"


@dataclass(frozen=True)
class PostResult:
    """The result of posting a command."""

    #: The current run, and its previous status.
    run: AgentRun
    status_before: RunStatus
    #: None if the run was already in the requested state.
    command: RunCommand | None = None
    #: Whether this call stored the command.
    is_new: bool = False


def pause(run_id: UUID, *, by: str, key: str | None = None) -> PostResult:
    """Pause the run after its current step, or at once if no worker holds it. No event if it is already paused."""
    return _post(run_id, Type.PAUSE, {}, by=by, key=key)


def stop(run_id: UUID, *, by: str, key: str | None = None) -> PostResult:
    """Stop the run, at once if no worker holds it. No event if it is stopped already."""
    return _post(run_id, Type.STOP, {}, by=by, key=key)


def send(run_id: UUID, message: str, *, by: str, key: str | None = None) -> PostResult:
    """Send a user message to the run. It is delivered once, before the next model call."""
    return _post_message(run_id, Type.SEND, message, by=by, key=key)


def reply(run_id: UUID, message: str, *, by: str, key: str | None = None) -> PostResult:
    """Answer a question of the agent. While a run waits for an answer, `send` does the same."""
    return _post_message(run_id, Type.REPLY, message, by=by, key=key)


def _post_message(run_id: UUID, kind: Type, message: str, *, by: str, key: str | None) -> PostResult:
    if not message.strip():
        raise MessageEmpty("the message must not be empty", pointer="/message")
    if len(message) > MAX_MESSAGE:
        raise Invalid(f"a message must have at most {MAX_MESSAGE} characters", pointer="/message")
    return _post(run_id, kind, {"message": MODEL_INPUT.clean_text(message)[0]}, by=by, key=key)


def pending_commands(run_id: UUID) -> list[RunCommand]:
    """Return the unread commands, oldest first."""
    return list(RunCommand.objects.filter(run_id=run_id, applied_at=None).order_by("received_at", "id"))


def recorded_turn(run_id: UUID, turn: Any, *, number: int) -> RunCommand:
    """Return the user message that follows model call `number` in a recording, as a command."""
    return RunCommand(
        run_id=run_id, key=f"recorded:{number}", type=Type.SEND, payload={"message": turn},
        created_by="fixture", received_at=database_clock.now(),
    )  # fmt: skip


def policy_turn(run_id: UUID, message: str, *, trigger: str, number: int) -> tuple[RunCommand, Entry]:
    """Return the message of a policy to the agent, for the `number`th time in its lineage, and its event.

    Its key and its author cannot collide with others: senders' keys may not contain "~", nor user names ":".
    """
    by = policy_name(trigger)
    command = RunCommand(
        run_id=run_id, key=f"~{by}:{number}", type=Type.SEND, payload={"message": MODEL_INPUT.clean_text(message)[0]},
        created_by=by, received_at=database_clock.now(),
    )  # fmt: skip
    return command, received_event(command)


def opening_turn(run_id: UUID, message: str, *, by: str) -> tuple[RunCommand, Entry]:
    """Return the message of a resume or a fork as a command of the new run, and its event."""
    command = RunCommand(
        run_id=run_id, type=Type.SEND, payload={"message": MODEL_INPUT.clean_text(message)[0]}, created_by=by,
        received_at=database_clock.now(),
    )  # fmt: skip
    return command, replace(received_event(command), phase=Phase.QUEUED)


def hook_turn(run_id: UUID, message: str, *, hook: str, place: str, is_system: bool) -> RunCommand:
    """Return a message of a hook to the agent. `place` names the event and its step or call, so it is sent once."""
    payload: dict[str, Any] = {"message": REDACTOR.clean_text(message)[0]}
    if is_system:
        payload["role"] = "system"
    return _of_hook(run_id, Type.SEND, payload, hook, place)


def hook_stop(run_id: UUID, *, hook: str, place: str) -> RunCommand:
    """Return the command of a hook to stop the run."""
    return _of_hook(run_id, Type.STOP, {}, hook, place)


def is_system_message(command: RunCommand) -> bool:
    """Whether a message becomes a system message. Senders cannot choose this."""
    return "role" in command.payload


def _of_hook(run_id: UUID, kind: Type, payload: dict[str, Any], hook: str, place: str) -> RunCommand:
    """Return a command of a hook. Its key and its author cannot collide with others: see `policy_turn`."""
    return RunCommand(
        run_id=run_id, key=f"~hook:{place}"[:128], type=kind, payload=payload, created_by=f"{HOOK}{hook}"[:200],
        received_at=database_clock.now(),
    )  # fmt: skip


def policy_turns(root_run_id: UUID, trigger: str) -> int:
    """Return how often this policy has sent a message in the lineage."""
    return RunCommand.objects.filter(run__root_run=root_run_id, created_by=policy_name(trigger)).count()


def policy_name(trigger: str) -> str:
    """Return the name of a policy as an author."""
    return f"policy:{trigger}"


def answer_early(run: AgentRun) -> None:
    """Answer the question of a run that has just begun to wait with a reply that arrived earlier.

    Called in the transaction of the move.
    """
    replies = RunCommand.objects.filter(run=run, applied_at=None, type=Type.REPLY).order_by("received_at", "id")
    reply = replies.first()
    if reply is not None:
        mark_applied([reply])
        questions.answer(run, reply)


def has_recorded_turn(run_id: UUID, *, number: int) -> bool:
    """Whether this message was already stored with an earlier answer, which was rolled back."""
    return RunCommand.objects.filter(run=run_id, key=f"recorded:{number}").exists()


def received_event(command: RunCommand) -> Entry:
    text = command.payload.get("message")
    preview_of_payload: JsonValue = {"message": REDACTOR.clean_text(text)[0][:280]} if isinstance(text, str) else None
    payload = CommandReceived(key=command.key, type=command.type, by=command.created_by, payload=preview_of_payload)
    return Entry(payload, ref_id=command.pk)


def _post(run_id: UUID, kind: Type, payload: dict[str, Any], *, by: str, key: str | None) -> PostResult:
    key = stored_key(key)
    # Lock the run's row, so that a worker's move is finished and visible. NO KEY, because a worker that commits a
    # result locks the row of the log and then refers to the run, which would otherwise be a deadlock.
    with transaction.atomic():
        run = AgentRun.objects.select_for_update(no_key=True).filter(pk=run_id).first()
        if run is None:
            raise RunNotFound(f"no run {run_id}")
        if run.is_recorded:
            text = "another program executes the run: control it there; here, a stop ends its recording"
            raise Conflict(text, code="run_is_external", run_status=run.status)
        status_before = run.state
        earlier = RunCommand.objects.filter(run=run, key=key).first() if key is not None else None
        if earlier is not None:
            if (earlier.type, earlier.payload) != (kind, payload):
                raise Conflict(
                    f"the run already has a different command with the key {key!r}",
                    code="command_key_conflict",
                    pointer="/key",
                )
            return PostResult(run, status_before, earlier)
        if _is_in_requested_state(run, kind):
            return PostResult(run, status_before)
        if run.state.terminal:
            raise Conflict(f"a {run.status} run accepts no commands", code="run_terminal", run_status=run.status)
        command = RunCommand.objects.create(
            run=run, key=key, type=kind, payload=payload, created_by=by, received_at=database_clock.now()
        )
        entry = replace(received_event(command), phase=PHASES[run.state])
        log.append(run.pk, [entry], source=Source.WEB)
        _act_now(run, command)
        chaos.point("command.in_transaction")
    return PostResult(run, status_before, command, is_new=True)


def stored_key(key: str | None) -> str | None:
    """Return the key of a command as stored.

    A key with a secret becomes a digest, so that different keys stay different.
    """
    if key is None or REDACTOR.clean_text(key)[0] == key:
        return key
    return f"redacted:{hashlib.sha256(key.encode(errors='replace')).hexdigest()[:32]}"


def _is_in_requested_state(run: AgentRun, kind: Type) -> bool:
    requested = {Type.PAUSE: RunStatus.PAUSED, Type.STOP: RunStatus.STOPPED}.get(kind)
    return run.state is requested


def _act_now(run: AgentRun, command: RunCommand) -> None:
    """Carry out a command immediately if no worker holds the run."""
    if run.state is RunStatus.RUNNING:
        return
    if command.type == Type.STOP:
        mark_applied([command])
        stopped = RunStopped(reason="operator", by=command.created_by)
        transitions.move(run, RunStatus.STOPPED, stopped, source=Source.WEB, reason="operator")
    elif command.type == Type.PAUSE:
        mark_applied([command])
        reason = PauseReason.OPERATOR
        paused = RunPaused(reason=reason, by=command.created_by)
        transitions.move(run, RunStatus.PAUSED, paused, source=Source.WEB, reason=reason)
    elif questions.is_waiting_for_answer(run):
        mark_applied([command])
        questions.answer(run, command)
    else:
        wake(run)
