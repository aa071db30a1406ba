"""Tools of an AG-UI front end: the run waits until the front end has executed them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from pydantic_ai.messages import ToolCallPart

from agentops.accounts.access import SYSTEM
from runs.actions import run_actions
from runs.lifecycle import questions
from runs.models import AgentRun
from runs.providers.base import ModelCall
from runs.queries.ag_ui_dialect import ag_ui_texts
from tests.support.clients import FrontEnd, of, types
from tests.support.factories import drive
from tests.support.run_checks import check
from tests.support.scripted_model import PLAYS, Move
from timeline import log

COLOUR = {
    "name": "set_colour",
    "description": "Colours the page.",
    "parameters": {"properties": {"colour": {"type": "string"}}, "required": ["colour"]},
}
PAINT = ToolCallPart("set_colour", {"colour": "red"}, "call-paint")
LOOK = ToolCallPart("ledger_read", {"n": 7}, "call-look")


def tool_message(call_id: str, content: str, **more: str) -> dict[str, str]:
    return {"id": f"result-{call_id}", "role": "tool", "toolCallId": call_id, "content": content, **more}


def waiting() -> Any:
    """Return the pending question of the waiting run."""
    question = questions.open_question(AgentRun.objects.get(status="waiting"))
    assert question is not None
    return question


@pytest.mark.every_database
def test_the_front_end_runs_its_tools_and_sends_the_results(front_end: Callable[..., FrontEnd]) -> None:
    client = front_end(["I paint. ", PAINT, LOOK], ["It is red."], policies={"on_prompt": {"action": "fail"}})
    asked = client.run("Paint it.", tools=[COLOUR])

    assert types(asked)[-4:] == ["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "RUN_FINISHED"]
    assert (asked[-1].outcome, asked[-1].result) == (None, None)
    [call] = of(asked, "TOOL_CALL_START")
    assert (call.tool_call_name, call.tool_call_id) == ("set_colour", str(waiting().call.pk))

    events = client.run(None, messages=[tool_message(call.tool_call_id, "painted")])
    assert types(events) == [
        *("RUN_STARTED", "TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT"),
        *("TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "RUN_FINISHED"),
    ]
    assert of(events, "TOOL_CALL_START")[0].tool_call_name == "ledger_read"
    run = AgentRun.objects.get()
    assert [call.output for call in run.tool_calls.order_by("id")] == ["painted", "did 7"]
    check(run)


@pytest.mark.slow
def test_a_stream_of_a_run_with_front_end_tools_may_begin_at_any_event(front_end: Callable[..., FrontEnd]) -> None:
    client = front_end(["A" * 500, PAINT], ["It is red."])
    client.run("Paint it.", tools=[COLOUR])
    client.run(None, messages=[tool_message(str(waiting().call.pk), "painted")])
    run = AgentRun.objects.get()
    logged = list(log.events_of(run.pk))
    whole = ag_ui_texts(run.pk, logged)

    for begin in range(1, len(logged)):
        assert ag_ui_texts(run.pk, logged[begin:]) == whole[begin:]


def test_errors_and_missing_output_of_a_tool_are_reported(front_end: Callable[..., FrontEnd]) -> None:
    client = front_end([PAINT], [PAINT], [PAINT], ["I see."])
    client.run("Paint it.", tools=[COLOUR])
    failed = tool_message(str(waiting().call.pk), "", error="no such colour")
    client.run(None, messages=[failed])
    for nothing in ("", " \n"):
        client.run(None, messages=[failed, tool_message(str(waiting().call.pk), nothing)])

    outputs = [call.output for call in AgentRun.objects.get().tool_calls.order_by("id")]
    assert outputs == ["Error: no such colour\n", *["The tool has run, without output."] * 2]


def test_a_message_instead_of_a_result_continues_the_run(front_end: Callable[..., FrontEnd]) -> None:
    client = front_end([PAINT], ["Then not."])
    client.run("Paint it.", tools=[COLOUR])
    nothing = client.refused(client.body(None, messages=[tool_message("another call", "painted")]))
    events = client.run("Never mind.")

    assert nothing == (409, "tool_result_required")
    assert of(events, "TEXT_MESSAGE_CONTENT")[-1].delta == "Then not."
    run = AgentRun.objects.get()
    assert "has not run this tool" in run.tool_calls.get().output
    assert run.messages.filter(role="user").count() == 2


def test_the_tools_of_a_request_apply_to_the_run_it_starts(front_end: Callable[..., FrontEnd]) -> None:
    seen: list[list[str]] = []

    client = front_end(["One."], ["Two."], ["Three."])
    play = client.agent.settings["play"]
    answers = PLAYS[play]

    def note(call: ModelCall) -> Iterable[Move]:
        seen.append(sorted(tool.name for tool in call.tools))
        return answers(call)

    PLAYS[play] = note
    client.run("First.", tools=[COLOUR, {"name": "ledger_read", "description": "Mine.", "parameters": {}}])
    client.run("Second.")
    client.run("Third.", tools=[COLOUR | {"name": "set_size"}])

    own = ["ask_user", "ledger_read"]
    assert seen == [[*own, "set_colour"], own, [*own, "set_size"]]
    assert [sorted(run.agent_config) for run in AgentRun.objects.order_by("pk")][1].count("front_end_tools") == 0


def test_a_user_may_answer_instead_of_the_front_end(front_end: Callable[..., FrontEnd]) -> None:
    client = front_end([PAINT], ["It is red."])
    client.run("Paint it.", tools=[COLOUR])
    assert waiting().text == (
        'The front end has to run set_colour, and to answer with its result. Arguments: {"colour": "red"}'
    )
    run_actions.reply(SYSTEM, AgentRun.objects.get(), "done by hand")

    assert drive(AgentRun.objects.get(), client.worker).status == "completed"
