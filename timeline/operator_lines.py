"""Log lines for operators. The events themselves are for users.

The kind of an event says its level. Starts and ends of runs are logged separately (runs.lifecycle.run_lines).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from agentops.base.database.after_commit import after_commit
from timeline import events
from timeline.models import Source

log = logging.getLogger("agentops.runs")
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
        level = events.kind_of(row["type"]).log_level
        if level is not None and log.isEnabledFor(level):
            after_commit(_write, level, log_id, row)


def _write(level: int, log_id: UUID, row: Mapping[str, Any]) -> None:
    payload = row["payload"]
    facts = {name: payload[name] for name in _FACTS if isinstance(payload.get(name), str | int | float)}
    # Without texts of people or models: logs are stored elsewhere, and for longer.
    sentence = events.describe(row["type"], {**payload, "error": None, "details": None, "message": ""})
    log.log(level, "%s", sentence, extra={"run_id": str(log_id), "step": row["step"], **facts})
