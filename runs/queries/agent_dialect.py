"""Events in the agent dialect, with whole texts from the rows: at most five queries for any number of events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from runs.conversation.message_text import text_of
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall
from runs.queries.json_columns import to_json
from runs.queries.masking import mask_rows
from runs.queries.model_usage import usage_by_model
from timeline import database_clock
from timeline.dialects.agent_output import Fields, WholeTexts, agent_event
from timeline.events import EventType
from timeline.models import Event

_OF_RUN = frozenset({EventType.RUN_CREATED, EventType.RUN_STARTED, EventType.RUN_COMPLETED})
_OF_CALL = frozenset({EventType.TOOL_START, EventType.TOOL_END, EventType.RUN_WAITING})
_OF_CHILD = frozenset({EventType.CHILD_RUN_STARTED})
_SENT_ROLES = (AgentRunMessage.Role.SYSTEM, AgentRunMessage.Role.USER)
_TOKENS = ("input_tokens", "output_tokens", "cache_write_tokens", "cache_read_tokens")


def agent_texts(log_id: UUID, batch: Sequence[Event]) -> list[str]:
    """Return events of a log as JSON texts in the agent dialect, with secrets masked."""
    whole = whole_texts(log_id, batch)
    return mask_rows([to_json(agent_event(event, whole)) for event in batch])


def whole_texts(log_id: UUID, batch: Sequence[Event]) -> WholeTexts:
    """Return what the rows say whole of a log's events."""
    run = AgentRun.objects.filter(pk=log_id).first() if any(event.type in _OF_RUN for event in batch) else None
    is_complete = any(event.type == EventType.RUN_COMPLETED for event in batch)
    return WholeTexts(
        start=_start(run) if run else {},
        complete=_complete(run) if run and is_complete else {},
        calls=_calls(log_id, _refs(batch, _OF_CALL)),
        contents=_contents(log_id, _refs(batch, {EventType.MESSAGE_ADDED})),
        prompts=_prompts(_refs(batch, _OF_CHILD)),
    )


def _refs(batch: Sequence[Event], types: Iterable[str]) -> list[UUID]:
    return [event.ref_id for event in batch if event.type in types and event.ref_id is not None]


def _start(run: AgentRun) -> Fields:
    """Return the fields of `agent:start`. A run that has no session of its runner is its own."""
    return {
        "sessionId": run.session_id or str(run.pk),
        "model": run.agent_config.get("model"),
        "prompt": _as_text(run.prompt),
    }


def _complete(run: AgentRun) -> Fields:
    return {
        "result": run.result or run.summary or None,
        "structuredOutput": run.structured_output,
        "usage": _usage({name: getattr(run, name) for name in _TOKENS}),
        "modelUsage": _model_usage(run),
        "totalCostUsd": None if run.cost_usd is None else float(run.cost_usd),
        "durationMs": _elapsed_ms(run),
        "numTurns": run.step_count - run.step_base,
    }


def _elapsed_ms(run: AgentRun) -> int | None:
    if run.completed_at is None:
        return None
    return database_clock.milliseconds_between(run.started_at or run.created_at, run.completed_at)


def _model_usage(run: AgentRun) -> Fields:
    return {
        row["model"]: {**_usage(row), "costUsd": None if row["cost_usd"] is None else float(row["cost_usd"])}
        for row in usage_by_model(run.pk)
    }


def _usage(counts: Mapping[str, Any]) -> dict[str, int]:
    """Return tokens as the dialect counts them: the input without cached tokens, which stand beside it."""
    cached = counts["cache_write_tokens"] + counts["cache_read_tokens"]
    return {
        "inputTokens": max(counts["input_tokens"] - cached, 0),
        "outputTokens": counts["output_tokens"],
        "cacheCreationInputTokens": counts["cache_write_tokens"],
        "cacheReadInputTokens": counts["cache_read_tokens"],
    }


def _calls(run_id: UUID, ids: list[UUID]) -> dict[UUID, Fields]:
    if not ids:
        return {}
    rows = AgentRunToolCall.objects.filter(run=run_id, pk__in=ids).values_list(
        "pk", "tool_name", "input", "output", "starts"
    )
    return {
        pk: {"toolName": name, "toolInput": given, "toolOutput": output, "starts": starts}
        for pk, name, given, output, starts in rows
    }


def _contents(run_id: UUID, ids: list[UUID]) -> dict[UUID, str]:
    if not ids:
        return {}
    rows = AgentRunMessage.objects.filter(run=run_id, pk__in=ids, role__in=_SENT_ROLES).values_list("pk", "content")
    return {pk: text_of(content) for pk, content in rows}


def _prompts(ids: list[UUID]) -> dict[UUID, str]:
    if not ids:
        return {}
    rows = AgentRun.objects.filter(pk__in=ids, prompt__isnull=False).values_list("pk", "prompt")
    return {pk: _as_text(prompt) for pk, prompt in rows}


def _as_text(prompt: Any) -> str:
    return "" if prompt is None else text_of({"parts": [{"part_kind": "user-prompt", "content": prompt}]})
