"""Many rows at once, and requests for their pages. Used by the tests of the API's reads.

May import the product's models.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from django.test import Client
from uuid_utils.compat import uuid7

from agentops.accounts.models import Project
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, Approval, Checkpoint, RunError, TurnUsage
from timeline.models import Event, Log

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
