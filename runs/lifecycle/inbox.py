"""The inbox of a run: its commands. The worker that holds the run carries them out.

If no worker holds the run, a command is carried out when it is posted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
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
from runs.statuses import PauseReason, RunStatus, WaitReason
from timeline import log
from timeline.events.notice import CommandReceived
from timeline.events.run import RunPaused, RunPhase, RunStopped
from timeline.log import Entry
from timeline.models import Source

Type = RunCommand.Type
#: Maximum characters of a message.
MAX_MESSAGE = 200_000
#: Maximum characters of the name of a signal.
MAX_SIGNAL = 200
#: The prefix of the name of a hook that is the author of a command.
HOOK = "hook:"


@dataclass(frozen=True)
class PostResult:
    """The result of posting a command."""

    run: AgentRun
    #: The status of the run before the command.
    status_before: RunStatus
    #: None if the run was already in the requested state.
    command: RunCommand | None = None
    #: Whether this call stored the command.
    is_new: bool = False


def pause(run_id: UUID, *, by: str, key: str | None = None) -> PostResult:
    """Pause the run after its current step, or at once if no worker holds it. Does nothing if it is paused already."""
    return _post(run_id, Type.PAUSE, {}, by=by, key=key)


def stop(run_id: UUID, *, by: str, key: str | None = None) -> PostResult:
    """Stop the run, at once if no worker holds it. Does nothing if it is stopped already."""
    return _post(run_id, Type.STOP, {}, by=by, key=key)


def send(run_id: UUID, message: str, *, by: str, key: str | None = None) -> PostResult:
    """Send a user message to the run. It is delivered once, before the next model call."""
    return _post_message(run_id, Type.SEND, message, by=by, key=key)


def reply(run_id: UUID, message: str, *, by: str, key: str | None = None) -> PostResult:
    """Answer a question of the agent. While a run waits for an answer, `send` does the same."""
    return _post_message(run_id, Type.REPLY, message, by=by, key=key)


def signal(run_id: UUID, name: str, value: JsonValue, *, by: str, key: str | None = None) -> PostResult:
    """Send a signal to a run of a durable function. The run keeps it until its code waits for it.

    Raises `Invalid` for a bad name.
    """
    if not 0 < len(name) <= MAX_SIGNAL:
        raise Invalid(f"the name of a signal must have 1 to {MAX_SIGNAL} characters", pointer="/name")
    cleaned, _ = MODEL_INPUT.clean(value)
    return _post(run_id, Type.SIGNAL, {"name": name, "payload": cleaned}, by=by, key=key)


def copy_signals(signals: Iterable[RunCommand], run: AgentRun) -> None:
    """Send signals of a paused run to the run that continues it, in the transaction that creates that run."""
    for signal in signals:
        copied = _command(run.pk, Type.SIGNAL, signal.payload, by=signal.created_by, key=signal.key)
        copied.save(force_insert=True)
        log.append(run.pk, [replace(received_event(copied), phase=PHASES[run.state])], source=Source.WEB)


def _post_message(run_id: UUID, kind: Type, message: str, *, by: str, key: str | None) -> PostResult:
    if not message.strip():
        raise MessageEmpty("the message must not be empty", pointer="/message")
    if len(message) > MAX_MESSAGE:
        raise Invalid(f"a message must have at most {MAX_MESSAGE} characters", pointer="/message")
    return _post(run_id, kind, {"message": MODEL_INPUT.clean_text(message)[0]}, by=by, key=key)


def pending_commands(run_id: UUID) -> list[RunCommand]:
    """Return the commands without an outcome, oldest first."""
    return list(RunCommand.objects.filter(run_id=run_id, applied_at=None).order_by("received_at", "id"))


def recorded_message(run_id: UUID, message: Any, *, number: int) -> RunCommand:
    """Return the user message that follows model call `number` in a fixture, as an unsaved command."""
    return _command(run_id, Type.SEND, {"message": message}, by="fixture", key=f"recorded:{number}")


def policy_message(run_id: UUID, message: str, *, trigger: str, number: int) -> RunCommand:
    """Return the message of a policy to the agent, the `number`th in its lineage, as an unsaved command.

    Its key and its author cannot collide with others: senders' keys may not contain "~", nor user names ":".
    """
    by = policy_name(trigger)
    return _command(run_id, Type.SEND, {"message": MODEL_INPUT.clean_text(message)[0]}, by=by, key=f"~{by}:{number}")


def opening_message(run_id: UUID, message: str, *, by: str) -> RunCommand:
    """Return the message of a resume or a fork as an unsaved command of the new run."""
    return _command(run_id, Type.SEND, {"message": MODEL_INPUT.clean_text(message)[0]}, by=by)


def hook_message(run_id: UUID, message: str, *, hook: str, place: str, is_system: bool) -> RunCommand:
    """Return a message of a hook to the agent, as an unsaved command.

    `place` names the hook's event and its step or call. It is part of the key, so the message is sent once.
    """
    payload: dict[str, Any] = {"message": REDACTOR.clean_text(message)[0]}
    if is_system:
        payload["role"] = "system"
    return _hook_command(run_id, Type.SEND, payload, hook, place)


def hook_stop(run_id: UUID, *, hook: str, place: str) -> RunCommand:
    """Return the command of a hook to stop the run, unsaved."""
    return _hook_command(run_id, Type.STOP, {}, hook, place)


def is_system_message(command: RunCommand) -> bool:
    """Whether a message becomes a system message. Senders cannot choose this."""
    return "role" in command.payload


def _hook_command(run_id: UUID, kind: Type, payload: dict[str, Any], hook: str, place: str) -> RunCommand:
    """Return a command of a hook. Its key and its author cannot collide with others: see `policy_message`."""
    return _command(run_id, kind, payload, by=f"{HOOK}{hook}"[:200], key=f"~hook:{place}"[:128])


def _command(run_id: UUID, kind: Type, payload: dict[str, Any], *, by: str, key: str | None = None) -> RunCommand:
    return RunCommand(
        run_id=run_id, key=key, type=kind, payload=payload, created_by=by, received_at=database_clock.now()
    )


def count_policy_messages(root_run_id: UUID, trigger: str) -> int:
    """Return how many messages this policy has sent in the lineage."""
    return RunCommand.objects.filter(run__root_run=root_run_id, created_by=policy_name(trigger)).count()


def policy_name(trigger: str) -> str:
    """Return the name of a policy that is the author of commands or events."""
    return f"policy:{trigger}"


def answer_early(run: AgentRun) -> None:
    """If a reply arrived before the question of a run that has just begun to wait, make it the answer.

    Called in the transaction of the move.
    """
    replies = RunCommand.objects.filter(run=run, applied_at=None, type=Type.REPLY).order_by("received_at", "id")
    reply = replies.first()
    if reply is not None:
        mark_applied([reply])
        questions.answer(run, reply)


def has_recorded_message(run_id: UUID, *, number: int) -> bool:
    """Whether this message of a fixture was already stored, with an earlier answer that was rolled back."""
    return RunCommand.objects.filter(run=run_id, key=f"recorded:{number}").exists()


def received_event(command: RunCommand) -> Entry:
    """Return the event that a command was received, with a preview of its message."""
    text = command.payload.get("message")
    preview_of_payload: JsonValue = {"message": REDACTOR.clean_text(text)[0][:280]} if isinstance(text, str) else None
    payload = CommandReceived(key=command.key, type=command.type, by=command.created_by, payload=preview_of_payload)
    return Entry(payload, ref_id=command.pk)


def _post(run_id: UUID, kind: Type, payload: dict[str, Any], *, by: str, key: str | None) -> PostResult:
    """Store a command, and carry it out if no worker holds the run. A repetition with the same key does nothing.

    Raises `RunNotFound`, and `Conflict` if the run accepts no commands or the key belongs to a different command.
    """
    key = stored_key(key)
    with transaction.atomic():
        run = lock_run(run_id)
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
        if kind is Type.SIGNAL and not run.is_durable:
            text = "only runs of durable functions receive signals"
            raise Conflict(text, code="run_not_remote", run_status=run.status)
        if _is_in_requested_state(run, kind):
            return PostResult(run, status_before)
        if run.state.terminal:
            raise Conflict(f"a {run.status} run accepts no commands", code="run_terminal", run_status=run.status)
        command = _command(run.pk, kind, payload, by=by, key=key)
        command.save(force_insert=True)
        entry = replace(received_event(command), phase=PHASES[run.state])
        log.append(run.pk, [entry], source=Source.WEB)
        _carry_out_if_released(run, command)
        if run.is_remote:
            log.announce_run(run.project_id, run.pk)
        chaos.point("command.in_transaction")
    return PostResult(run, status_before, command, is_new=True)


def lock_run(run_id: UUID, *related: str) -> AgentRun:
    """Lock and return a run with these related rows, so that a worker's move is finished and visible.

    Uses FOR NO KEY UPDATE, because a worker that commits a result locks the row of the log and then refers to the run:
    with FOR UPDATE, both would deadlock. Raises `RunNotFound`.
    """
    rows = AgentRun.objects.select_for_update(no_key=True, of=("self",))
    run = (rows.select_related(*related) if related else rows).filter(pk=run_id).first()
    if run is None:
        raise RunNotFound(f"no run {run_id}")
    return run


def stored_key(key: str | None) -> str | None:
    """Return the key of a command as stored. A key with a secret becomes a digest, so that it stays unique."""
    if key is None or REDACTOR.clean_text(key)[0] == key:
        return key
    return f"redacted:{hashlib.sha256(key.encode(errors='replace')).hexdigest()[:32]}"


def _is_in_requested_state(run: AgentRun, kind: Type) -> bool:
    requested = {Type.PAUSE: RunStatus.PAUSED, Type.STOP: RunStatus.STOPPED}.get(kind)
    return run.state is requested


def _carry_out_if_released(run: AgentRun, command: RunCommand) -> None:
    """If no worker holds the run, carry out a stop, a pause or an answer, or wake a worker for a message."""
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
    elif command.type == Type.SIGNAL:
        _continue_after_signal(run)
    elif questions.is_waiting_for_answer(run):
        mark_applied([command])
        questions.answer(run, command)
    else:
        wake(run)


def _continue_after_signal(run: AgentRun) -> None:
    """Queue a run that waits for a signal. It then receives the signal, or waits on for another one."""
    if run.state is RunStatus.WAITING and run.status_reason == WaitReason.SIGNAL:
        payload = RunPhase(status=RunStatus.QUEUED, reason="signal_received")
        options: dict[str, Any] = {"reason": "signal_received", "not_before": None}
        transitions.move(run, RunStatus.QUEUED, payload, source=Source.WEB, **options)
