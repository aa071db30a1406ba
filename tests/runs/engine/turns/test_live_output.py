"""Output that a tool writes while it runs is logged before its result: redacted, bounded, and visible on the page."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connections

from runs.engine.turns.running_calls import MAX_LIVE
from runs.models import AgentRun
from runs.statuses import RunStatus
from runs.tools.base import ToolContext, ToolFailed, ToolResult
from runs.tools.catalogue import TOOLS
from runs.tools.functions import tool
from runs.worker.worker import Worker
from tests.support.engine import MakeScripted
from tests.support.factories import drive
from tests.support.run_checks import check, events
from tests.support.timing import eventually
from timeline.events.work import FileChanged, GitCommit

pytestmark = pytest.mark.django_db(transaction=True)
SECRET = "sk-ant-api03-" + "Ab1" * 30
_go_on = threading.Event()


@tool(effect="read", timeout_s=20)
def speaks(ctx: ToolContext, n: int) -> ToolResult:
    """Write, wait for the test, and write more."""
    ctx.write("one ")
    ctx.write(SECRET[:20])
    ctx.write(SECRET[20:] + " two\n")
    assert _go_on.wait(60)
    ctx.write("oops", "stderr")
    ctx.write("three")
    return ToolResult("whole", events=[FileChanged(path="a.txt", change="modified"), GitCommit(sha="c0ffee")])


@tool(effect="read", timeout_s=20)
def floods(ctx: ToolContext, n: int) -> str:
    """Write more than the limit of live output, and fail."""
    for _ in range(100):
        ctx.write("x" * 1024)
    raise ToolFailed("flooded")


@tool(effect="read", timeout_s=20)
def mumbles(ctx: ToolContext, n: int) -> str:
    """Write to streams with invalid names."""
    for stream in (7, None, "\0"):
        ctx.write("hm", stream)
    return "whole"


for each in (speaks, floods, mumbles):
    TOOLS.register(each)


def written(run: AgentRun) -> list[tuple[Any, Any]]:
    return [(e.payload.get("stream"), e.payload["text"]) for e in events(run) if e.type == "tool.output"]


def test_the_name_of_a_stream_becomes_a_string(scripted: MakeScripted, worker: Worker) -> None:
    run = drive(scripted(calls=[["mumbles"]], tools=["mumbles"]), worker)

    assert run.status == RunStatus.COMPLETED
    # The last letter may start a secret of this site, so it is logged only when the tool ends.
    texts: dict[object, str] = {}
    for stream, text in written(run):
        texts[stream] = texts.get(stream, "") + text
    assert texts == {"7": "hm", "None": "hm", "\ufffd": "hm"}


def test_output_is_logged_while_the_tool_runs(scripted: MakeScripted, worker: Worker) -> None:
    run = scripted(calls=[["speaks"]], tools=["speaks"])
    _go_on.clear()
    driving = threading.Thread(target=_drive, args=(worker, run))
    driving.start()
    eventually(lambda: written(run), why="the first output is in the log")
    before = written(run)
    _go_on.set()
    driving.join(60)

    texts = written(run)
    assert len(before) < len(texts)
    joined = "".join(text for stream, text in texts if stream == "stdout")
    assert (joined[:4], joined[-10:]) == ("one ", " two\nthree")
    assert "[REDACTED:" in joined
    assert SECRET[:20] not in joined
    assert ("stderr", "oops") in texts
    kinds = [e.type for e in events(run) if e.ref_id is not None]
    assert kinds.index("tool.output") > kinds.index("tool.start")
    last = len(kinds) - 1 - kinds[::-1].index("tool.output")
    assert kinds[last + 1 :].count("tool.end") == 1
    assert {"file.changed", "git.commit"} <= set(kinds[last:])
    check(run)


def test_output_is_bounded_and_kept_if_the_tool_fails(scripted: MakeScripted) -> None:
    run = drive(scripted(calls=[["floods"]], tools=["floods"], tool_max_retries=0))

    assert run.status == RunStatus.COMPLETED
    joined = "".join(text for _, text in written(run))
    assert joined == "x" * MAX_LIVE + "\n… [the rest is not shown while the tool runs]"
    check(run)


def _drive(worker: Worker, run: AgentRun) -> None:
    try:
        worker.drive(run.pk)
    finally:
        connections.close_all()
