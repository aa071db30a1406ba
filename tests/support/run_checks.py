"""What tests check: invariants and content of runs, refusals, rows with a text, and the search index."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, transaction

from agentops.accounts.models import Project
from agentops.base.redaction import project_scope
from agentops.base.refusals import Refusal
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall
from runs.queries.json_lists import RowSpan
from runs.queries.searching.search_results import Result, Search, SearchFilters, SearchOrder, search
from runs.queries.searching.search_terms import parse
from runs.statuses import RESOLVED
from runs.upkeep import search_index
from timeline import log
from timeline.log import Entry
from timeline.models import Event, Source


def events(run: AgentRun) -> list[Event]:
    return list(log.events_of(run.pk))


def check(run: AgentRun) -> None:
    """Check what holds for every run at any time: a log without gaps, and a conversation that providers accept.

    The invariants are checked after each test: see tests/support/suite_database.py.
    """
    run.refresh_from_db()
    lines = events(run)
    assert [event.seq for event in lines] == list(range(1, len(lines) + 1))
    messages = list(AgentRunMessage.objects.filter(run=run).order_by("position"))
    assert [message.position for message in messages] == list(range(1, len(messages) + 1))
    active = [message for message in messages if message.rolled_back_at is None]
    asked = [
        part["tool_call_id"]
        for message in active
        for part in message.content["parts"]
        if part["part_kind"] == "tool-call"
    ]
    answered = [
        part["tool_call_id"]
        for message in active
        for part in message.content["parts"]
        if part["part_kind"] == "tool-return"
    ]
    assert Counter(answered) <= Counter(asked)
    assert len(set(answered)) == len(answered), "a call was answered twice"
    if run.state.terminal:
        assert Counter(asked) == Counter(answered), "a call has no answer"
        calls = AgentRunToolCall.objects.filter(run=run)
        assert {call.status for call in calls} <= set(RESOLVED)
        assert_turns_closed(lines)
        assert_whole_end(run, active, lines)
    # Worker events only: the sweep, which ends waits, holds no lease.
    epochs = [event.epoch for event in lines if event.source == "worker" and event.epoch is not None]
    assert epochs == sorted(epochs), "an event of an earlier epoch came after one of a later"


def assert_whole_end(run: AgentRun, active: Sequence[AgentRunMessage], lines: Sequence[Event]) -> None:
    """Check that an answer that was cut off or refused completes a run only if a policy or a call says so."""
    answers = [message for message in active if message.role == "assistant"]
    is_recorded = run.source != AgentRun.Source.NATIVE
    if run.status != "completed" or is_recorded or not answers:
        return
    if answers[-1].finish_reason in ("length", "content_filter"):
        ends = [part.get("tool_name") for part in answers[-1].content["parts"]]
        acts = [event.payload["action"] for event in lines if event.type == "policy.applied"]
        assert "done" in ends or acts[-1:] == ["accept"], "an answer that is not whole has completed the run"


def assert_turns_closed(lines: Sequence[Event]) -> None:
    """Check that every model turn that started has ended: committed or abandoned."""
    started = sum(event.type == "llm.turn.start" for event in lines)
    ended = sum(event.type in ("llm.turn.end", "llm.turn.abandoned") for event in lines)
    assert started == ended, [event.type for event in lines if event.type.startswith("llm.turn")]


def transcript(run: AgentRun) -> dict[str, Any]:
    """Return the content of a run without IDs and times. It is equal for a crashed and an undisturbed run."""
    run.refresh_from_db()
    messages = AgentRunMessage.objects.filter(run=run).order_by("position")
    calls = AgentRunToolCall.objects.filter(run=run).order_by("step_number", "id")
    return {
        "messages": [(m.position, m.role, m.step_number, plain(m.content)) for m in messages],
        "calls": [(c.step_number, c.call_id, c.tool_name, c.input, c.status) for c in calls],
        "checkpoints": [(c.step_number, c.last_message_position) for c in run.checkpoints.order_by("step_number")],
        "run": (run.status, run.step_count, run.result),
        # Only of answers: the usage also counts requests that a crash repeated, so it differs.
        "usage": list(
            run.turn_usages.filter(outcome="answered")
            .order_by("step_number")
            .values_list("step_number", "input_tokens", "output_tokens")
        ),
    }


def plain(value: Any) -> Any:
    """Return a message's content without the values that differ from run to run."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items() if name not in ("timestamp", "id", "run_id")}
    return [plain(each) for each in value] if isinstance(value, list) else value


@contextmanager
def refuses(code: str, match: str | None = None) -> Iterator[pytest.ExceptionInfo[Refusal]]:
    """Expect a refusal with this code, and a text that `match` finds."""
    with pytest.raises(Refusal, match=match) as caught:
        yield caught
    assert caught.value.code == code


def failure_of(check: Any, *arguments: Any, **options: Any) -> str:
    """Return the message with which a check fails."""
    with pytest.raises(AssertionError) as failed:
        check(*arguments, **options)
    return str(failed.value)


def rows_with(text: str) -> list[tuple[str, str]]:
    """Return the rows that contain this text in any column, as table name and row. An empty text matches all rows."""
    found = []
    with connection.cursor() as cursor:
        for table in sorted(connection.introspection.table_names(cursor)):
            cursor.execute(f"SELECT * FROM {connection.ops.quote_name(table)}")
            found += [(table, row) for row in map(_as_text, cursor.fetchall()) if text in row]
    return found


def _as_text(row: tuple[Any, ...]) -> str:
    return "\x1f".join(map(_column_as_text, row))


def _column_as_text(value: Any) -> str:
    if isinstance(value, bytes | memoryview):
        return bytes(value).decode("latin-1")
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def index_all() -> None:
    """Index all rows that are committed, or written in this test's transaction."""
    assert all(search_index.catch_up())
    assert search_index.lag_s() == 0


def note(run: AgentRun, *texts: str, **payload: Any) -> None:
    """Append events of a custom type. They are late events if the run has ended."""
    late = AgentRun.objects.get(pk=run.pk).state.terminal
    with transaction.atomic():
        entries = [Entry({"text": text, **payload}, type="x.note", late=late) for text in texts]
        log.append(run.pk, entries, source=Source.INGEST)


def found(project: Project, text: str, *, order: str = "newest", limit: int = 200, **filters: Any) -> list[Result]:
    query = Search(project.pk, parse(text), SearchFilters(**filters), SearchOrder(order))
    # As the access check does.
    with project_scope.limited_to(project.pk):
        return list(search(query, RowSpan(limit=limit)).items)


def runs_found(project: Project, text: str, **filters: Any) -> list[UUID]:
    return [result.run_id for result in found(project, text, **filters)]
