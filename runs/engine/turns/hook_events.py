"""The hooks around turns (AgentStart, TurnStart, TurnEnd and AgentStop), the context of a held run for hooks, and the
writes of their verdicts: events, and commands to the run's inbox.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, cast

from django.db import transaction

from runs import chaos
from runs.conversation import transcript
from runs.engine.drive import Drive
from runs.engine.results import HooksAsked
from runs.engine.safe_commit import commit_safely, do_nothing
from runs.hooks.base import HookContext, HookEvent, VerdictKind
from runs.hooks.deciding import Arguments, HookDecision, TurnDecision, decide_turn
from runs.lifecycle import inbox
from runs.models import AgentRunToolCall, RunCommand
from runs.tools.base import Tool
from timeline import log
from timeline.events.tool import HookDecided
from timeline.log import Entry
from timeline.models import Source


@dataclass(frozen=True)
class HookOutcome:
    """The writes that result from the hooks of an event: the events of their verdicts, and a command to the run."""

    events: Sequence[Entry] = ()
    commands: Sequence[RunCommand] = ()


def context(drive: Drive, event: HookEvent, step: int, **more: Any) -> HookContext:
    """Return the context for the hooks of an event."""
    return HookContext(
        event=event,
        run_id=str(drive.run.pk),
        agent_id=drive.node,
        step=step,
        cost_usd=drive.run.cost_usd or Decimal(0),
        settings=copy.deepcopy(drive.settings),
        **more,
    )


def call_context(
    drive: Drive, event: HookEvent, step: int, tool: Tool, *, call_id: str, arguments: Arguments, **more: Any
) -> HookContext:
    """Return the context for the hooks of an event about a tool call."""
    about_call = {"tool_name": tool.name, "effect": tool.effect.value, "call_id": call_id, "arguments": arguments}
    return context(drive, event, step, **about_call, **more)


def outcome_of(drive: Drive, event_context: HookContext, call: AgentRunToolCall | None = None) -> HookOutcome:
    """Call the hooks of an event other than PreToolUse, and return the writes that result. Writes nothing.

    A stop or a message of a hook becomes a command in the run's inbox, so it is carried out once, even after a crash.
    """
    decision = decide_turn(drive.hooks, event_context)
    events = verdict_entries(decision.decisions, step=event_context.step, call=call)
    command = _command(drive, decision, event_context, call)
    if command is None:
        return HookOutcome(events)
    return HookOutcome([*events, inbox.received_event(command)], [command])


def verdict_entries(
    decisions: Sequence[HookDecision], *, step: int, call: AgentRunToolCall | None = None
) -> list[Entry]:
    """Return the events of verdicts: hook, reason, duration, and the changes to the arguments."""
    return [
        Entry(
            HookDecided(
                hook=decision.hook,
                event=decision.event,
                verdict=decision.verdict.kind,
                failed=decision.failed,
                reason=decision.verdict.text[:1_000] or None,
                duration_ms=decision.duration_ms,
                diff=cast("Any", decision.diff),
                call_id=call.call_id if call else None,
                tool_name=call.tool_name if call else None,
            ),
            step=step,
            ref_id=call.pk if call else None,
        )
        for decision in decisions
    ]


def _command(
    drive: Drive, decision: TurnDecision, event_context: HookContext, call: AgentRunToolCall | None
) -> RunCommand | None:
    """Return the command that a decision results in; None if the run just continues."""
    # The key of the command: each event of a step or a call sends at most one.
    place = f"{event_context.event}:{call.pk if call else event_context.step}"
    if decision.kind is VerdictKind.STOP:
        return inbox.hook_stop(drive.run.pk, hook=decision.hook, place=place)
    if decision.kind is VerdictKind.CONTINUE:
        return None
    is_system = decision.kind is VerdictKind.SYSTEM_MESSAGE
    return inbox.hook_message(drive.run.pk, decision.text, hook=decision.hook, place=place, is_system=is_system)


def ask(drive: Drive, event: HookEvent) -> HooksAsked:
    """Call the hooks of an event once, and commit their verdicts together with the resulting writes."""
    step = drive.step_of(event)
    chaos.point("hooks.before")
    answer = transcript.last_answer(drive.conversation) if event in (HookEvent.TURN_END, HookEvent.AGENT_STOP) else ""
    outcome = outcome_of(drive, context(drive, event, step, answer=answer))
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
