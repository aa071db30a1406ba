"""The row of a tool call holds what its tool returned, or the error, however the call ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from pydantic_ai.messages import ToolCallPart

from runs.conversation.repeats import WARN_AT
from runs.lifecycle import inbox
from runs.models import AgentRun, AgentRunToolCall
from runs.providers.base import ModelCall
from runs.statuses import Effect, ToolStatus
from runs.tools.base import ToolContext, ToolDenied, ToolFailed, ToolResult
from runs.tools.catalogue import TOOLS
from runs.tools.functions import tool
from tests.support.engine.fixture_types import DieAt, MakeScripted
from tests.support.factories import drive
from tests.support.processes.scripted_model import Move
from tests.support.run_checks import check

pytestmark = pytest.mark.django_db(transaction=True)


@tool(effect=Effect.AT_MOST_ONCE, timeout_s=0.2)
def ends_as_told(ctx: ToolContext, how: str) -> Any:
    """Ends in the way that it is asked for."""
    match how:
        case "soft":
            return ToolResult("not today", is_error=True)
        case "hard":
            raise ToolFailed("quota", "no more")
        case "denied":
            raise ToolDenied("path_denied", "not this one")
        case "empty":
            return ""
        case "long":
            return "0123456789" * 1_000
    return {"how": how}


TOOLS.register(ends_as_told)


def run_of(scripted: MakeScripted, *hows: str, **settings: Any) -> AgentRun:
    def play(call: ModelCall) -> Iterable[Move]:
        asked = [ToolCallPart("ends_as_told", {"how": how}, f"c{n}") for n, how in enumerate(hows)]
        yield from asked if call.number == 1 else ["Done."]

    return drive(scripted(play, tools=["ends_as_told"], **settings))


def outputs(run: AgentRun) -> list[tuple[str, Any]]:
    return list(AgentRunToolCall.objects.filter(run=run).order_by("id").values_list("status", "output"))


def test_a_call_keeps_its_output_or_its_error(scripted: MakeScripted) -> None:
    """A result that was not cut, a soft error, a hard one, a refused one and an empty one."""
    run = run_of(scripted, "fine", "soft", "hard", "denied", "empty")

    assert outputs(run) == [
        ("completed", '{"how": "fine"}'),
        ("error", "not today"),
        ("error", "quota: no more"),
        ("error", "path_denied: not this one"),
        ("completed", ""),
    ]
    check(run)


def test_a_call_keeps_the_whole_output_where_the_model_saw_less_or_more(scripted: MakeScripted) -> None:
    """Neither the cut nor the warning of the repeat guard is part of what the tool returned."""
    long = run_of(scripted, "long", tool_output_limit=100)
    repeated = run_of(scripted, *["fine"] * WARN_AT)

    assert outputs(long) == [("completed", "0123456789" * 1_000)]
    assert outputs(repeated)[-1] == ("completed", '{"how": "fine"}')
    last = AgentRunToolCall.objects.filter(run=repeated).select_related("result_message").latest("id")
    assert last.result_message is not None
    assert len(last.result_message.content["parts"][0]["content"]) > len(str(last.output)), "no warning was given"


def test_a_call_that_a_stop_closes_keeps_why(scripted: MakeScripted, die_at: DieAt) -> None:
    """Planned calls say that they were not run; a started one, that its outcome is unknown."""
    run = scripted(calls=[["ledger_once", "ledger_read"]])
    assert die_at(run, "tool.returned")

    inbox.stop(run.pk, by="ada")
    drive(run)

    (started, what), (planned, why) = outputs(run)
    assert (started, planned) == (ToolStatus.UNKNOWN, ToolStatus.DENIED)
    assert "unknown" in what.lower()
    assert "not run" in why
    check(run)
