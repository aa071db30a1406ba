"""Outputs above 256 KiB: stored with size and digest, downloadable in full, and not read by lists and pages."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import pytest
from django.apps import apps
from django.conf import settings
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from agentops.accounts.models import Role
from agentops.base.http.threaded import ThreadedDjango
from agentops.base.redaction.partial_texts import MAX_PENDING
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.conversation import tool_results, transcript, writes
from runs.conversation.long_outputs import LIMIT, facts_of
from runs.conversation.tool_results import CallResult
from runs.models import AgentRun, AgentRunToolCall
from runs.queries.long_texts import PIECE
from runs.statuses import ToolStatus
from tests.support.factories import make_person, make_project, make_waiting, with_key
from tests.support.second_pass import cases
from timeline.display import clean

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.breaks_invariants("a call that a test has closed")]
LONG = "naïve line\n" * (LIMIT // 8)
MIDDLE = "«the middle of it»"


def close(run: AgentRun, output: Any) -> AgentRunToolCall:
    """Store the output of the waiting call of a run, as a worker does."""
    call = AgentRunToolCall.objects.get(run=run, result_message=None, status="unknown")
    result = CallResult(ToolStatus.COMPLETED, output)
    position = transcript.last_position(run.pk) + 1
    writes.write(tool_results.close(call, result, position=position, epoch=None, limit=8000).commit)
    return AgentRunToolCall.objects.get(pk=call.pk)


@pytest.mark.every_database
def test_size_and_digest_are_stored_with_the_whole_output() -> None:
    call = close(make_waiting(), LONG)
    data = LONG.encode()
    assert (call.output, call.status) == (LONG, "completed")
    assert (call.output_bytes, call.output_sha256) == (len(data), hashlib.sha256(data).hexdigest())
    AgentRunToolCall.objects.filter(pk=call.pk).update(output_bytes=None, output_sha256=None)
    import_module("runs.migrations.0023_fill_output_sizes").fill(apps, connection.schema_editor())
    call.refresh_from_db()
    assert call.output_bytes == len(data)


@pytest.mark.parametrize("output", cases(["x" * LIMIT, "ä" * (LIMIT // 2), [], ["short"], None]))
def test_shorter_outputs_have_neither_size_nor_digest(output: Any) -> None:
    assert facts_of(output) is None


def test_lists_and_odd_texts_are_measured_too() -> None:
    items = ["x" * LIMIT, {"media_type": "image/png"}]
    facts, odd = facts_of(items), facts_of("\ud800" + "x" * LIMIT)
    assert facts is not None
    assert odd is not None
    assert facts.size == len(json.dumps(items, separators=(",", ":")))
    assert odd.size == LIMIT + 3


@pytest.mark.every_database
def test_the_api_returns_size_and_digest_and_users_download_the_output() -> None:
    """A page shows the beginning and reads no more of it than that."""
    run = make_waiting(make_project("alpha"))
    text = f"{LONG}{MIDDLE}{LONG}"
    call = close(run, text)
    url = f"/api/projects/alpha/agent-runs/{run.pk}/tool-calls"
    reader = with_key(run.project, "read")
    with CaptureQueriesContext(connection) as queries:
        rows = Client(headers=reader).get(url).json()["results"]
    [row] = [each for each in rows if each["output_bytes"] is not None]
    assert not any("t.output," in sql or "t.output AS" in sql for sql in (query["sql"] or "" for query in queries))
    assert (row["id"], row["output_sha256"]) == (str(call.pk), hashlib.sha256(text.encode()).hexdigest())
    assert Client(headers=reader).get(f"{url}/{call.pk}").json()["output"] == text

    person = Client()
    person.force_login(make_person(run.project, Role.VIEWER))
    page = person.get(f"/runs/{run.pk}/calls/{call.pk}").content.decode()
    assert MIDDLE not in page
    assert f"/runs/{run.pk}/calls/{call.pk}?download=output" in page
    assert row["output_sha256"] in page
    assert "Output sent to the model" in page
    for client, file in (
        (person, f"/runs/{run.pk}/calls/{call.pk}?download=output"),
        (Client(), f"{url}/{call.pk}/output"),
    ):
        with CaptureQueriesContext(connection) as queries:
            download: Any = client.get(file, headers=reader if client is not person else {})
            content = download.getvalue()
        assert download.streaming
        assert not any('output" FROM' in (query["sql"] or "") for query in queries)
        assert hashlib.sha256(content).hexdigest() == row["output_sha256"]
        assert download.headers["Content-Type"] == "text/plain; charset=utf-8"
        assert download.headers["Content-Disposition"] == 'attachment; filename="output.txt"'
        assert download.headers["X-Content-Type-Options"] == "nosniff"
        assert "default-src" in download.headers["Content-Security-Policy"]


@pytest.mark.slow
@pytest.mark.every_database
def test_a_download_is_sent_in_parts_and_secrets_across_their_borders_are_masked() -> None:
    """By the ASGI server: each part is one read of bounded size, and parts are never joined."""
    run = make_waiting(make_project("alpha"))
    line, secret = "é\u202e\x1b[31mred\x1b[0m\r\n", "sk-ant-api03-" + "Ab1" * 30
    text = line * (2 * PIECE // len(line))
    # Across the border of two parts: a secret, an escape sequence, and a line end.
    text = f"{text[: PIECE - 40]} {secret} {text[PIECE:]}"
    text = f"{text[: 2 * PIECE - 30].ljust(2 * PIECE - 2)}\x1b[32mgreen\r\n{secret}\x1b]0;"
    call = close(run, "x" * (LIMIT + 1))
    AgentRunToolCall.objects.filter(pk=call.pk).update(output=text)
    path = f"/api/projects/alpha/agent-runs/{run.pk}/tool-calls/{call.pk}/output"
    pieces = sent(path, with_key(run.project, "read"))
    assert "".join(pieces) == REDACTOR.clean_text(text)[0]
    assert secret not in "".join(pieces)
    assert (len(pieces) >= 3, max(map(len, pieces)) <= PIECE + MAX_PENDING) == (True, True)

    person = Client()
    person.force_login(make_person(run.project, Role.VIEWER))
    cookie = f"{settings.SESSION_COOKIE_NAME}={person.cookies[settings.SESSION_COOKIE_NAME].value}"
    shown = "".join(sent(f"/runs/{run.pk}/calls/{call.pk}?download=output", {"Cookie": cookie}))
    assert shown == clean(text)
    AgentRunToolCall.objects.filter(pk=call.pk).update(output=["short", "list"])
    assert Client(headers=with_key(run.project, "read")).get(path).content == b'["short","list"]'


def sent(path: str, headers: Mapping[str, str]) -> list[str]:
    """Return the parts of a response, as the ASGI application sends them."""
    messages: list[dict[str, Any]] = []
    asked = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, Any]:
        # A connected client sends nothing after its request.
        return asked.pop() if asked else await asyncio.Future()

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    own = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": query.encode(),
        "http_version": "1.1",
        "headers": [(b"host", b"testserver"), *own],
        "scheme": "http",
        "server": ("testserver", 80),
        "client": ("127.0.0.1", 1),
        "root_path": "",
    }
    asyncio.run(ThreadedDjango()(scope, receive, send))
    start, *bodies = messages
    assert start["status"] == 200, messages
    assert [body.get("more_body", False) for body in bodies] == [True] * (len(bodies) - 1) + [False]
    return [body["body"].decode() for body in bodies]


def test_large_columns_are_the_last_on_sqlite() -> None:
    if connection.vendor != "sqlite":
        pytest.skip("only SQLite reads past a long value to the columns behind it")
    with connection.cursor() as cursor:
        names = {
            table: [column.name for column in connection.introspection.get_table_description(cursor, table)]
            for table in ("agent_run_tool_calls", "agent_run_messages")
        }
    assert names["agent_run_tool_calls"][-3:] == ["input", "changed_arguments", "output"]
    assert names["agent_run_messages"][-1] == "content"
