"""Converts events to the agent dialect, with whole texts from the rows: at most six queries per batch of events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from django.db.models import Q

from agentops.base import database_clock
from runs.conversation.transcript import text_of
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall
from runs.queries.json_columns import mask_rows, to_json
from runs.queries.usage import usage_by_model
from timeline import log
from timeline.agent_dialect_output import ENDS, Fields, WholeTexts, agent_events
from timeline.events import EventType
from timeline.models import Event

#: Events whose fields need the row of their run.
_OF_RUN = frozenset(
    {EventType.RUN_CREATED, EventType.RUN_STARTED, EventType.RUN_COMPLETED, EventType.RUN_STOPPED, *ENDS}
)
#: Events whose fields need the row of their call.
_OF_CALL = frozenset({EventType.TOOL_START, EventType.TOOL_END, EventType.RUN_WAITING})
#: The model name used if no answer names its model.
UNKNOWN_MODEL = "unknown"
#: Maximum distance of a run's `error` event before its end, in events.
ERROR_DISTANCE = 20
#: The last of these events before the end of a run shows whether an `error` event reports its failure.
_DECISIVE = (EventType.ERROR, EventType.LLM_TURN_START, EventType.LLM_TURN_END)
#: Roles of the messages whose texts the dialect contains.
_SENT_ROLES = (AgentRunMessage.Role.SYSTEM, AgentRunMessage.Role.USER)
_TOKENS = ("input_tokens", "output_tokens", "cache_write_tokens", "cache_read_tokens")


def agent_texts(log_id: UUID, batch: Sequence[Event]) -> list[list[str]]:
    """Return each event of a log in the agent dialect, as JSON texts with masked secrets."""
    whole = whole_texts(log_id, batch)
    of_events = [agent_events(event, whole) for event in batch]
    texts = iter(mask_rows([to_json(event) for of_event in of_events for event in of_event]))
    return [[next(texts) for _ in of_event] for of_event in of_events]


def agent_items(log_id: UUID, batch: Sequence[Event]) -> list[str]:
    """Return each event of a log in the agent dialect, as one or more items of a JSON list."""
    return [",".join(texts) for texts in agent_texts(log_id, batch)]


def whole_texts(log_id: UUID, batch: Sequence[Event]) -> WholeTexts:
    """Return the whole texts of a log's events, from their rows."""
    needs_run = any(event.type in _OF_RUN for event in batch)
    run = AgentRun.objects.filter(pk=log_id).first() if needs_run else None
    is_complete = any(event.type == EventType.RUN_COMPLETED for event in batch)
    return WholeTexts(
        start=_start(run) if run else {},
        complete=_complete(run) if run and is_complete else {},
        calls=_calls(log_id, _refs(batch, _OF_CALL)),
        contents=_contents(log_id, _refs(batch, {EventType.MESSAGE_ADDED})),
        prompts=_prompts(_refs(batch, {EventType.CHILD_RUN_STARTED})),
        reported=_reported(log_id, [event.seq for event in batch if event.type in ENDS]),
        is_flow=needs_run and run is None,
    )


def _reported(log_id: UUID, ends: Sequence[int]) -> frozenset[int]:
    """Return the seqs of those `ends` that a recent `error` event precedes, without a model call in between."""
    if not ends:
        return frozenset()
    near = Q()
    for seq in ends:
        near |= Q(seq__range=(seq - ERROR_DISTANCE, seq - 1))
    before = dict(log.events_of(log_id).filter(near).values_list("seq", "type"))
    return frozenset(seq for seq in ends if _follows_error(before, seq))


def _follows_error(types: Mapping[int, str], end: int) -> bool:
    """Return whether the last of the `_DECISIVE` events before an end is an error. `types`: by seq."""
    last = (types.get(seq) for seq in range(end - 1, end - ERROR_DISTANCE - 1, -1))
    return next((type_ for type_ in last if type_ in _DECISIVE), None) == EventType.ERROR


def _refs(batch: Sequence[Event], types: Iterable[str]) -> list[UUID]:
    return [event.ref_id for event in batch if event.type in types and event.ref_id is not None]


def _start(run: AgentRun) -> Fields:
    """Return the fields of `agent:start`."""
    return {"model": run.agent_config.get("model"), "prompt": _as_text(run.prompt)}


def _complete(run: AgentRun) -> Fields:
    """Return the fields of `agent:complete`."""
    elapsed_ms = None
    if run.completed_at is not None:
        elapsed_ms = database_clock.milliseconds_between(run.started_at or run.created_at, run.completed_at)
    return {
        "result": run.result or run.summary or None,
        "structuredOutput": run.structured_output,
        "usage": _usage({name: getattr(run, name) for name in _TOKENS}),
        "modelUsage": _model_usage(run) or None,
        "totalCostUsd": None if run.cost_usd is None else float(run.cost_usd),
        "durationMs": elapsed_ms,
        "numTurns": run.step_count - run.step_base,
    }


def _model_usage(run: AgentRun) -> Fields:
    return {
        row["model"] or UNKNOWN_MODEL: _usage(row)
        | ({} if row["cost_usd"] is None else {"costUsd": float(row["cost_usd"])})
        for row in usage_by_model(run.pk)
    }


def _usage(counts: Mapping[str, Any]) -> dict[str, int]:
    """Return token counts in the dialect's form, whose input tokens do not include the cached ones."""
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
        pk: {"toolName": name, "toolInput": arguments, "toolOutput": output, "starts": starts}
        for pk, name, arguments, output, starts in rows
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
    """Return a stored prompt as text; empty without one."""
    return "" if prompt is None else text_of({"parts": [{"part_kind": "user-prompt", "content": prompt}]})
