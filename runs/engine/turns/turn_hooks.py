"""The hooks around turns: AgentStart, TurnStart, TurnEnd and AgentStop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from django.db import transaction

from runs import chaos
from runs.conversation import transcript
from runs.engine.drive import Drive
from runs.engine.results import HooksAsked
from runs.engine.safe_commit import commit_safely, do_nothing
from runs.engine.turns import hook_events
from runs.hooks.base import HookEvent
from timeline import log
from timeline.log import Entry
from timeline.models import Source


def ask(drive: Drive, event: HookEvent) -> HooksAsked:
    """Call the hooks of an event once, and commit their verdicts together with the resulting writes."""
    step = drive.step_of(event)
    chaos.point("hooks.before")
    answer = transcript.last_answer(drive.conversation) if event in (HookEvent.TURN_END, HookEvent.AGENT_STOP) else ""
    outcome = hook_events.outcome(drive, hook_events.context(drive, event, step, answer=answer))
    drive.check()
    chaos.point("hooks.decided")
    entries = _with_id(outcome.events, f"~hooks:{event}:{step}")

    def write() -> None:
        with transaction.atomic():
            log.append(drive.run.pk, entries, source=Source.WORKER, epoch=drive.epoch)
            for command in outcome.commands:
                command.save(force_insert=True)

    commit_safely(
        write,
        is_committed=lambda: log.has_event(drive.run.pk, entries[0].event_id),
        read_result=do_nothing,
        lease=drive.lease,
    )
    return HooksAsked(event, step)


def _with_id(events: Sequence[Entry], event_id: str) -> list[Entry]:
    """Give the first event an ID, so that the commit can be recognised if the database's answer is lost."""
    first, *others = events
    return [replace(first, event_id=event_id), *others]
