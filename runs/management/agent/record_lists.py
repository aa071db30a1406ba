"""`agentops agent messages`, `calls`, `errors` and `defs`: list the records of a run, and the agents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

from django.db.models import QuerySet

from agentops.accounts.access import SYSTEM, Action, project_for
from agentops.accounts.management.base import AgentopsCommand
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.redaction.redact import JSON
from runs.management.agent.references import find_run
from runs.management.agent.run_table import Facts, redacted, shorten
from runs.management.agent.show import message_of
from runs.models import Agent, AgentRun, AgentRunToolCall, RunError
from runs.queries.json_columns import to_json
from runs.queries.run_tabs import failures_list
from timeline.models import Event

Rows = Callable[[AgentRun, int], list[Facts]]


def messages(command: AgentopsCommand, options: dict[str, Any]) -> None:
    _write(command, messages_of, options)


def calls(command: AgentopsCommand, options: dict[str, Any]) -> None:
    _write(command, calls_of, options)


def errors(command: AgentopsCommand, options: dict[str, Any]) -> None:
    _write(command, errors_of, options)


def _write(command: AgentopsCommand, rows_of: Rows, options: dict[str, Any]) -> None:
    rows = rows_of(find_run(options["run"]), options["limit"])
    if options["json"]:
        command.write_json(rows)
    elif rows:
        command.write_table([name.replace("_", " ") for name in rows[0]], [list(row.values()) for row in rows])


def defs(command: AgentopsCommand, options: dict[str, Any]) -> None:
    agents = Agent.objects.select_related("project").order_by("project__slug", "slug")
    if options["project"]:
        agents = agents.filter(project=project_for(SYSTEM, options["project"], Action.READ))
    if options["json"]:
        command.write_json(
            [{"id": agent.pk, "project": agent.project.slug, **_frozen(agent), **agent.placement} for agent in agents]
        )
        return
    headers = ["project", "agent", "version", "provider", "model", "tools", "max steps", "queue"]
    command.write_table(headers, [_definition(agent) for agent in agents])


def messages_of(run: AgentRun, limit: int) -> list[Facts]:
    return [message_of(row) for row in _last(run.messages.order_by("-position"), limit)]


def calls_of(run: AgentRun, limit: int) -> list[Facts]:
    rows: Sequence[AgentRunToolCall] = _last(run.tool_calls.defer("output").order_by("-step_number", "-pk"), limit)
    return [
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
        for row in rows
    ]


def errors_of(run: AgentRun, limit: int) -> list[Facts]:
    """Return the newest errors, in order: failed attempts, and failures from the run's page that are not attempts."""
    attempts: list[RunError] = _last(run.errors.order_by("-step_number", "-pk"), limit)
    rows = [_attempt(row) for row in attempts]
    known = Counter[tuple[int | None, str, str]]((row.step_number, row.error_type, row.message) for row in attempts)
    for event in failures_list.last_failures(run.pk, limit):
        kind, message = failures_list.kind_of(event.payload), failures_list.message_of(event.payload)
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


def _last(newest_first: QuerySet[Any], limit: int) -> list[Any]:
    return list(newest_first[:limit])[::-1]


def _frozen(agent: Agent) -> dict[str, Any]:
    """Return the definition with secrets redacted."""
    return cast("dict[str, Any]", REDACTOR.clean(cast("JSON", agent.frozen()))[0])


def _definition(agent: Agent) -> Sequence[object]:
    tools, model = redacted(", ".join(str(tool) for tool in agent.tools)), redacted(agent.model)
    return agent.project.slug, agent.slug, agent.version, agent.provider, model, tools, agent.max_steps, agent.queue
