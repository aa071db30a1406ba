"""Agent loops of other programs, recorded by agentops.client on a running site."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from agentops.accounts.models import ApiKey
from agentops.client import Recorder
from agentops.client.delivery import EventDelivery, shared_delivery
from agentops.client.recorder import RecordedRun
from runs.models import AgentRun
from runs.upkeep import invariants, replay_check
from tests.support.clients import Site
from tests.support.machine import free_port
from timeline.models import Event

Deliver = Callable[..., EventDelivery]
#: Timeout in seconds, long enough for a slow machine. No test waits for its end.
SOON = 30.0


def run_of(recorded: RecordedRun) -> AgentRun:
    assert recorded.flush(SOON)
    return AgentRun.objects.get(external_id=recorded.id)


def calls_of(run: AgentRun) -> list[Any]:
    calls = run.tool_calls.order_by("step_number", "created_at")
    return [(call.tool_name, call.status, call.input, call.output) for call in calls]


def test_five_lines_record_a_run(site: Site) -> None:
    key = site.key("ingest")
    with Recorder(site.url, key, agent="fixer", prompt="Why is the build red?", model="claude-sonnet-4-5") as run:
        run.message("system", "You fix builds.")
        run.tool("read_log", {"lines": 50}, "one test failed", duration_ms=40)
        run.turn("A test failed.", usage={"input_tokens": 812, "output_tokens": 31})

    row = run_of(run)
    shared_delivery(site.url, key).close()
    assert (row.status, row.source, row.prompt, row.agent_config["agent_id"]) == (
        *("completed", "external", "Why is the build red?"),
        "fixer",
    )
    assert list(row.messages.order_by("position").values_list("role", flat=True)) == [
        *("user", "system", "assistant", "tool_result", "assistant"),
    ]
    assert calls_of(row) == [("read_log", "completed", {"lines": 50}, "one test failed")]
    assert (row.input_tokens, row.output_tokens, row.summary) == (812, 31, "A test failed.")
    assert row.cost_usd
    assert (run.dropped, run.rejected) == (0, 0)


def test_all_methods_create_rows_and_link_children(deliver: Deliver) -> None:
    async def work(delivery: EventDelivery) -> RecordedRun:
        async with RecordedRun(delivery, "lead", prompt="Fix it.") as run:
            run.thinking_delta("Hm.")
            run.text_delta("I ask.")
            run.turn(tool_calls=[("c1", "delegate", {"to": "helper"})], cost_usd=0.25, model="m", duration_ms=12.5)
            async with run.tool_call("delegate", {"to": "helper"}, call_id="c1") as call:
                async with run.child("helper", prompt="Look.", call_id=call.id) as child:
                    child.turn("Seen.", finish_reason="max_tokens")
                    child.complete("Nothing there.", summary="Nothing.")
                call.output = {"found": 0}
            with pytest.raises(KeyError), run.tool_call("lookup", {"name": "x"}):
                raise KeyError("x")
            run.error("The disk is slow.", error_type="warning")
            run.event("x.mine", note="kept")
            run.complete({"found": 0}, cost_usd="0.5")
            assert await run.aflush(SOON)
        return run

    lead = run_of(asyncio.run(work(deliver())))

    assert (lead.status, lead.result, float(lead.cost_usd or 0)) == ("completed", '{"found":0}', 0.5)
    assert calls_of(lead) == [
        ("delegate", "completed", {"to": "helper"}, {"found": 0}),
        ("lookup", "error", {"name": "x"}, "KeyError('x')"),
    ]
    assert [error.message for error in lead.errors.all()] == ["The disk is slow."]
    [child] = AgentRun.objects.filter(parent_run=lead)
    assert (child.status, child.summary, child.agent_config["agent_id"]) == ("completed", "Nothing.", "helper")
    assert lead.tool_calls.get(call_id="c1").child_run_id == child.pk
    assert child.messages.get(role="assistant").finish_reason == "length"
    types = list(Event.objects.filter(log=lead.pk).order_by("seq").values_list("type", flat=True))
    assert [name for name in types if name.startswith(("child", "x."))] == [
        *("child_run.started", "child_run.completed", "x.mine"),
    ]
    for run in (lead, child):
        assert [one for one in invariants.check(run.pk) if not one.warning_only] == []
        assert replay_check.differences(run.pk) == []


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (ValueError("no file"), "failed", "ValueError"),
        (KeyboardInterrupt(), "stopped", "KeyboardInterrupt"),
        (asyncio.CancelledError(), "stopped", "CancelledError"),
    ],
)
def test_exception_in_loop_ends_its_run(deliver: Deliver, error: BaseException, status: str, reason: str) -> None:
    with pytest.raises(type(error)), RecordedRun(deliver(), "fixer") as run:  # noqa: PT012 - the block is the loop
        run.turn("I try.")
        raise error

    row = run_of(run)
    assert (row.status, row.status_reason) == (status, reason)
    assert row.error_message == ("no file" if status == "failed" else "")


def test_exception_without_text_is_recorded_by_its_type(deliver: Deliver) -> None:
    class Detached(Exception):
        def __repr__(self) -> str:
            raise RuntimeError("the session is closed")

        __str__ = __repr__

    run = RecordedRun(deliver(), "fixer")
    with pytest.raises(Detached), run, run.tool_call("lookup", {"name": "x"}):
        raise Detached

    row = run_of(run)
    assert (row.status, row.error_message) == ("failed", "Detached")
    assert calls_of(row) == [("lookup", "error", {"name": "x"}, "Detached")]


def test_unreachable_site_loses_no_events_and_blocks_no_program(
    site: Site, deliver: Deliver, caplog: pytest.LogCaptureFixture
) -> None:
    delivery = deliver()
    with RecordedRun(delivery, "fixer") as run:
        run.turn("Before.")
        assert run.flush(SOON)
        site.web.stop()
        began = time.monotonic()
        for number in range(1_200):
            run.event("x.tick", number=number)
        assert not run.flush(0.2)
        assert time.monotonic() - began < SOON
        assert delivery.waiting == 1_200
        site.web.start()

    row = run_of(run)
    ticks = Event.objects.filter(log=row.pk, type="x.tick").order_by("seq")
    assert [event.payload["number"] for event in ticks] == [*range(1_200)]
    assert row.status == "completed"
    assert [record.message.partition(":")[2][-60:] for record in caplog.records if "wait:" in record.message]
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


@pytest.mark.slow
def test_full_queue_drops_events_and_warns_once(site: Site, deliver: Deliver, caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    delivery = deliver(f"http://127.0.0.1:{port}", max_events=10)
    with RecordedRun(delivery, "fixer") as run:
        for number in range(50):
            run.event("x.tick", number=number)

    # The end of the run has a reserved place.
    assert (delivery.waiting, run.dropped) == (11, 41)
    assert [record.message for record in caplog.records if "dropped" in record.message] == [
        "agentops: events are dropped, because 10 events wait for the site already",
    ]


def test_events_left_by_close_are_counted(deliver: Deliver) -> None:
    delivery = deliver(f"http://127.0.0.1:{free_port()}")
    run = RecordedRun(delivery, "fixer").start()
    run.event("x.tick")
    assert delivery.waiting == 2

    delivery.close(0.1)

    assert (delivery.waiting, run.dropped) == (0, 2)


def test_concurrent_close_loses_no_event(site: Site, deliver: Deliver) -> None:
    delivery = deliver()
    run = RecordedRun(delivery, "fixer").start()
    numbers = range(400)
    recording = threading.Thread(target=lambda: [run.event("x.tick", number=number) for number in numbers])
    recording.start()
    while recording.is_alive():
        delivery.close(SOON)
    delivery.close(SOON)

    ticks = Event.objects.filter(log=run_of(run).pk, type="x.tick").values_list("payload__number", flat=True)
    assert sorted(ticks) == [*numbers]


def test_bad_event_does_not_affect_other_events(deliver: Deliver, caplog: pytest.LogCaptureFixture) -> None:
    delivery = deliver()
    with RecordedRun(delivery, "fixer") as run:
        run.message("nobody", "This role does not exist.")
        # Invalid JSON: the site refuses the whole request.
        delivery.put("{broken", is_essential=False)
        run.turn("All is well \ud800.")
        run.event("x.huge", text="x" * 1_000_000, endless=float("inf"))

    row = run_of(run)
    assert row.status == "completed"
    assert "All is well" in row.summary
    assert run.rejected == 2
    assert len([record for record in caplog.records if "refuses" in record.message]) == 1


def test_events_wait_until_the_key_works_again(site: Site, deliver: Deliver) -> None:
    key = site.key("ingest")
    ApiKey.objects.filter(project=site.project).update(scopes=["read"])
    with RecordedRun(deliver(key=key), "fixer") as run:
        run.turn("Done.")
    assert not run.flush(0.1)
    ApiKey.objects.filter(project=site.project).update(scopes=["ingest"])

    assert run_of(run).status == "completed"


def test_child_of_unknown_run_is_refused(deliver: Deliver) -> None:
    delivery = deliver()
    with RecordedRun(delivery, "helper", parent_run_id="nobody-knows") as run:
        run.turn("Lost.")

    assert run.flush(SOON)
    assert run.rejected == 3
    assert not AgentRun.objects.exists()
