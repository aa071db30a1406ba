"""Events of runners with other field names, without call IDs, or copied from a log."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentops.accounts.models import Project
from runs.external.event_input import MAX_EXTRA_BYTES
from runs.external.ingest import EventResult, Sender, record
from runs.models import AgentRun
from tests.support.recordings import check_run
from tests.support.run_checks import rows_with
from timeline import log
from timeline.models import Event

pytestmark = pytest.mark.django_db
SECRET = "sk-ant-api03-" + "Zx9Qw7Er5Ty3Ui1Op0As2Df4" * 4


@pytest.fixture
def sender() -> Sender:
    return Sender(Project.objects.create(slug="outside", name="Outside"), "key:test")


def event(type_: str, **payload: Any) -> dict[str, Any]:
    return {"type": type_, "payload": payload}


def send(sender: Sender, *documents: dict[str, Any]) -> list[EventResult]:
    return record(sender, [{"runId": "r1", **document} for document in documents])


def accepted(sender: Sender, *documents: dict[str, Any]) -> AgentRun:
    assert [result.error for result in send(sender, *documents)] == [None] * len(documents)
    run = AgentRun.objects.get(external_id="r1")
    check_run(run)
    return run


def last_payload(run: AgentRun, type_: str) -> dict[str, Any]:
    found: Event = log.events_of(run.pk).filter(type=type_).order_by("-seq")[0]
    return dict(found.payload)


# --- Names ----------------------------------------------------------------------------------------------------------


def test_unknown_keys_are_stored_as_extra_and_masked(sender: Sender) -> None:
    run = accepted(
        sender,
        event("run.started"),
        event("run.paused", reason="operator", why={"token": SECRET}, **{SECRET: 1}),
        event("llm.text.delta", text="a", trace=f"key {SECRET}"),
        event("tool.end", tool="Read", toolUseId="c1", result="text", cost=2, callId=None),
        event("llm.turn.end", toolCalls=[{"id": "c2", "name": "Bash", "index": 0}], finish="stop"),
    )

    assert rows_with(SECRET) == []
    assert last_payload(run, "run.paused")["extra"]["why"]["token"].startswith("[REDACTED:")
    assert last_payload(run, "llm.text.delta")["extra"]["trace"].startswith("key [REDACTED:")
    ended = last_payload(run, "tool.end")
    assert (ended["call_id"], ended["tool_name"], ended["extra"]) == ("c1", "Read", {"cost": 2})
    assert run.tool_calls.get(call_id="c1").output == "text"
    assert last_payload(run, "llm.turn.end")["extra"] == {"finish": "stop", "toolCalls.0.index": 0}


def test_extra_data_is_bounded(sender: Sender) -> None:
    run = accepted(sender, event("run.started", small=1, huge="x" * MAX_EXTRA_BYTES, last="y"))

    extra = last_payload(run, "run.started")["extra"]
    assert extra == {"small": 1, "huge": f"[{MAX_EXTRA_BYTES + 2:,} bytes left out]", "last": "y"}


def test_very_many_names_are_bounded_too(sender: Sender) -> None:
    run = accepted(sender, event("run.started", **{f"name-{number:05}": None for number in range(8_000)}))

    extra = last_payload(run, "run.started")["extra"]
    assert len(json.dumps(extra)) < 2 * MAX_EXTRA_BYTES
    assert extra["…"] == f"[{8_001 - len(extra):,} fields left out]"


def test_a_synonym_that_contradicts_a_field_is_stored_as_extra(sender: Sender) -> None:
    run = accepted(sender, event("run.started"), event("tool.end", callId="c", toolName="Read", tool="Write"))

    assert run.tool_calls.get().tool_name == "Read"
    assert last_payload(run, "tool.end")["extra"] == {"tool": "Write"}


@pytest.mark.parametrize(
    ("payload", "code", "pointer"),
    [
        ({"callId": "a", "call_id": "b"}, "unknown_field", "/payload/call_id"),
        ({"toolName": 7, "more": 1}, "invalid_value", "/payload/toolName"),
        ({"more": 1}, "required", "/payload/toolName"),
    ],
)
def test_errors_use_the_names_as_sent(sender: Sender, payload: Any, code: str, pointer: str) -> None:
    [_, result] = send(sender, event("run.started"), event("tool.end", **payload))

    assert result.error is not None
    assert (result.error.code, result.error.pointer) == (code, pointer)


# --- Calls without an ID ----------------------------------------------------------------------------------------------


def test_calls_without_ids_are_matched_by_name_and_order(sender: Sender) -> None:
    run = accepted(
        sender,
        event("run.started"),
        event("tool.start", tool="Read", args={"n": 1}),
        event("tool.start", tool="Read", args={"n": 2}),
        event("tool.start", tool="Bash", args={"n": 3}),
        event("tool.output", tool="Bash", text="..."),
        event("tool.end", tool="Bash", result="three"),
        event("tool.end", tool="Read", result="one"),
    )
    run = accepted(sender, event("tool.end", result="two"))  # in another request, without a name

    calls = list(run.tool_calls.order_by("step_number").values_list("tool_name", "input", "status", "output"))
    assert calls == [
        ("Read", {"n": 1}, "completed", "one"),
        ("Read", {"n": 2}, "completed", "two"),
        ("Bash", {"n": 3}, "completed", "three"),
    ]
    events = log.events_of(run.pk).filter(type__in=["tool.start", "tool.output", "tool.end"])
    assert {(each.payload["inferred"], bool(each.payload["call_id"])) for each in events} == {(True, True)}
    assert [each.ref_id is not None for each in events] == [True] * 7


def test_requested_calls_are_matched_first(sender: Sender) -> None:
    calls = [{"id": "c1", "name": "Read"}, {"id": "c2", "name": "Read"}]
    run = accepted(
        sender,
        event("run.started"),
        event("llm.turn.end", toolCalls=calls),
        {"type": "agent:tool", "toolName": "Read", "toolInput": {}, "toolOutput": "one", "event_id": "e1"},
        event("tool.start", toolName="Read"),
        {"type": "agent:tool", "toolName": "Read", "toolOutput": "two"},
        {"type": "agent:tool", "toolName": "Read", "toolOutput": "three"},
    )

    calls = list(run.tool_calls.order_by("step_number", "call_id").values_list("call_id", "output", "starts"))
    assert calls[:2] == [("c1", "one", 1), ("c2", "two", 1)]
    assert (calls[2][1], len(calls)) == ("three", 3)
    [repeat] = send(
        sender, {"type": "agent:tool", "toolName": "Read", "toolInput": {}, "toolOutput": "one", "event_id": "e1"}
    )
    assert repeat.duplicate


def test_a_call_without_an_id_after_the_end_of_its_run_is_stored(sender: Sender) -> None:
    run = accepted(sender, event("run.started"), event("run.completed"), event("tool.end", tool="Read", result="x"))

    assert last_payload(run, "tool.end")["call_id"].startswith("call-")


def test_a_run_whose_child_has_no_name_ends(sender: Sender) -> None:
    run = accepted(
        sender,
        event("run.started"),
        event("tool.start", callId="c", toolName="Task"),
        event("child_run.started", callId="c"),
        event("run.stopped"),
    )

    assert run.status == "stopped"


# --- Copies ---------------------------------------------------------------------------------------------------------


def test_a_numbered_decision_of_another_site_is_a_custom_event(sender: Sender) -> None:
    run = accepted(sender, event("run.started"), {**event("run.resumed", run_id="r2", message="Continued"), "seq": 9})
    assert (run.status, last_payload(run, "x.run.resumed")) == ("running", {"run_id": "r2", "message": "Continued"})

    [forged] = send(sender, event("run.resumed", run_id="r2"))
    assert forged.error is not None
    assert (forged.error.code, forged.error.status) == ("reserved_event_type", 403)


def test_a_child_is_linked_by_any_of_its_events(sender: Sender) -> None:
    record(sender, [{"runId": "c1", "type": "run.started"}])
    run = accepted(
        sender,
        event("run.started"),
        event("tool.start", callId="c", toolName="Task"),
        event("child_job.completed", childJobId="c1", callId="c", links=["/jobs/c1"]),
    )

    child = AgentRun.objects.get(external_id="c1")
    assert run.tool_calls.get().child_run_id == child.pk
    assert log.events_of(run.pk).get(type="child_run.completed").ref_id == child.pk
    assert last_payload(run, "child_run.completed")["extra"] == {"links": ["/jobs/c1"]}
