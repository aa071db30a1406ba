"""Log lines for operators: which events are logged, and at which level. The events themselves are for users."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from agentops.base.database.after_commit import after_commit
from timeline import events
from timeline.events import EventType
from timeline.models import Source

log = logging.getLogger("agentops.runs")
#: Events with a log line. Starts and ends of runs are logged separately (runs.lifecycle.run_lines).
LEVELS: Mapping[str, int] = {
    EventType.LLM_TURN_END: logging.DEBUG,
    EventType.TOOL_START: logging.DEBUG,
    EventType.TOOL_END: logging.DEBUG,
    EventType.RETRY_SCHEDULED: logging.WARNING,
    EventType.CONTEXT_TRIMMED: logging.WARNING,
    EventType.BUDGET_WARNING: logging.WARNING,
    EventType.RUN_RECOVERED: logging.WARNING,
    EventType.RUN_ROLLED_BACK: logging.WARNING,
    EventType.LLM_TURN_ABANDONED: logging.WARNING,
}
#: Payload fields that a line contains in addition to the description. None of them is free text.
_FACTS = (
    *("model", "input_tokens", "output_tokens", "duration_ms", "tool_calls", "call_id", "status", "error_type"),
    *("attempt", "delay_ms", "cause", "epoch", "budget"),
)


#: Only events from this site: imported and external events may be old or happen elsewhere.
_OWN = frozenset({Source.WORKER, Source.POLICY, Source.WEB})


def note(log_id: UUID, rows: Sequence[Mapping[str, Any]], source: Source) -> None:
    """Log the stored events that have a line, after the commit, unless an external runner sent them."""
    for row in rows if source in _OWN else ():
        level = LEVELS.get(row["type"])
        if level is not None and log.isEnabledFor(level):
            after_commit(_write, level, log_id, row)


def _write(level: int, log_id: UUID, row: Mapping[str, Any]) -> None:
    payload = row["payload"]
    facts = {name: payload[name] for name in _FACTS if isinstance(payload.get(name), str | int | float)}
    # Without texts of people or models: logs are stored elsewhere, and for longer.
    sentence = events.describe(row["type"], {**payload, "error": None, "details": None, "message": ""})
    log.log(level, "%s", sentence, extra={"run_id": str(log_id), "step": row["step"], **facts})
