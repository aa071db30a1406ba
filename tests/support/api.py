"""Requests, rows and runners for the tests of the API, and the JSON Schemas of the events that readers rely on.

The schemas are written from the definition of the interfaces, not from the product. A member that is not required may
be absent, but is never null. Additional members are allowed.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from django.test import Client
from django.urls import URLPattern, URLResolver
from pydantic_ai.messages import ToolCallPart
from uuid_utils.compat import uuid7

from agentops.accounts.models import AuditEntry, IdempotencyKey, Project
from runs.api.base_views import ApiView
from runs.models import (
    AgentRun,
    AgentRunMessage,
    AgentRunToolCall,
    Approval,
    Checkpoint,
    RunCommand,
    RunError,
    TurnUsage,
)
from runs.providers.base import ModelCall
from tests.support.factories import make_agent, make_run, with_key
from tests.support.scripted_model import PLAYS
from timeline.models import Event, Log


def patterns(of: list[Any], before: str = "/api/") -> Iterator[tuple[str, type[ApiView]]]:
    """Yield the URL and the view of each pattern."""
    for each in of:
        address = before + str(each.pattern)
        if isinstance(each, URLResolver):
            yield from patterns(each.url_patterns, address)
        elif isinstance(each, URLPattern) and hasattr(each.callback, "view_class"):
            yield address, each.callback.view_class


MIB = 1024 * 1024
REFUSED: dict[tuple[str, int], list[bytes]] = {
    ("invalid_utf8", 400): [b"\xff\xfe", b'"\xc0\xaf"', b'"\xed\xa0\x80"', b'["\xe2\x82"]'],
    ("invalid_json", 400): [
        *(b"\xef\xbb\xbf{}", "[1]".encode("utf-16-be"), b"", b" ", b"{", b"[1,]", b"{} {}", b"{a: 1}", b"{'a': 1}"),
        *(b"01", b"[1 2]", b"// x\n1", b'"a\nb"', rb'"\x41"', rb'"\u12"', b"+1", b".5", b"1.", b"True", b"undefined"),
        *(b'"', b"]", b'\\"[[[', b'{"a"}', b"-"),
    ],
    ("json_too_deep", 400): [
        *(b"[" * 65 + b"]" * 65, b"[" * 100_000, b'{"a":' * 100_000, b'{"a":' * 65 + b"1" + b"}" * 65),
    ],
    ("json_too_complex", 413): [
        *(b"[" + b"0," * 60_000 + b"0]", b"[" + b"[]," * 50_000 + b"0]"),
        *(json.dumps(dict.fromkeys(map(str, range(count)))).encode() for count in (100_000, 1_001)),
    ],
    ("non_finite_number", 400): [b"NaN", b"[Infinity]", b'{"a": -Infinity}', b"1e400", b"-1e400"],
    ("number_out_of_range", 422): [b"9223372036854775808", b"-9223372036854775808", b"1" + b"0" * 30],
    ("number_out_of_range", 400): [b"1" * 4_301, b"0." + b"1" * 4_301],
    ("duplicate_key", 400): [b'{"a": 1, "a": 1}', rb'[{"a": {"b": 1, "\u0062": 2}}]'],
    ("string_too_long", 413): [b'"' + b"x" * 200_001 + b'"'],
    ("key_too_long", 413): [b'{"' + b"k" * 257 + b'": 1}'],
}


NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
_numbers = itertools.count(1)


def make_runs(project: Project, count: int, **fields: Any) -> list[AgentRun]:
    """Create runs without log entries. They are created at noon unless `fields` says otherwise."""
    logs = Log.objects.bulk_create([Log(project=project) for _ in range(count)])
    known = {"project": project, "created_at": NOON, "queued_at": NOON, "source": "external", **fields}
    own = [
        {"title": f"Run {next(_numbers)}"} | ({} if "root_run" in fields else {"root_run_id": log.pk}) for log in logs
    ]
    return AgentRun.objects.bulk_create(AgentRun(log=log, **(its | known)) for log, its in zip(logs, own, strict=True))


def delete_runs(ids: Iterable[object]) -> None:
    """Delete runs as retention does. Each run is its own root, which blocks Django's delete()."""
    AgentRun.objects.filter(pk__in=list(ids))._raw_delete("default")


def add_messages(run: AgentRun, count: int, **fields: Any) -> list[AgentRunMessage]:
    """Add messages to a run, three to a step."""
    start = AgentRunMessage.objects.filter(run=run).count()
    return AgentRunMessage.objects.bulk_create(
        AgentRunMessage(
            run=run,
            position=position,
            step_number=(position + 2) // 3,
            **{"role": "user", "content": said("hello"), "sha256": bytes(32), "created_at": NOON, **fields},
        )
        for position in range(start + 1, start + count + 1)
    )


def said(*texts: Any) -> dict[str, Any]:
    return {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": text} for text in texts]}


def add_calls(run: AgentRun, count: int, **fields: Any) -> list[AgentRunToolCall]:
    """Add tool calls to a run, seven to a step, all in one new message."""
    [message] = add_messages(run, 1)
    start = AgentRunToolCall.objects.filter(run=run).count()
    known = {"message": message, "tool_name": "read_file", "input": {"path": "a"}, "created_at": NOON, **fields}
    return AgentRunToolCall.objects.bulk_create(
        AgentRunToolCall(run=run, call_id=f"call-{next(_numbers)}", step_number=1 + number // 7, **known)
        for number in range(start, start + count)
    )


def add_events(run: AgentRun, count: int, **fields: Any) -> list[Event]:
    log = Log.objects.get(pk=run.pk)
    known = {"log": log, "phase": "running", "type": "x.note", "ts": NOON, "source": "ingest", "created_at": NOON}
    found = [
        Event(seq=seq, **{"payload": {"n": seq}, **known, **fields})
        for seq in range(log.last_seq + 1, log.last_seq + count + 1)
    ]
    Log.objects.filter(pk=log.pk).update(last_seq=log.last_seq + count)
    return Event.objects.bulk_create(found)


def add_waiting(run: AgentRun, count: int) -> None:
    """Add runs that wait for a person. They alternate between an approval, an answer and an unknown outcome."""
    for number in range(count):
        reason, status = (("approval", "planned"), ("input", "planned"), ("unknown_tool", "unknown"))[number % 3]
        [waiting] = make_runs(run.project, 1, source="native", status="waiting", status_reason=reason)
        ended = {"finished_at": NOON, "starts": 1} if status == "unknown" else {}
        [call] = add_calls(waiting, 1, status=status, **ended)
        if reason == "approval":
            Approval.objects.create(
                project=run.project, run=waiting, call=call, tool_name="read_file", created_at=NOON, expires_at=NOON
            )


def add_checkpoints(run: AgentRun, count: int) -> list[Checkpoint]:
    start = Checkpoint.objects.filter(run=run).count()
    return Checkpoint.objects.bulk_create(
        Checkpoint(run=run, step_number=step, last_message_position=step * 3, created_at=NOON)
        for step in range(start + 1, start + count + 1)
    )


def add_errors(run: AgentRun, count: int) -> list[RunError]:
    known = {"context": "llm", "error_type": "rate_limited", "message": "slow down", "created_at": NOON}
    start = RunError.objects.filter(run=run).count()
    return RunError.objects.bulk_create(
        RunError(run=run, step_number=1 + number // 7, **known) for number in range(start, start + count)
    )


def add_usages(run: AgentRun, count: int) -> list[TurnUsage]:
    known = {"model": "m", "input_tokens": 7, "cost_usd": Decimal("0.01"), "created_at": NOON}
    start = TurnUsage.objects.filter(run=run).count()
    return TurnUsage.objects.bulk_create(
        TurnUsage(run=run, step_number=1 + number // 2, attempt=number % 2, **known)
        for number in range(start, start + count)
    )


def make_logless_run(project: Project, **fields: Any) -> AgentRun:
    [run] = make_runs(project, 1, **fields)
    return run


def pages_of(client: Client, url: str, link: str = "next") -> Iterator[dict[str, Any]]:
    """Yield each page, following the links."""
    following: str | None = url
    while following:
        answer = client.get(following)
        assert answer.status_code == 200, answer.content
        page = answer.json()
        yield page
        following = page[link]


def ids_of(page: dict[str, Any], key: str = "id") -> list[Any]:
    return [row[key] for row in page["results"]]


def unknown_id() -> str:
    return str(uuid7())


URL = "/api/internal/agent-events"


class Runner:
    """Sends JSON, or raw bytes, with an ingest key of a project. Returns the response."""

    def __init__(self, project: Project) -> None:
        self.headers = with_key(project, "ingest")

    def __call__(self, document: Any, *, method: str = "POST", url: str = URL, **options: Any) -> Any:
        body = document if isinstance(document, bytes) else json.dumps(document)
        options = {"content_type": "application/json", "headers": self.headers} | options
        return Client().generic(method, url, body, **options)


def event(type_: str = "x.note", payload: Any = None, **fields: Any) -> dict[str, Any]:
    return {"runId": "r1", "type": type_, "payload": {} if payload is None else payload, **fields}


STARTED = event("run.started", {"agent": "coder"}, event_id="start")


JSON = "application/json"


@dataclass
class Program:
    """A client of a project's API with a key."""

    project: Project
    headers: dict[str, str]
    client: Client = field(default_factory=Client)

    def post(self, path: str, body: Any = None, *, kind: str = JSON, **headers: str) -> Any:
        """Send a POST request. `path` is relative to the project's runs. Bytes are sent unchanged."""
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        sent = self.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.generic("POST", self.url(path), raw, kind, headers=sent)

    def get(self, path: str) -> Any:
        return self.client.get(self.url(path), headers=self.headers)

    def url(self, path: str) -> str:
        return f"/api/projects/{self.project.slug}/agent-runs{path}"


def program(project: Project, *scopes: str) -> Program:
    return Program(project, with_key(project, *(scopes or ("write",))))


def counts() -> dict[str, int]:
    """Return the number of rows of each kind that a request could have written."""
    kinds = (AgentRun, Event, RunCommand, AuditEntry, IdempotencyKey)
    return {kind.__name__: kind.objects.count() for kind in kinds}


def refused(answer: Any) -> tuple[int, str]:
    """Return the status and the code of a refusal. Check that it is well formed."""
    problem = answer.json()
    assert answer["Content-Type"] == "application/problem+json"
    assert answer["Cache-Control"] == "no-store"
    assert problem["status"] == answer.status_code
    assert problem["request_id"]
    assert problem["detail"]
    assert len(problem["detail"]) < 600
    return answer.status_code, problem["code"]


def pointers(answer: Any) -> dict[str, str]:
    return {fault["pointer"]: fault["code"] for fault in answer.json()["errors"]}


def endless_run(tmp_path: Path, *, max_steps: int, project: Project | None = None, **options: Any) -> AgentRun:
    """Create a run whose model requests a tool in every step and never finishes."""
    PLAYS["endless"] = _endless
    settings = {"ledger": str(tmp_path / "ledger"), "play": "endless"}
    agent = make_agent(
        project,
        provider="scripted",
        model="scripted-model",
        tools=["ledger_read"],
        settings=settings,
        max_steps=max_steps,
    )
    return make_run(agent, "Go.", **options)


def _endless(call: ModelCall) -> Any:
    yield f"Step {call.number}."
    yield ToolCallPart("ledger_read", {"n": call.number}, f"call-{call.number}")


Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
ANY: Schema = {}
NAMED: Schema = {"type": "string", "minLength": 1}
MESSAGES: Schema = {"type": "array", "items": {"type": "object", "required": ["role", "content"]}}
USAGE: Schema = {
    "type": "object",
    "properties": dict.fromkeys(
        ("inputTokens", "outputTokens", "cacheCreationInputTokens", "cacheReadInputTokens"), NUMBER
    ),
    "required": ["inputTokens", "outputTokens"],
}
TEXT_MEMBERS: Schema = {"content": TEXT}
THOUGHT_MEMBERS: Schema = {"content": TEXT, "tokenCount?": NUMBER}

#: The members of each event type of the agent dialect. A question mark means that the member may be absent.
AGENT_EVENTS: dict[str, Schema] = {
    "agent:start": {"sessionId": NAMED, "model?": TEXT, "prompt": {"anyOf": [TEXT, MESSAGES]}},
    "agent:thinking:delta": THOUGHT_MEMBERS,
    "agent:thinking": THOUGHT_MEMBERS,
    "agent:text:delta": TEXT_MEMBERS,
    "agent:text": TEXT_MEMBERS,
    "agent:tool": {"toolName": NAMED, "toolInput": ANY, "toolOutput": ANY, "durationMs?": NUMBER, "error?": TEXT},
    "agent:error": {"errorType": NAMED, "message": TEXT, "details?": ANY, "recoverable!": ANY},
    "agent:complete": {
        "result": TEXT,
        "structuredOutput?": ANY,
        "usage": USAGE,
        "modelUsage?": {"type": "object", "propertyNames": NAMED, "additionalProperties": USAGE, "minProperties": 1},
        "totalCostUsd?": NUMBER,
        "durationMs": NUMBER,
        "numTurns": NUMBER,
    },
}
ERROR_TYPES = frozenset({"error_tool_use", "error_max_turns", "error_user", "network_error", "rate_limit"})
#: Milliseconds between 2001 and 2286, so that seconds and texts fail.
ENVELOPE: Schema = {
    "nodeId": NAMED,
    "runId": NAMED,
    "type": NAMED,
    "timestamp": {"type": "integer", "minimum": 10**12, "maximum": 10**13},
}

TIMELINE_EVENT: Schema = {
    "type": "object",
    "properties": {
        "seq": {"type": "integer", "minimum": 1},
        "ts": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$"},
        "runId": NAMED,
        "runKind": {"enum": ["session", "job"]},
        "phase": {"enum": ["queued", "running", "completed", "failed", "stopped"]},
        "type": NAMED,
        "payload": {"type": "object", "properties": {"message": NAMED}, "required": ["message"]},
    },
    "required": ["seq", "ts", "runId", "runKind", "phase", "type", "payload"],
}


def agent_event_schema(type_: str) -> Schema:
    """Return the schema of an event of the agent dialect. For other families, return the schema of their envelope."""
    properties, required = dict(ENVELOPE), list(ENVELOPE)
    for member, schema in AGENT_EVENTS.get(type_, {}).items():
        name = member.rstrip("?!")
        properties[name] = False if member.endswith("!") else schema
        required += [name] if name == member else []
    return {"type": "object", "properties": properties, "required": required}
