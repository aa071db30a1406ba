"""Texts that an event or a call shares with a message: stored once, and read whole by every kind of query."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from django.db import connection
from pydantic_ai.messages import ToolCallPart

from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall
from runs.providers.base import ModelCall
from runs.queries import record_columns
from runs.queries.json_lists import Where, id_param
from runs.statuses import Effect
from runs.tools.base import ToolContext
from runs.tools.catalogue import TOOLS
from runs.tools.functions import tool
from tests.support.engine import MakeScripted
from tests.support.factories import drive
from tests.support.run_checks import check
from tests.support.scripted_model import Move
from timeline import log
from timeline.models import Event

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.every_database]
ANSWER = "Zürich has naïve rivers, “quoted” \\backslashes\\ and 🌍. " * 8
SECRET = "ghp_" + "a1B2" * 9


@tool(effect=Effect.READ)
def returns_digits(ctx: ToolContext, count: int) -> str:
    """Return as many digits."""
    return ("0123456789" * count)[:count]


TOOLS.register(returns_digits)


def stored(run: AgentRun, table: str, column: str, condition: str) -> list[Any]:
    """Return the values of a JSON column as they are stored."""
    owner = "log_id" if table == "agent_run_events" else "run_id"
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT CAST({column} AS text) FROM {table} WHERE {owner} = %s AND {condition} ORDER BY 1",
            [id_param(run.pk)],
        )
        return [None if text is None else json.loads(text) for (text,) in cursor.fetchall()]


@pytest.fixture
def run(scripted: MakeScripted) -> AgentRun:
    """A run of two steps: a long answer that requests a call with a long output, and a short answer."""

    def play(call: ModelCall) -> Iterable[Move]:
        if call.number == 1:
            yield ANSWER
            yield ToolCallPart("returns_digits", {"count": 500}, "call-1")
        else:
            yield "Done."

    ended: AgentRun = drive(scripted(play, tools=["returns_digits"]))
    check(ended)
    return ended


def test_the_event_of_an_answer_stores_only_its_length(run: AgentRun) -> None:
    assert stored(run, "agent_run_events", "payload", "type = 'llm.text' AND step = 1") == [
        {"text": len(ANSWER), "index": 0}
    ]
    assert stored(run, "agent_run_events", "payload", "type = 'llm.text' AND step = 2") == [
        {"text": "Done.", "index": 0}
    ]


def test_every_kind_of_query_reads_the_text(run: AgentRun) -> None:
    of_answer = Event.objects.filter(log=run.pk, type="llm.text", step=1)
    assert of_answer.get().payload["text"] == ANSWER
    assert of_answer.values_list("payload", flat=True).get()["text"] == ANSWER
    assert of_answer.values_list("payload__text", flat=True).get() == ANSWER
    assert of_answer.filter(payload__text=ANSWER).exists()
    assert [event.payload["text"] for event in log.read(run.pk) if event.type == "llm.text"] == [ANSWER, "Done."]
    rows, _ = record_columns.events_after(run.project_id, run.pk, 0, 100)
    texts = [each["payload"]["text"] for each in map(json.loads, rows.items) if each["type"] == "llm.text"]
    assert texts == [ANSWER, "Done."]


def test_queries_for_other_members_do_not_look_up_texts(run: AgentRun) -> None:
    roles = Event.objects.filter(log=run.pk, payload__role="assistant").values_list("payload__role", flat=True)
    cut = Event.objects.filter(log=run.pk, payload__has_key="truncated")
    assert "agent_run_messages" not in str(roles.query)
    assert "agent_run_messages" not in str(cut.values("seq").query)
    assert list(roles) == ["assistant"] * 2
    assert cut.values("seq").count() == 2


def test_previews_are_the_beginning_of_their_text(run: AgentRun) -> None:
    message, call = AgentRunMessage.objects.get(run=run, role="assistant", step_number=1), run.tool_calls.get()
    added = Event.objects.get(ref_id=message.pk, type="message.added").payload["preview"]
    assert ANSWER.startswith(added)
    assert len(added) > 200
    ended = Event.objects.get(ref_id=call.pk, type="tool.end").payload["preview"]
    assert call.output.startswith(ended)
    assert len(ended) > 100
    numbers = stored(run, "agent_run_events", "payload", "text_part IS NOT NULL AND type <> 'llm.text'")
    assert sorted(each["preview"] for each in numbers) == sorted([len(added), len(ended)])


def test_the_output_of_a_call_is_stored_in_its_result_message(run: AgentRun) -> None:
    assert stored(run, "agent_run_tool_calls", "output", "TRUE") == [None]
    call = AgentRunToolCall.objects.select_related("result_message").get(run=run)
    assert call.result_message is not None
    assert call.output == call.result_message.content["parts"][0]["content"]
    row = record_columns.TOOL_CALL.one(Where(("t.run_id = %s",), (id_param(run.pk),)))
    assert row is not None
    assert json.loads(row)["output"] == call.output


def test_an_event_with_a_replaced_secret_has_its_own_text(scripted: MakeScripted) -> None:
    run = drive(scripted(lambda _: [f"The token is {SECRET}, " + "and more " * 20]))

    [payload] = stored(run, "agent_run_events", "payload", "type = 'llm.text'")
    assert "[REDACTED:github_token:" in payload["text"]
    added = stored(run, "agent_run_events", "payload", "type = 'message.added'")
    [preview] = [each["preview"] for each in added if each["role"] == "assistant"]
    assert preview.startswith("The token is [REDACTED:github_token:")


def test_an_output_that_the_model_got_shortened_stays_in_its_call(scripted: MakeScripted) -> None:
    def play(call: ModelCall) -> Iterable[Move]:
        yield ToolCallPart("returns_digits", {"count": 500}, "call-1") if call.number == 1 else "Done."

    run = drive(scripted(play, tools=["returns_digits"], tool_output_limit=100))

    [output] = stored(run, "agent_run_tool_calls", "output", "TRUE")
    assert output == run.tool_calls.get().output
    assert len(output) == 500
