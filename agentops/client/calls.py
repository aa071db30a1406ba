"""The client's requests: their parameters, and the types of their responses. This module sends nothing."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qsl, quote, urlsplit

from pydantic import BaseModel

from agentops.client.objects import Approval, Event, Message, Run, RunDetail, SentCommand, ToolCall

T = TypeVar("T", bound=BaseModel)
RunId = str | uuid.UUID
#: Rows per page.
PAGE = 200


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request, and the type of the object in the response."""

    method: str
    #: The path below the project.
    path: str
    answer: type[T]
    params: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    #: Makes repeating a POST harmless.
    idempotency_key: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers of this request."""
        return {} if self.idempotency_key is None else {"Idempotency-Key": self.idempotency_key}


@dataclass(frozen=True)
class Listing(Call[T]):
    """A request for a page of a list. `answer` is the type of a row."""

    def rows(self, page: Mapping[str, Any]) -> list[T]:
        """Return the rows of a page."""
        return [self.answer.model_validate(row) for row in page["results"]]

    def after(self, page: Mapping[str, Any]) -> Listing[T] | None:
        """Return the request for the next page, or None after the last one."""
        if not page.get("next"):
            return None
        # Only the position: behind a proxy, the site's address may differ.
        return replace(self, params=dict(parse_qsl(urlsplit(page["next"]).query)))


def _get(path: str, answer: type[T]) -> Call[T]:
    return Call("GET", path, answer)


def _post(path: str, answer: type[T], body: Mapping[str, Any], key: str | None) -> Call[T]:
    given = {name: value for name, value in body.items() if value is not None}
    return Call("POST", path, answer, body=given, idempotency_key=key or uuid.uuid4().hex)


def _list(path: str, answer: type[T], **params: Any) -> Listing[T]:
    given = {name: _text(value) for name, value in params.items() if value is not None and value is not False}
    return Listing("GET", path, answer, params={"limit": PAGE, **given})


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if value is True:
        return "1"
    return ",".join(value) if isinstance(value, list | tuple | set | frozenset) else str(value)


def _run(run_id: RunId, rest: str = "") -> str:
    return f"/agent-runs/{quote(str(run_id), safe='')}{rest}"


def start(
    agent: str,
    prompt: str | None,
    *,
    title: str | None,
    labels: Sequence[str] | None,
    max_steps: int | None,
    parent_run_id: RunId | None,
    key: str | None,
) -> Call[RunDetail]:
    body = {
        "agent_id": agent,
        "prompt": prompt,
        "title": title,
        "labels": None if labels is None else list(labels),
        "max_steps": max_steps,
        "parent_run_id": None if parent_run_id is None else str(parent_run_id),
    }
    return _post("/agent-runs", RunDetail, body, key)


def run(run_id: RunId) -> Call[RunDetail]:
    return _get(_run(run_id), RunDetail)


def runs(filters: Mapping[str, Any]) -> Listing[Run]:
    return _list("/agent-runs", Run, **filters)


def children(run_id: RunId) -> Listing[Run]:
    return _list(_run(run_id, "/children"), Run)


def messages(run_id: RunId) -> Listing[Message]:
    return _list(_run(run_id, "/messages"), Message)


def message(run_id: RunId, message_id: RunId) -> Call[Message]:
    return _get(_run(run_id, f"/messages/{quote(str(message_id), safe='')}"), Message)


def tool_calls(run_id: RunId) -> Listing[ToolCall]:
    return _list(_run(run_id, "/tool-calls"), ToolCall)


def tool_call(run_id: RunId, call_id: RunId) -> Call[ToolCall]:
    return _get(_run(run_id, f"/tool-calls/{quote(str(call_id), safe='')}"), ToolCall)


def events(run_id: RunId, after_seq: int) -> Listing[Event]:
    return _list(_run(run_id, "/events"), Event, afterSeq=after_seq)


def stream_path(run_id: RunId) -> str:
    return _run(run_id, "/events/stream")


def command(run_id: RunId, kind: str, text: str, key: str | None) -> Call[SentCommand]:
    return _post(_run(run_id, "/commands"), SentCommand, {"type": kind, "message": text}, key)


def resume(
    run_id: RunId, message: str | None, *, append: bool, max_steps: int | None, kill: bool, key: str | None
) -> Call[RunDetail]:
    body = {"message": message, "append": append, "max_steps": max_steps, "kill": kill or None}
    return _post(_run(run_id, "/resume"), RunDetail, body, key)


def fork(run_id: RunId, step: int, message: str | None, key: str | None) -> Call[RunDetail]:
    return _post(_run(run_id, "/fork"), RunDetail, {"step": step, "message": message}, key)


def pause(run_id: RunId, key: str | None) -> Call[RunDetail]:
    return _post(_run(run_id, "/pause"), RunDetail, {}, key)


def approvals(filters: Mapping[str, Any]) -> Listing[Approval]:
    return _list("/approvals", Approval, **filters)


def decide(run_id: RunId, call_id: RunId, decision: str, body: Mapping[str, Any], key: str | None) -> Call[Approval]:
    path = _run(run_id, f"/approvals/{quote(str(call_id), safe='')}")
    return _post(path, Approval, {"decision": decision, **body}, key)


def resolve(run_id: RunId, call_id: RunId, choice: str, text: str | None, key: str | None) -> Call[ToolCall]:
    path = _run(run_id, f"/tool-calls/{quote(str(call_id), safe='')}/resolve")
    return _post(path, ToolCall, {"choice": choice, "message" if choice == "failed" else "output": text}, key)


def stop(run_id: RunId, key: str | None) -> Call[RunDetail]:
    return _post(_run(run_id, "/stop"), RunDetail, {}, key)
