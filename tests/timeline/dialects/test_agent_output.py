"""Events of the log in the agent dialect, and the round trip.
May import: timeline; no database.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeline import events
from timeline.agent_dialect_input import to_canonical
from timeline.agent_dialect_output import WholeTexts, agent_events
from timeline.events import EVENT_TYPES
from timeline.models import Event, Phase, RunKind, Source

LOG, REF = UUID(int=7), UUID(int=8)
AT = datetime(2026, 11, 23, 6, 0, 0, 250_000, UTC)
EMPTY = WholeTexts()


def event(type_: str, payload: dict[str, Any], *, node_id: str = "n", source: str = Source.WORKER) -> Event:
    return Event(
        log_id=LOG,
        seq=3,
        ref_id=REF,
        run_kind=RunKind.JOB,
        phase=Phase.RUNNING,
        type=type_,
        ts=AT,
        step=2,
        node_id=node_id,
        payload=payload,
        source=source,
    )


def agent_event(sent: Event, whole: WholeTexts) -> dict[str, Any]:
    [told] = agent_events(sent, whole)
    return told


def test_the_envelope_is_in_camel_case_with_milliseconds() -> None:
    assert agent_event(event("llm.text.delta", {"text": "a", "token_count": 2}), EMPTY) == {
        "seq": 3,
        "eventId": "~3",
        "runId": str(LOG),
        "runKind": "job",
        "phase": "running",
        "type": "agent:text:delta",
        "timestamp": 1_795_413_600_250,
        "ts": 1_795_413_600_250,
        "step": 2,
        "nodeId": "n",
        "content": "a",
        "tokenCount": 2,
    }


@pytest.mark.parametrize("type_", sorted(EVENT_TYPES))
def test_every_event_has_its_run_and_node(type_: str) -> None:
    for told in agent_events(event(type_, {"call_id": "c"}, node_id=""), EMPTY):
        assert (told["runId"], told["nodeId"], told["timestamp"]) == (str(LOG), str(LOG), told["ts"])


def test_a_call_is_complete_and_ignores_its_preview() -> None:
    whole = WholeTexts(calls={REF: {"toolName": "Read", "toolInput": {"a": 1}, "toolOutput": "all of it"}})
    end = {"call_id": "c", "tool_name": "Read", "preview": "all", "duration_ms": 4, "truncated": True}

    told = agent_event(event("tool.end", end), whole)
    assert {name: value for name, value in told.items() if name.startswith(("tool", "duration", "error"))} == {
        "toolCallId": "c",
        "toolName": "Read",
        "toolInput": {"a": 1},
        "toolOutput": "all of it",
        "durationMs": 4,
    }
    failed, _ = agent_events(event("tool.end", {"call_id": "c", "error": "all"}), whole)
    assert (failed["error"], failed["toolOutput"]) == ("all of it", None)
    start = agent_event(event("tool.start", {"call_id": "c", "tool_name": "Read", "arguments": "{"}), whole)
    assert (start["type"], start["payload"]["arguments"]) == ("tool.start", {"a": 1})


@pytest.mark.parametrize(
    ("type_", "payload", "error_type", "message"),
    [
        ("error", {"error_type": "tool_error", "error": "boom"}, "error_tool_use", "boom"),
        ("error", {"error_type": "timeout", "error": "slow"}, "network_error", "slow"),
        ("error", {"error_type": "invalid_request", "error": "boom"}, "invalid_request", "boom"),
        ("error", {"error_type": "out_of_credits", "error": "boom"}, "out_of_credits", "boom"),
        ("error", {}, "error", "Error without details"),
        ("run.failed", {"error_type": "rate_limited", "error": "slow"}, "rate_limit", "slow"),
        ("run.failed", {"error_type": "max_turns"}, "error_max_turns", "Run failed: step limit reached"),
        ("run.paused", {"reason": "max_steps", "detail": "2 of 2"}, "error_max_turns", None),
        ("run.stopped", {"reason": "operator", "by": "user:oscar"}, "error_user", "Run stopped by user:oscar"),
        ("tool.end", {"call_id": "c", "tool_name": "Read", "error": "gone"}, "error_tool_use", "gone"),
        ("tool.end", {"call_id": "c", "tool_name": "Read", "status": "error"}, "error_tool_use", "Read error"),
        ("approval.resolved", {"decision": "denied", "by": "user:oscar", "tool_name": "Read"}, "error_user", None),
    ],
)
def test_each_failure_becomes_one_error(
    type_: str, payload: dict[str, Any], error_type: str, message: str | None
) -> None:
    told = agent_events(event(type_, payload), EMPTY)

    [failure] = [one for one in told if one["type"] == "agent:error"]
    assert failure["errorType"] == error_type
    assert message in (None, failure["message"])
    # The event that ends the run comes last; other events keep their type.
    assert told[-1 if type_.startswith("run.") else 0]["type"] in (type_, "agent:tool", "agent:error")
    assert len({one["eventId"] for one in told}) == len(told)


@pytest.mark.parametrize(
    ("type_", "payload", "source"),
    [
        ("run.stopped", {"reason": "operator", "by": "key:ci"}, "worker"),
        ("run.stopped", {"reason": "repeated_calls"}, "worker"),
        ("approval.resolved", {"decision": "approved", "by": "user:oscar"}, "web"),
        ("approval.resolved", {"decision": "expired"}, "worker"),
        ("tool.end", {"call_id": "c", "status": "denied", "error": "denied by a hook"}, "worker"),
        ("tool.end", {"call_id": "c", "status": "completed"}, "worker"),
        ("error", {"error_type": "timeout", "context": "tool:c", "attempt": 0}, "worker"),  # tool.end reports it
        ("tool.end", {"call_id": "c", "error": "gone"}, "ingest"),  # its runner sends a separate error
    ],
)
def test_events_that_are_not_failures_or_are_reported_elsewhere_become_no_error(
    type_: str, payload: dict[str, Any], source: str
) -> None:
    told = agent_events(event(type_, payload, source=source), EMPTY)

    assert [one["type"] for one in told if one["type"] == "agent:error"] == []


def test_a_failure_already_reported_in_the_log_becomes_no_second_error() -> None:
    told = agent_event(event("run.failed", {"error_type": "rate_limited"}), WholeTexts(reported=frozenset({3})))

    assert (told["type"], told["payload"]["errorType"]) == ("run.failed", "rate_limited")


@pytest.mark.parametrize(
    ("type_", "payload"),
    [
        ("run.started", {"message": "Flow run started"}),
        ("run.completed", {}),
        ("run.failed", {"error_type": "node_failed"}),
        ("run.stopped", {"by": "user:oscar"}),
    ],
)
def test_flow_events_keep_their_type(type_: str, payload: dict[str, Any]) -> None:
    assert agent_event(event(type_, payload), WholeTexts(is_flow=True))["type"] == type_


@pytest.mark.parametrize(("result", "text"), [("done", "done"), (None, ""), ({"a": [1]}, '{"a":[1]}'), (7, "7")])
def test_results_are_text(result: Any, text: str) -> None:
    told = agent_event(event("run.completed", {"result": result} if result is not None else {}), EMPTY)

    assert told["result"] == text
    assert (told["usage"], told["durationMs"], told["numTurns"]) == ({"inputTokens": 0, "outputTokens": 0}, 0, 0)
    assert None not in told.values()


def test_a_session_id_is_stable() -> None:
    assert agent_event(event("run.started", {}), EMPTY)["sessionId"] == str(LOG)
    assert agent_event(event("run.started", {"session_id": "s"}), EMPTY)["sessionId"] == "s"


@pytest.mark.parametrize(("phase", "name"), [("progress", "progress"), ("completed", "phase"), ("Two words", "phase")])
def test_child_phases_become_event_types(phase: str, name: str) -> None:
    told = agent_event(event("child_run.phase", {"run_id": "c", "phase": phase}), EMPTY)

    assert told["type"] == f"child_job.{name}"
    [back] = to_canonical(told)
    assert (back["type"], back["payload"]["phase"]) == ("child_run.phase", phase)


def test_other_pauses_and_types_keep_their_names() -> None:
    pause = agent_event(event("run.paused", {"reason": "operator"}), EMPTY)
    custom = agent_event(event("x.mine", {"snake_case": 1}), EMPTY)

    assert (pause["type"], pause["payload"]["reason"]) == ("run.paused", "operator")
    assert (custom["type"], custom["payload"]) == ("x.mine", {"snake_case": 1})


# --- Round trip -------------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
NAME = st.text("abcdef", min_size=1, max_size=8)
COUNT = st.integers(0, 2**40)
JSON = st.recursive(
    st.none() | st.booleans() | COUNT | TEXT, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=5
)
#: Fields of each type that the dialect can express.
SAYABLE: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "run.started": {"session_id": NAME, "model": NAME, "prompt": NAME},
    "llm.text": {"text": TEXT, "token_count": COUNT, "index": COUNT},
    "llm.text.delta": {"text": TEXT, "token_count": COUNT, "index": COUNT},
    "llm.thinking": {"text": TEXT, "token_count": COUNT, "index": COUNT},
    "llm.thinking.delta": {"text": TEXT, "token_count": COUNT, "index": COUNT},
    "error": {
        "error_type": st.sampled_from(
            ["tool_error", "max_turns", "invalid_request", "no_internet", "rate_limited", "mine"]
        ),
        "error": NAME,
        "details": JSON,
    },
    "run.completed": {
        "result": TEXT,
        "structured_output": JSON,
        "usage": st.dictionaries(NAME, COUNT),
        "model_usage": st.dictionaries(NAME, JSON, min_size=1),
        "steps": COUNT,
        "duration_ms": COUNT,
    },
    "flow.started": {"flow": NAME, "nodes": COUNT, "inputs": JSON, "by": NAME},
    "flow.resumed": {"nodes": st.lists(NAME), "by": NAME},
    "flow.completed": {"status": NAME, "outputs": JSON, "duration_ms": COUNT},
    "node.started": {"node": NAME, "item": COUNT, "run_id": NAME, "resumed": st.just(True)},
    "node.completed": {"node": NAME, "output": JSON, "run_id": NAME, "truncated": st.just(True)},
    "node.failed": {"node": NAME, "error_type": NAME, "error": NAME, "continued": st.just(True)},
    "node.skipped": {"node": NAME, "reason": NAME, "iteration": COUNT},
    "edge.fired": {"edge": NAME, "source": NAME, "target": NAME},
    "edge.skipped": {"edge": NAME, "source": NAME, "target": NAME, "reason": NAME},
    "loop.iterated": {"edge": NAME, "node": NAME, "iteration": COUNT, "max_iterations": COUNT},
    "command.received": {"type": NAME, "by": NAME, "key": NAME, "payload": JSON},
    "child_run.started": {"run_id": NAME, "agent": NAME, "call_id": NAME, "index": COUNT, "prompt": NAME},
}
REQUIRED = {"text", "type"}


@pytest.mark.slow
@given(st.data())
@pytest.mark.parametrize("type_", SAYABLE)
def test_fields_of_the_dialect_survive_the_round_trip(type_: str, data: st.DataObject) -> None:
    fields = SAYABLE[type_]
    drawn = {name: data.draw(values | st.none() if name not in REQUIRED else values) for name, values in fields.items()}
    payload = events.validate(type_, {name: value for name, value in drawn.items() if value is not None})

    told = agent_event(event(type_, payload, source=Source.INGEST), EMPTY)
    [back] = to_canonical({name: value for name, value in told.items() if name not in ("eventId", "seq")})
    returned = events.validate(back["type"], back["payload"])

    assert (back["type"], back["runId"], back["ts"]) == (type_, str(LOG), told["ts"])
    always = {"error": {"error", "error_type"}, "run.started": {"session_id", "prompt"}}
    added = {"message", "agent", "node", *always.get(type_, ())} - payload.keys()
    if type_ == "run.completed":
        added |= {"result", "steps", "duration_ms"} - payload.keys()
        payload["usage"] = {"inputTokens": 0, "outputTokens": 0, **payload.get("usage", {})}
    assert {name: value for name, value in returned.items() if name not in added} == payload


@given(name=NAME, given=JSON, output=NAME, ms=COUNT, failed=st.booleans())
def test_a_call_survives_the_round_trip(name: str, given: Any, output: str, ms: int, failed: bool) -> None:
    payload = {"call_id": "c", "tool_name": name, "duration_ms": ms, ("error" if failed else "output"): output}
    whole = WholeTexts(calls={REF: {"toolName": name, "toolInput": given, "toolOutput": output}})

    told = agent_event(event("tool.end", payload, source=Source.INGEST), whole)
    start, end = to_canonical({**told, "eventId": str(uuid4())})
    assert events.validate("tool.end", end["payload"]) == payload
    expected = {"call_id": "c", "tool_name": name} | ({} if given is None else {"arguments": given})
    assert events.validate("tool.start", start["payload"]) == expected
