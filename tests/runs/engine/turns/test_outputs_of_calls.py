"""The row of a tool call holds the returned value or the error, for every way a call can end."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable
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
from runs.tools.output import MAX_OUTPUT, MODEL_LIMIT
from runs.worker.worker import Worker
from tests.support.engine import DieAt, MakeScripted
from tests.support.factories import drive
from tests.support.run_checks import check
from tests.support.scripted_model import Move

pytestmark = pytest.mark.django_db(transaction=True)


@tool(effect=Effect.AT_MOST_ONCE, timeout_s=20)
def ends_as_told(ctx: ToolContext, how: str) -> Any:
    """End in the requested way."""
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
    return ODD_RESULTS[how]() if how in ODD_RESULTS else {"how": how}


def exit_process() -> None:
    raise SystemExit(3)


def end() -> None:
    raise BaseException("the end")


TOOLS.register(ends_as_told)


def huge() -> str:
    """Return a text of a hundred megabytes."""
    return "0123456789" * 10_000_000


#: Invalid or extreme results of a tool, by name.
ODD_RESULTS: dict[str, Callable[[], object]] = {
    "bytes": lambda: bytes(range(256)),
    "huge": huge,
    "endless": itertools.count,
    "exits": exit_process,
    "ends": end,
    "object": object,
}


def run_of(scripted: MakeScripted, *hows: str, worker: Worker | None = None, **settings: Any) -> AgentRun:
    def play(call: ModelCall) -> Iterable[Move]:
        asked = [ToolCallPart("ends_as_told", {"how": how}, f"c{n}") for n, how in enumerate(hows)]
        yield from asked if call.number == 1 else ["Done."]

    return drive(scripted(play, tools=["ends_as_told"], **settings), worker)


def outputs(run: AgentRun) -> list[tuple[str, Any]]:
    return list(AgentRunToolCall.objects.filter(run=run).order_by("id").values_list("status", "output"))


def test_a_call_stores_its_output_or_its_error(scripted: MakeScripted) -> None:
    """An uncut result, a soft error, a hard error, a denial and an empty result."""
    run = run_of(scripted, "fine", "soft", "hard", "denied", "empty")

    assert outputs(run) == [
        ("completed", '{"how": "fine"}'),
        ("error", "not today"),
        ("error", "quota: no more"),
        ("error", "path_denied: not this one"),
        ("completed", ""),
    ]
    check(run)


def test_a_call_stores_the_whole_output_without_truncation_and_warnings(scripted: MakeScripted) -> None:
    """Neither truncation nor the warning of the repeat guard changes the stored output."""
    long = run_of(scripted, "long", tool_output_limit=100)
    repeated = run_of(scripted, *["fine"] * WARN_AT)

    assert outputs(long) == [("completed", "0123456789" * 1_000)]
    assert outputs(repeated)[-1] == ("completed", '{"how": "fine"}')
    last = AgentRunToolCall.objects.filter(run=repeated).select_related("result_message").latest("id")
    assert last.result_message is not None
    assert len(last.result_message.content["parts"][0]["content"]) > len(str(last.output)), "no warning was given"


@pytest.mark.slow
def test_invalid_results_of_a_tool_do_not_stop_the_run(scripted: MakeScripted, worker: Worker) -> None:
    """Each call has a result, and the model and the worker continue."""
    hows = tuple(ODD_RESULTS)
    run = run_of(scripted, *hows, worker=worker, tool_output_limit=MODEL_LIMIT)

    assert run.status == "completed"
    found = dict(zip(hows, outputs(run), strict=True))
    statuses = {how: status for how, (status, _) in found.items()}
    assert statuses == dict.fromkeys(hows, "error") | {"bytes": "completed", "huge": "completed"}
    data = hashlib.sha256(bytes(range(256))).hexdigest()
    assert found["bytes"][1] == f"[256 bytes that are not text, sha256 {data}]"
    kept, note = found["huge"][1][:MAX_OUTPUT], found["huge"][1][MAX_OUTPUT:]
    assert huge().startswith(kept)
    whole = hashlib.sha256(huge().encode()).hexdigest()
    assert note == f"\n… [cut: {MAX_OUTPUT} of 100000000 characters kept, sha256 {whole}]"
    assert "not an iterator" in found["endless"][1]
    assert (found["exits"][1], found["ends"][1]) == ("SystemExit: 3", "BaseException: the end")
    assert found["object"][1] == "[the tool returned a value of type 'object', which has no text form]"
    told = AgentRunToolCall.objects.get(run=run, call_id="c1").result_message
    assert told is not None
    assert len(told.content["parts"][0]["content"]) < MODEL_LIMIT + 100
    check(run)
    assert run_of(scripted, "fine", worker=worker).status == "completed"


def test_a_call_closed_by_a_stop_stores_the_reason(scripted: MakeScripted, die_at: DieAt) -> None:
    """Planned calls state that they did not run; a started call states that its outcome is unknown."""
    run = scripted(calls=[["ledger_once", "ledger_read"]])
    assert die_at(run, "tool.returned")

    inbox.stop(run.pk, by="oscar")
    drive(run)

    (started, what), (planned, why) = outputs(run)
    assert (started, planned) == (ToolStatus.UNKNOWN, ToolStatus.DENIED)
    assert "unknown" in what.lower()
    assert "not run" in why
    check(run)
