"""Converts between events and lines of output, for runners that use `PATCH …/agent/sessions/{session}`.

The lines that a runner sends become events. The session that it reads is made from the events of the run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from runs.models import AgentRun
from runs.statuses import RunStatus
from timeline import log
from timeline.events import EventType, describe
from timeline.models import Event

#: Maximum lines, and maximum file changes, in a session: the newest ones.
MAX_LINES = 5000
#: Types of progress lines. They become `run.phase`, with the line as message and its type as reason.
PROGRESS = ("step", "info")
STREAMS = ("stdout", "stderr")
LINE_TYPES = (*PROGRESS, *STREAMS, "error", "done")
#: Status that a runner sends → status of the run. A resumed run has ended; another run continues it.
STATUSES = {
    **{status.value: status for status in RunStatus},
    "resumed": RunStatus.STOPPED,
    "pending": RunStatus.QUEUED,
    "done": RunStatus.COMPLETED,
    "error": RunStatus.FAILED,
    "cancelled": RunStatus.STOPPED,
}
_LINES = (EventType.RUN_PHASE, EventType.TOOL_OUTPUT, EventType.ERROR, EventType.RUN_COMPLETED)


def events_of_patch(
    reference: str, current: str | None, *, line: dict[str, str] | None, status: str | None, files: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the events for a PATCH: of the changed files, of the line, and of the status if it has changed.

    `current`: the status of the run; None if the run does not exist. Then the statuses `queued` and `running` open it.
    """
    to = None if status is None else STATUSES[status]
    is_opened = current is None and to in (RunStatus.QUEUED, RunStatus.RUNNING)
    events = [_event(EventType.RUN_STARTED)] if is_opened else []
    events += [_file(path) for path in files]
    events += [_line(line)] if line else []
    completes = line is not None and line["type"] == "done"
    is_new = to is not None and to != current and not (completes and to is RunStatus.COMPLETED)
    if to is not None and is_new and not (is_opened and to is RunStatus.RUNNING):
        type_, payload = _STATUS_EVENTS[to]
        events.append(_event(type_, **payload))
    return [{"runId": reference, **event} for event in events]


def session_of(run: AgentRun) -> dict[str, Any]:
    """Return a run in the form that these runners read. Takes two queries."""
    changes = _newest(run, (EventType.FILE_CHANGED,))
    return {
        "id": str(run.pk),
        "status": run.status,
        "output": [line for event in _newest(run, _LINES) if (line := _line_of(event)) is not None],
        "changed_files": list(dict.fromkeys(event.payload["path"] for event in changes)),
    }


def _event(type_: EventType, **payload: Any) -> dict[str, Any]:
    return {"type": type_.value, "payload": payload}


def _file(path: str) -> dict[str, Any]:
    # These runners repeat the whole list, so each path gets one event.
    event_id = f"changed-{hashlib.sha256(path.encode(errors='replace')).hexdigest()[:32]}"
    return {**_event(EventType.FILE_CHANGED, path=path), "event_id": event_id}


def _line(line: dict[str, str]) -> dict[str, Any]:
    kind, text = line["type"], line["text"]
    if kind in PROGRESS:
        return _event(EventType.RUN_PHASE, status=RunStatus.RUNNING.value, message=text, reason=kind)
    if kind in STREAMS:
        return _event(EventType.TOOL_OUTPUT, stream=kind, text=text)
    if kind == "error":
        return _event(EventType.ERROR, error=text)
    return _event(EventType.RUN_COMPLETED, **({"result": text} if text else {}))


#: The type and the payload of the event that sets each status.
_STATUS_EVENTS: dict[RunStatus, tuple[EventType, dict[str, str]]] = {
    RunStatus.QUEUED: (EventType.RUN_PHASE, {"status": RunStatus.QUEUED.value}),
    RunStatus.RUNNING: (EventType.RUN_PHASE, {"status": RunStatus.RUNNING.value}),
    RunStatus.WAITING: (EventType.RUN_WAITING, {"reason": "input"}),
    RunStatus.PAUSED: (EventType.RUN_PAUSED, {"reason": "runner"}),
    RunStatus.COMPLETED: (EventType.RUN_COMPLETED, {}),
    RunStatus.FAILED: (EventType.RUN_FAILED, {"error_type": "failed"}),
    RunStatus.STOPPED: (EventType.RUN_STOPPED, {}),
}


def _newest(run: AgentRun, types: Sequence[EventType]) -> list[Event]:
    return list(log.events_of(run.pk).filter(type__in=types).order_by("-seq")[:MAX_LINES])[::-1]


def _line_of(event: Event) -> dict[str, str] | None:
    """Return the line for an event; None for a change of status without a message."""
    payload = event.payload
    if event.type == EventType.RUN_PHASE:
        if "message" not in payload:
            return None
        kind = payload.get("reason")
        return {"type": kind if kind in PROGRESS else "info", "text": payload["message"]}
    if event.type == EventType.TOOL_OUTPUT:
        kind = payload.get("stream")
        return {"type": kind if kind in STREAMS else "stdout", "text": payload.get("text") or ""}
    if event.type == EventType.ERROR:
        return {"type": "error", "text": payload.get("error") or describe(event.type, payload)}
    result = payload.get("result")
    return {"type": "done", "text": result if isinstance(result, str) else ""}
