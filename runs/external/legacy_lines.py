"""The runs of runners that send lines of output instead of events, with `PATCH …/agent/sessions/{session}`.

Lines become events. The session that a runner reads back is made from events, whether sent as lines or as events.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from runs.models import AgentRun
from runs.statuses import RunStatus
from timeline import log
from timeline.events import EventType, describe
from timeline.models import Event

#: The newest lines, and the newest file changes, in a session.
MAX_LINES = 5000
#: Progress lines become `run.phase`, with the line as message and its type as reason.
PROGRESS = ("step", "info")
STREAMS = ("stdout", "stderr")
LINE_TYPES = (*PROGRESS, *STREAMS, "error", "done")
#: Statuses that a runner may send → statuses of a run. A resumed run has ended here; another run continues it.
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
    """Return the events of a PATCH: changed files, the line, and then the status if it has changed.

    `current` is the status of the run, or None if it is unknown: then `queued` or `running` opens the run.
    """
    to = None if status is None else STATUSES[status]
    is_opened = current is None and to in (RunStatus.QUEUED, RunStatus.RUNNING)
    events = [_event(EventType.RUN_STARTED)] if is_opened else []
    events += [_file(path) for path in files]
    events += [_line(line)] if line else []
    completes = line is not None and line["type"] == "done"
    is_new = to is not None and to != current and not (completes and to is RunStatus.COMPLETED)
    if to is not None and is_new and not (is_opened and to is RunStatus.RUNNING):
        events.append(_status(to))
    return [{"runId": reference, **event} for event in events]


def session_of(run: AgentRun) -> dict[str, Any]:
    """Return a run in the form for these runners. Takes two queries."""
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


_STATUS_EVENTS: dict[RunStatus, Callable[[], dict[str, Any]]] = {
    RunStatus.QUEUED: lambda: _event(EventType.RUN_PHASE, status=RunStatus.QUEUED.value),
    RunStatus.RUNNING: lambda: _event(EventType.RUN_PHASE, status=RunStatus.RUNNING.value),
    RunStatus.WAITING: lambda: _event(EventType.RUN_WAITING, reason="input"),
    RunStatus.PAUSED: lambda: _event(EventType.RUN_PAUSED, reason="runner"),
    RunStatus.COMPLETED: lambda: _event(EventType.RUN_COMPLETED),
    RunStatus.FAILED: lambda: _event(EventType.RUN_FAILED, error_type="failed"),
    RunStatus.STOPPED: lambda: _event(EventType.RUN_STOPPED),
}


def _status(to: RunStatus) -> dict[str, Any]:
    return _STATUS_EVENTS[to]()


def _newest(run: AgentRun, types: Sequence[EventType]) -> list[Event]:
    return list(log.events_of(run.pk).filter(type__in=types).order_by("-seq")[:MAX_LINES])[::-1]


def _line_of(event: Event) -> dict[str, str] | None:
    """Return the line of an event; None for a change of status without a text."""
    payload = event.payload
    if event.type == EventType.RUN_PHASE:
        kind = payload.get("reason")
        return (
            {"type": kind if kind in PROGRESS else "info", "text": payload["message"]} if "message" in payload else None
        )
    if event.type == EventType.TOOL_OUTPUT:
        kind = payload.get("stream")
        return {"type": kind if kind in STREAMS else "stdout", "text": payload.get("text") or ""}
    if event.type == EventType.ERROR:
        return {"type": "error", "text": payload.get("error") or describe(event.type, payload)}
    result = payload.get("result")
    return {"type": "done", "text": result if isinstance(result, str) else ""}
