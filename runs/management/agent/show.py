"""`agentops agent show`: print the facts of a run, redacted."""

from __future__ import annotations

from typing import Any

from django.db.models import Count

from agentops.accounts.management.base import AgentopsCommand
from runs.conversation.message_text import text_of
from runs.management.agent.references import find_run
from runs.management.agent.run_table import Facts, redacted, row_of, shorten, steps_text, with_reason
from runs.models import AgentRun, AgentRunMessage
from timeline import events, log, outgoing
from timeline.display import calls_unpriced
from timeline.reasons import reason_label

LAST_MESSAGES = 5


def show(command: AgentopsCommand, options: dict[str, Any]) -> None:
    facts = facts_of(find_run(options["run"]))
    if options["json"]:
        command.write_json(facts)
        return
    command.write_table((), lines_of(facts))


def facts_of(run: AgentRun) -> Facts:
    """Return all facts of a run."""
    return {
        **row_of(run),
        "agent_version": run.agent_config.get("version"),
        "provider": run.agent_config.get("provider"),
        "model": run.agent_config.get("model"),
        "source": run.source,
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
        "messages": [message_of(row) for row in reversed(run.messages.order_by("-position")[:LAST_MESSAGES])],
    }


TOKENS = ("input", "output", "cache_read", "cache_write", "cache_write_1h", "reasoning")


def lines_of(facts: Facts) -> list[tuple[str, str]]:
    """Return the facts as pairs of a name and a line of text, without empty ones."""
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
        ("created", _moment(facts["created_at"])),
        ("started", _moment(facts["started_at"])),
        ("completed", _moment(facts["completed_at"])),
        ("duration", f"{facts['duration']:.1f} s" if facts["duration"] is not None else None),
        ("waited", f"{facts['waited']:.1f} s" if facts["waited"] else None),
        *((name.replace("_", " "), value) for name, value in facts["lineage"].items()),
        ("tool calls", f"{sum(calls.values())}: " + ", ".join(f"{n} {status}" for status, n in calls.items())),
        ("error", f"{reason_label(facts['error_type'])}: {facts['error_message']}" if facts["error_type"] else None),
        ("result", shorten(facts["result"])),
        ("last event", f"{event['seq']} {event['type']} {_moment(event['ts'])} {event['message']}" if event else None),
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
    around = {
        "root_run_id": run.root_run_id if run.root_run_id != run.pk else None,
        "parent_run_id": run.parent_run_id,
        "resumed_from": run.resumed_from_id,
        "resumed_as": successor,
        "forked_from": run.forked_from_id,
        "forked_at_step": run.forked_at_step,
    }
    return {name: value for name, value in around.items() if value is not None}


def _last_event(run: AgentRun) -> Facts | None:
    event = log.events_of(run.pk).last()
    if event is None:
        return None
    outgoing.mask_events([event])
    message = events.describe(event.type, event.payload)
    return {"seq": event.seq, "type": event.type, "ts": event.ts, "message": message}


def message_of(row: AgentRunMessage) -> Facts:
    """Return the facts of a message. Redacts before cutting, because part of a secret is not recognised."""
    tool_names = [part["tool_name"] for part in row.content["parts"] if part["part_kind"] == "tool-call"]
    text = redacted(text_of(row.content)).strip()
    calls = f"[calls {', '.join(tool_names)}]" if tool_names else ""
    return {
        "position": row.position,
        "role": row.role,
        "step_number": row.step_number,
        "rolled_back": row.rolled_back_at is not None,
        "preview": shorten(" ".join(filter(None, [text, calls]))),
    }


def _moment(moment: Any) -> str | None:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}" if moment is not None else None
