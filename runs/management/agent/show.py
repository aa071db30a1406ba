"""`agentops run show`, `messages`, `calls` and `errors`: print the facts of a run and its records, redacted."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Count, QuerySet

from agentops.accounts import terminal
from agentops.accounts.command_base import AgentopsCommand
from agentops.base import database_clock
from runs.conversation.transcript import text_of
from runs.management.agent import redraw
from runs.management.agent.redraw import WatchFrame
from runs.management.agent.references import find_run
from runs.management.agent.run_table import Facts, redacted, row_of, shorten, steps_text, with_reason
from runs.management.output import write_rows
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, RunError
from runs.queries import tab_lists
from runs.queries.json_columns import to_json
from runs.statuses import LIVE
from timeline import events, log, reading
from timeline.display import calls_unpriced
from timeline.models import Event
from timeline.reasons import reason_label

#: The number of newest messages that `show` prints.
NEWEST_MESSAGES = 5
#: The kinds of tokens of a run.
TOKENS = ("input", "output", "cache_read", "cache_write", "cache_write_1h", "reasoning")


def show(command: AgentopsCommand, options: dict[str, Any]) -> None:
    run = find_run(options["run"], options["project"])
    if options.get("watch"):
        redraw.redraw(command, options, lambda: _drawn(command, run.pk))
        return
    facts = _facts_of(run)
    if options["json"]:
        command.write_json(facts)
    else:
        command.write_table((), _lines_of(facts, is_terminal=command.stdout.isatty()))


def _drawn(command: AgentopsCommand, run_id: UUID) -> WatchFrame:
    run = find_run(str(run_id))
    return WatchFrame(command.table((), _lines_of(_facts_of(run), is_terminal=True)), is_last=run.state not in LIVE)


def _facts_of(run: AgentRun) -> Facts:
    return {
        **row_of(run),
        "agent_version": run.agent_config.get("version"),
        "provider": run.agent_config.get("provider"),
        "model": run.agent_config.get("model"),
        "source": run.source_name,
        "max_steps": run.max_steps,
        "step_base": run.step_base,
        "tokens": {name: getattr(run, f"{name}_tokens") for name in TOKENS},
        "cost_usd": run.cost_usd,
        "cost_source": run.cost_source,
        "unpriced_calls": run.unpriced_calls,
        "lineage": _lineage(run),
        "tool_calls": dict(run.tool_calls.values_list("status").annotate(Count("pk")).order_by("status")),
        "error_type": run.error_type,
        "error_message": redacted(run.error_message),
        "result": redacted(run.result),
        "last_event": _last_event(run),
        "messages": [_message(row) for row in reversed(run.messages.order_by("-position")[:NEWEST_MESSAGES])],
    }


def _lines_of(facts: Facts, *, is_terminal: bool) -> list[tuple[str, str]]:
    """Return the facts as pairs of a name and a line of text, without empty ones."""
    moment = _moment_for_people if is_terminal else _moment
    calls, event, cost = facts["tool_calls"], facts["last_event"], facts["cost_usd"]
    unknown_cost = "unpriced" if any(facts["tokens"].values()) else None
    pairs = [
        ("run", facts["id"]),
        ("project", facts["project"]),
        ("agent", _agent(facts)),
        ("title", facts["title"]),
        ("labels", ", ".join(facts["labels"])),
        ("status", with_reason(facts)),
        ("steps", steps_text(facts)),
        ("tokens", ", ".join(f"{name} {count}" for name, count in facts["tokens"].items() if count)),
        ("cost", _cost(facts) if cost is not None else unknown_cost),
        ("created", moment(facts["created_at"])),
        ("started", moment(facts["started_at"])),
        ("completed", moment(facts["completed_at"])),
        ("duration", f"{facts['duration']:.1f} s" if facts["duration"] is not None else None),
        ("waited", f"{facts['waited']:.1f} s" if facts["waited"] else None),
        *((name.replace("_", " "), value) for name, value in facts["lineage"].items()),
        ("tool calls", f"{sum(calls.values())}: " + ", ".join(f"{n} {status}" for status, n in calls.items())),
        ("error", f"{reason_label(facts['error_type'])}: {facts['error_message']}" if facts["error_type"] else None),
        ("result", shorten(facts["result"])),
        ("last event", f"{event['seq']} {event['type']} {moment(event['ts'])} {event['message']}" if event else None),
        *((f"message {row['position']}", f"{row['role']}: {row['preview']}") for row in facts["messages"]),
    ]
    return [(name, str(value)) for name, value in pairs if value not in (None, "")]


def _cost(facts: Facts) -> str:
    text = f"{facts['cost_usd']:f} USD, {facts['cost_source']}"
    unpriced = facts["unpriced_calls"]
    return f"at least {text}, {calls_unpriced(unpriced)}" if unpriced else text


def _agent(facts: Facts) -> str:
    """Return the agent with its known attributes. External runs have no version and no provider."""
    name = facts["agent_id"] or ""
    version = f"{name} version {facts['agent_version']}" if facts["agent_version"] is not None else name
    return ", ".join(filter(None, [version, " ".join(filter(None, [facts["provider"], facts["model"]]))]))


def _lineage(run: AgentRun) -> Facts:
    """Return the IDs of related runs, without empty ones."""
    successor = AgentRun.objects.filter(resumed_from=run).values_list("pk", flat=True).first()
    related = {
        "root_run_id": run.root_run_id if run.root_run_id != run.pk else None,
        "parent_run_id": run.parent_run_id,
        "resumed_from": run.resumed_from_id,
        "resumed_as": successor,
        "forked_from": run.forked_from_id,
        "forked_at_step": run.forked_at_step,
    }
    return {name: value for name, value in related.items() if value is not None}


def _last_event(run: AgentRun) -> Facts | None:
    event = log.events_of(run.pk).last()
    if event is None:
        return None
    reading.mask_events([event])
    message = events.describe(event.type, event.payload)
    return {"seq": event.seq, "type": event.type, "ts": event.ts, "message": message}


def _message(row: AgentRunMessage) -> Facts:
    """Return the facts of a message. Redacts before cutting, because part of a secret is not recognised."""
    tool_names = [part["tool_name"] for part in row.content["parts"] if part["part_kind"] == "tool-call"]
    text = redacted(text_of(row.content)).strip()
    calls = f"[calls {', '.join(tool_names)}]" if tool_names else ""
    return {
        "position": row.position,
        "role": row.role,
        "step_number": row.step_number,
        "finish_reason": row.finish_reason or None,
        "rolled_back": row.rolled_back_at is not None,
        "preview": shorten(" ".join(filter(None, [text, calls]))),
    }


def _moment(moment: datetime | None) -> str | None:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}" if moment is not None else None


def _moment_for_people(moment: datetime | None) -> str | None:
    if moment is None:
        return None
    return f"{terminal.absolute(moment)} ({terminal.ago(moment, database_clock.now())})"


def messages(command: AgentopsCommand, options: dict[str, Any]) -> None:
    run = find_run(options["run"], options["project"])
    rows = [_message(row) for row in _newest_last(run.messages.order_by("-position"), options["limit"])]
    write_rows(command, rows, options, optional=("finish_reason", "rolled_back", "step_number"))


def calls(command: AgentopsCommand, options: dict[str, Any]) -> None:
    newest_first = (
        find_run(options["run"], options["project"]).tool_calls.defer("output").order_by("-step_number", "-pk")
    )
    calls: list[AgentRunToolCall] = _newest_last(newest_first, options["limit"])
    rows = [
        {
            "step_number": row.step_number,
            "tool_name": redacted(row.tool_name),
            "status": row.status,
            "duration_ms": row.duration_ms,
            "starts": row.starts,
            "attempts": row.attempts,
            "resolved_by": row.resolved_by,
            "call_id": redacted(row.call_id),
            "input": shorten(redacted(to_json(row.input))),
        }
        for row in calls
    ]
    write_rows(command, rows, options, optional=("starts", "attempts", "resolved_by", "duration_ms"))


def errors(command: AgentopsCommand, options: dict[str, Any]) -> None:
    write_rows(command, _errors_of(find_run(options["run"], options["project"]), options["limit"]), options)


def _errors_of(run: AgentRun, limit: int) -> list[Facts]:
    """Return the newest errors, oldest first: failed attempts, and failures in the log that are no failed attempts."""
    attempts: list[RunError] = _newest_last(run.errors.order_by("-step_number", "-pk"), limit)
    rows = [_attempt(row) for row in attempts]
    known = Counter[tuple[int | None, str, str]]((row.step_number, row.error_type, row.message) for row in attempts)
    for event in tab_lists.last_failures(run.pk, limit):
        kind, message = tab_lists.kind_of(event.payload), tab_lists.message_of(event.payload)
        if known[event.step, kind, message]:
            known[event.step, kind, message] -= 1
        else:
            rows.append(_failure(event, kind, message))
    return sorted(rows, key=lambda row: row["created_at"])[-limit:]


def _attempt(row: RunError) -> Facts:
    return {
        "step_number": row.step_number,
        "context": redacted(row.context),
        "attempt": row.attempt,
        "error_type": redacted(row.error_type),
        "message": shorten(redacted(row.message)),
        "details": shorten(redacted(row.details)),
        "created_at": row.created_at,
    }


def _failure(event: Event, kind: str, message: str) -> Facts:
    return {
        "step_number": event.step,
        "context": redacted(str(event.payload.get("tool_name") or event.type)),
        "attempt": event.payload.get("attempt") or 0,
        "error_type": redacted(kind),
        "message": shorten(redacted(message)),
        "details": shorten(redacted(str(event.payload.get("details") or ""))),
        "created_at": event.ts,
    }


def _newest_last(newest_first: QuerySet[Any], limit: int) -> list[Any]:
    return list(newest_first[:limit])[::-1]
