"""The inbox: wishes are recorded here first and acted on by whoever drives the run."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.utils import timezone
from pydantic import JsonValue

from runs import chaos
from runs.errors import CommandKeyTaken, InvalidInput, MessageEmpty, RunNotFound, RunTerminal
from runs.lifecycle import questions, transitions
from runs.lifecycle.command_outcomes import mark_applied
from runs.lifecycle.wake import wake
from runs.models import AgentRun, RunCommand
from runs.statuses import PauseReason, RunStatus
from timeline import log
from timeline.events.command import CommandReceived
from timeline.events.run import RunPaused, RunStopped
from timeline.log import Entry
from timeline.models import Phase, Source
from timeline.redaction.redact import DEFAULT as REDACTOR

Type = RunCommand.Type
MAX_MESSAGE = 200_000


@dataclass(frozen=True)
class Posted:
    """What became of a wish."""

    #: As it is now, and what it was before.
    run: AgentRun
    was: RunStatus
    #: None where it was granted before anyone wished it.
    command: RunCommand | None = None
    #: Whether it is this call that recorded the command.
    new: bool = False


def pause(run_id: UUID, *, by: str, key: str | None = None) -> Posted:
    """Pause after the tools of the turn; a run that no worker holds pauses at once. Paused already: no event."""
    return _wish(run_id, Type.PAUSE, {}, by=by, key=key)


def stop(run_id: UUID, *, by: str, key: str | None = None) -> Posted:
    """End the run; one that no worker holds ends at once. Stopped already: no event."""
    return _wish(run_id, Type.STOP, {}, by=by, key=key)


def send(run_id: UUID, message: str, *, by: str, key: str | None = None) -> Posted:
    """A user turn for the running conversation, delivered once, before the next model call."""
    return _say(run_id, Type.SEND, message, by=by, key=key)


def reply(run_id: UUID, message: str, *, by: str, key: str | None = None) -> Posted:
    """The same, as the answer to what the agent asked. While a run waits for an answer, the next message is the answer,
    whichever of the two it is."""
    return _say(run_id, Type.REPLY, message, by=by, key=key)


def _say(run_id: UUID, kind: Type, message: str, *, by: str, key: str | None) -> Posted:
    if not message.strip():
        raise MessageEmpty("a message needs some text", pointer="/message")
    if len(message) > MAX_MESSAGE:
        raise InvalidInput(f"a message has at most {MAX_MESSAGE} characters", pointer="/message")
    return _wish(run_id, kind, {"message": REDACTOR.clean_text(message)[0]}, by=by, key=key)


def pending(run_id: UUID) -> list[RunCommand]:
    """The unread commands, in the order in which they came."""
    return list(RunCommand.objects.filter(run_id=run_id, applied_at=None).order_by("id"))


def waiting(run_id: UUID) -> set[str]:
    """The types of the unread commands: asked before each model call, so without the ORM's compiler."""
    key = AgentRun._meta.pk.get_db_prep_value(run_id, connection)
    with connection.cursor() as cursor:
        cursor.execute("SELECT type FROM agent_run_commands WHERE run_id = %s AND applied_at IS NULL", [key])
        return {row[0] for row in cursor.fetchall()}


def recorded_turn(run_id: UUID, turn: Any, *, number: int) -> RunCommand:
    """The user turn that a recording has after call `number`, as a command to commit with the model's answer."""
    return RunCommand(
        run_id=run_id, key=f"recorded:{number}", type=Type.SEND, payload={"message": turn},
        created_by="fixture", received_at=timezone.now(),
    )  # fmt: skip


def policy_turn(run_id: UUID, message: str, *, trigger: str, number: int) -> tuple[RunCommand, Entry]:
    """What a policy says to the agent, for the `number`th time in its lineage. "~" is no character of a sender's key,
    and ":" none of a person's name, so nobody else's are taken for these."""
    by = policy_name(trigger)
    command = RunCommand(
        run_id=run_id, key=f"~{by}:{number}", type=Type.SEND, payload={"message": REDACTOR.clean_text(message)[0]},
        created_by=by, received_at=timezone.now(),
    )  # fmt: skip
    return command, received(command)


def opening_turn(run_id: UUID, message: str, *, by: str) -> tuple[RunCommand, Entry]:
    """Return the message given with a resume or a fork, as a command of the new run; its opening applies it."""
    command = RunCommand(
        run_id=run_id, type=Type.SEND, payload={"message": REDACTOR.clean_text(message)[0]}, created_by=by,
        received_at=timezone.now(),
    )  # fmt: skip
    return command, replace(received(command), phase=Phase.QUEUED)


def policy_turns(root_run_id: UUID, trigger: str) -> int:
    """How often a policy has spoken to the agent of this lineage."""
    return RunCommand.objects.filter(run__root_run=root_run_id, created_by=policy_name(trigger)).count()


def policy_name(trigger: str) -> str:
    """Who acts where a policy does."""
    return f"policy:{trigger}"


def answer_early(run: AgentRun) -> None:
    """A run that has just begun to wait for an answer may have got it a moment before. In the move's transaction."""
    replies = RunCommand.objects.filter(run=run, applied_at=None, type=Type.REPLY).order_by("id")
    reply = replies.first()
    if reply is not None:
        mark_applied([reply])
        questions.answer(run, reply)


def has_recorded_turn(run_id: UUID, *, number: int) -> bool:
    """Whether it came with an earlier answer of call `number`, which was rolled back."""
    return RunCommand.objects.filter(run=run_id, key=f"recorded:{number}").exists()


def received(command: RunCommand) -> Entry:
    text = command.payload.get("message")
    preview_of_payload: JsonValue = {"message": text[:280]} if isinstance(text, str) else None
    payload = CommandReceived(key=command.key, type=command.type, by=command.created_by, payload=preview_of_payload)
    return Entry(payload, ref_id=command.pk)


def _wish(run_id: UUID, kind: Type, payload: dict[str, Any], *, by: str, key: str | None) -> Posted:
    key = kept_key(key)
    # Locks the run's row: a worker that moves it at this moment is waited for, and then seen. NO KEY: a worker that
    # commits a result holds the log's row, and at its end refers to the run; it must not wait for us, who want the log.
    with transaction.atomic():
        run = AgentRun.objects.select_for_update(no_key=True).filter(pk=run_id).first()
        if run is None:
            raise RunNotFound(f"no run {run_id}")
        was = run.state
        earlier = RunCommand.objects.filter(run=run, key=key).first() if key is not None else None
        if earlier is not None:
            if (earlier.type, earlier.payload) != (kind, payload):
                raise CommandKeyTaken(f"the run has another command with the key {key!r}", pointer="/key")
            return Posted(run, was, earlier)
        if _granted_already(run, kind):
            return Posted(run, was)
        if run.state.terminal:
            raise RunTerminal(f"a {run.status} run takes no commands", run_status=run.status)
        command = RunCommand.objects.create(
            run=run, key=key, type=kind, payload=payload, created_by=by, received_at=timezone.now()
        )
        entry = replace(received(command), phase=transitions.PHASES[run.state])
        log.append(run.pk, [entry], source=Source.WEB)
        _act_now(run, command)
        chaos.point("command.in_transaction")
    return Posted(run, was, command, new=True)


def kept_key(key: str | None) -> str | None:
    """A command's key as it is stored: one that has a secret in it as a digest, so that two of them stay two."""
    if key is None or REDACTOR.clean_text(key)[0] == key:
        return key
    return f"redacted:{hashlib.sha256(key.encode(errors='replace')).hexdigest()[:32]}"


def _granted_already(run: AgentRun, kind: Type) -> bool:
    wished = {Type.PAUSE: RunStatus.PAUSED, Type.STOP: RunStatus.STOPPED}.get(kind)
    return run.state is wished


def _act_now(run: AgentRun, command: RunCommand) -> None:
    """What no worker has to do first. A running run is left to its worker, which reads its inbox."""
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
    elif questions.waits(run):
        mark_applied([command])
        questions.answer(run, command)
    else:
        wake(run.pk)
