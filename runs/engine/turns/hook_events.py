"""The context of a held run for hooks, and the writes of their verdicts: events, and commands to the run's inbox."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from runs.engine.drive import Drive
from runs.hooks.base import HookContext, HookEvent, VerdictKind
from runs.hooks.deciding import HookDecision, TurnDecision, decide_turn
from runs.lifecycle import inbox
from runs.models import AgentRunToolCall, RunCommand
from timeline.events.hook import HookDecided
from timeline.log import Entry


@dataclass(frozen=True)
class HookOutcome:
    """The writes that result from the hooks of an event: their verdicts, and a command that carries them out."""

    events: Sequence[Entry] = ()
    commands: Sequence[RunCommand] = ()


def context(drive: Drive, event: HookEvent, step: int, **more: Any) -> HookContext:
    """Return the context for the hooks of an event."""
    return HookContext(
        event=event,
        run_id=str(drive.run.pk),
        agent_id=drive.node,
        step=step,
        cost_usd=drive.cost_usd,
        settings=copy.deepcopy(drive.settings),
        **more,
    )


def outcome(drive: Drive, event_context: HookContext, call: AgentRunToolCall | None = None) -> HookOutcome:
    """Call the hooks of an event other than PreToolUse.

    A stop and a message pass through the inbox of the run, so that they are carried out once, even after a crash.
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
                hook=decision.hook, event=decision.event, verdict=decision.verdict.kind, failed=decision.failed,
                reason=decision.verdict.text[:1_000] or None, duration_ms=decision.duration_ms,
                diff=cast("Any", decision.diff), call_id=call.call_id if call else None,
                tool_name=call.tool_name if call else None,
            ),
            step=step, ref_id=call.pk if call else None,
        )
        for decision in decisions
    ]  # fmt: skip


def _command(
    drive: Drive, decision: TurnDecision, event_context: HookContext, call: AgentRunToolCall | None
) -> RunCommand | None:
    place = f"{event_context.event}:{call.pk if call else event_context.step}"
    if decision.kind is VerdictKind.STOP:
        return inbox.hook_stop(drive.run.pk, hook=decision.hook, place=place)
    if decision.kind is VerdictKind.CONTINUE:
        return None
    is_system = decision.kind is VerdictKind.SYSTEM_MESSAGE
    return inbox.hook_turn(drive.run.pk, decision.text, hook=decision.hook, place=place, is_system=is_system)
