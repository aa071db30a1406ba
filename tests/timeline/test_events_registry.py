"""The registry of event types: closed and strict, without unset fields; every payload has a description.
May import: timeline.events; no database.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from timeline import events
from timeline.events import EVENT_TYPES, REGISTRY, InvalidPayload, UnknownEventType
from timeline.events.llm import LlmTurnEnd, LlmTurnStart, MessageAdded
from timeline.events.run import RunPaused, RunWaiting

REQUIRED: dict[str, dict[str, object]] = {
    "llm.usage": {"model": "claude-haiku-4-5"},
    "llm.usage.moved": {"run_id": "r2", "calls": 3, "counted": "there"},
    "run.waiting": {"reason": "approval"},
    "run.paused": {"reason": "operator"},
    "run.resumed": {"run_id": "r2"},
    "run.recovered": {"cause": "worker_dead"},
    "run.session": {"session_id": "s1", "program": "Claude Code"},
    "run.failed": {"error_type": "ProviderError"},
    "message.added": {"role": "user"},
    "llm.text.delta": {"text": "Hel"},
    "llm.thinking.delta": {"text": "Hm"},
    "tool.outcome_resolved": {"call_id": "c1", "decision": "done"},
    "command.received": {"type": "send"},
    "file.changed": {"path": "src/app.py"},
    "deploy.status": {"status": "live"},
    "child_run.phase": {"phase": "progress"},
}


@pytest.mark.parametrize("type_", sorted(EVENT_TYPES))
def test_every_type_takes_a_minimal_payload_and_describes_itself(type_: str) -> None:
    payload = REQUIRED.get(type_, {})
    assert events.validate(type_, payload) == payload
    sentence = events.describe(type_, payload)
    assert sentence
    assert len(sentence) < 100
    assert "None" not in sentence
    assert events.describe(type_, {**payload, "message": "As told"}) == "As told"


@pytest.mark.parametrize("type_", sorted(EVENT_TYPES))
def test_every_type_refuses_an_extra_key(type_: str) -> None:
    with pytest.raises(InvalidPayload) as caught:
        events.validate(type_, {**REQUIRED.get(type_, {}), "surprise": None})
    assert [(p.pointer, p.code) for p in caught.value.problems] == [("/surprise", "unknown_field")]


@pytest.mark.parametrize("type_", REQUIRED)
def test_every_type_refuses_a_payload_without_required_fields(type_: str) -> None:
    with pytest.raises(InvalidPayload) as caught:
        events.validate(type_, {})
    assert {p.pointer for p in caught.value.problems} == {f"/{name}" for name in REQUIRED[type_]}
    assert {p.code for p in caught.value.problems} == {"required"}


@pytest.mark.parametrize("type_", sorted(EVENT_TYPES))
def test_every_field_survives_validation_twice_and_none_is_omitted(type_: str) -> None:
    cls = REGISTRY[type_]
    full = _filled(cls)
    once = events.validate(type_, full)
    assert events.validate(type_, once) == once
    assert json.loads(json.dumps(once)) == once
    assert set(once) == set(full)
    assert events.describe(type_, once)
    silent = {name: value for name, value in full.items() if name in REQUIRED.get(type_, {})}
    defaults = {name: field.default for name, field in cls.model_fields.items() if not field.is_required()}
    assert set(events.validate(type_, {**defaults, **silent})) == set(silent)


def _filled(cls: type[events.Payload]) -> dict[str, object]:
    """Return a payload with a value for every field, found by trial."""
    tries: list[object] = ["user", 3, True, {"a": [None, 1.5]}, ["n1"], [3], "2031-05-06T07:08:09Z", "llm"]
    tries += ["partial", "project", "here"]
    full: dict[str, object] = {}
    for name in cls.model_fields:
        for value in tries:
            try:
                events.validate(cls.event_type, {**REQUIRED.get(cls.event_type, {}), name: value})
            except InvalidPayload:
                continue
            full[name] = value
            break
        else:
            raise AssertionError(f"no value fits {cls.__name__}.{name}")
    return full


def test_zero_is_stored_if_absence_means_unknown() -> None:
    assert events.dump(LlmTurnStart(attempt=0, model="m")) == ("llm.turn.start", {"attempt": 0, "model": "m"})


def test_dump_is_validate_for_built_payloads() -> None:
    built = MessageAdded(role="assistant", position=2, preview="Hi", bytes=2)
    assert events.dump(built) == (
        "message.added",
        {"role": "assistant", "position": 2, "preview": "Hi", "bytes": 2},
    )
    type_, lean = events.dump(RunPaused(reason="operator", message="Paused by Ada"))
    assert events.validate(type_, lean) == lean


def test_camel_case_is_accepted_and_snake_case_stored() -> None:
    sent = {"callId": "c1", "toolName": "grep", "durationMs": 12.6, "error": None}
    assert events.validate("tool.end", sent) == {"call_id": "c1", "tool_name": "grep", "duration_ms": 13}
    turn = {
        "text": "Done",
        "toolCalls": [{"id": "c1", "name": "grep", "arguments": {"q": None}}],
        "usage": {"inputTokens": 3},
        "inputTokens": 3,
        "costUsd": 0.25,
    }
    stored = events.validate("llm.turn.end", turn)
    assert stored["tool_calls"] == [{"id": "c1", "name": "grep", "arguments": {"q": None}}]
    assert (stored["input_tokens"], stored["cost_usd"]) == (3, "0.25")


def test_one_field_in_both_spellings_is_refused() -> None:
    with pytest.raises(InvalidPayload):
        events.validate("tool.end", {"callId": "a", "call_id": "b"})


def test_turn_end_takes_a_number_or_a_list_of_calls() -> None:
    assert LlmTurnEnd(tool_calls=2).describe() == "Model answered with 2 tool calls"
    with pytest.raises(InvalidPayload) as caught:
        events.validate("llm.turn.end", {"toolCalls": [{"id": "c1", "name": 5}]})
    assert "/toolCalls/0/name" in [p.pointer for p in caught.value.problems]


def test_time_is_stored_as_text_with_a_zone() -> None:
    stored = events.validate("run.waiting", {"reason": "cooldown", "until": "2031-05-06T07:08:09.5+00:00"})
    assert stored["until"] == "2031-05-06T07:08:09.500000Z"
    assert events.validate("run.waiting", stored) == stored
    assert "2031-05-06 07:08:09" in RunWaiting.model_validate(stored).describe()
    with pytest.raises(InvalidPayload):
        events.validate("run.waiting", {"reason": "cooldown", "until": "2031-05-06T07:08:09"})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attempt", True),
        ("attempt", "1"),
        ("attempt", -1),
        ("attempt", 2**63),
        ("model", 5),
        ("message", None),
    ],
)
def test_wrong_values_are_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidPayload) as caught:
        events.validate("llm.turn.start", {field: value})
    assert caught.value.code == "invalid_payload"
    assert caught.value.problems[0].pointer == f"/{field}"


@pytest.mark.parametrize("payload", [None, [], "text", 5])
def test_a_payload_must_be_an_object(payload: object) -> None:
    with pytest.raises(InvalidPayload) as caught:
        events.validate("error", payload)  # type: ignore[arg-type]
    assert caught.value.problems[0].code == "object_expected"


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), float("inf"), object()])
def test_values_must_be_json(value: object) -> None:
    with pytest.raises(InvalidPayload):
        events.validate("message.added", {"role": "user", "content": value})


def test_deep_payloads_and_many_problems_are_handled() -> None:
    deep: object = "x"
    for _ in range(5000):
        deep = [deep]
    for type_, payload in (("x.deep", {"a": deep}), ("message.added", {"role": "user", "content": deep})):
        with pytest.raises(InvalidPayload):
            events.validate(type_, payload)
    with pytest.raises(InvalidPayload) as caught:
        events.validate("error", {f"{'k' * 300}{n}": n for n in range(1000)})
    assert len(caught.value.problems) == 20
    assert len(caught.value.problems[0].pointer) <= 64


@pytest.mark.parametrize(
    "type_",
    [
        "",
        "nope",
        "RUN.CREATED",
        "run.created ",
        "x",
        "x.",
        "x.A",
        "x.1a",
        "x.a.",
        "x.a\n",
        "x.ä",
        "y.a",
        "r" * 10_000,
    ],
)
def test_unknown_types_are_refused(type_: str) -> None:
    with pytest.raises(UnknownEventType) as caught:
        events.validate(type_, {})
    assert caught.value.code == "unknown_event_type"
    assert len(str(caught.value)) < 120


def test_custom_types_take_any_object() -> None:
    payload: dict[str, object] = {"a": None, "b": [1, {"c": 2.5}], "describe": "mine", "model_config": {}}
    assert events.validate("x.acme.build_done", payload) == payload
    assert events.describe("x.acme.build_done", payload) == "Custom event x.acme.build_done"
    assert events.describe("x.acme", {"message": "Built"}) == "Built"
    assert events.validate("x." + "a" * 126, {}) == {}
    with pytest.raises(UnknownEventType):
        events.validate("x." + "a" * 127, {})
    with pytest.raises(InvalidPayload):
        events.validate("x.acme", {"message": 5})


def test_describe_never_raises_for_stored_payloads() -> None:
    assert events.describe("gone.type", {"message": "Old"}) == "Old"
    assert events.describe("gone.type", {"a": 1}) == "gone.type"
    assert events.describe("run.paused", {"reasons": 1}) == "run.paused"


def test_the_special_sets_contain_only_types() -> None:
    terminal = events.TERMINAL_TYPES
    assert terminal == {"run.completed", "run.failed", "run.stopped", "run.resumed"}
    assert {
        "run.recovered",
        "run.rolled_back",
        "run.session",
        "llm.usage",
        "llm.usage.moved",
        "run.resumed",
        "policy.applied",
        "hook.decided",
        "tool.outcome_resolved",
    } == events.RESERVED_TYPES


def test_the_registry_needs_no_django() -> None:
    code = """
import sys, timeline.events, agentops.base.redaction.redact
sys.exit("django" in sys.modules or "runs" in sys.modules)"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (
            {"trigger": "on_error", "action": "resume", "kind": "rate_limited", "attempt": 1, "attempts": 2},
            "An error occurred (rate limited): the policy resumes the run (attempt 1 of 2)",
        ),
        (
            {"trigger": "on_dead", "action": "resume", "attempt": 7, "reason": "in step 3"},
            "The worker was lost: the policy resumes the run (attempt 7) (in step 3)",
        ),
        (
            {"trigger": "on_idle", "action": "escalate", "attempts": 2, "exhausted": True},
            "The agent answered without reporting completion: the policy escalates the run (all attempts used)",
        ),
        (
            {"trigger": "on_idle", "action": "gate", "gate": "make check", "passed": True, "reason": "exit 0"},
            "The agent answered without reporting completion: the gate make check passed, the run is done (exit 0)",
        ),
        (
            {"trigger": "on_prompt", "action": "gate", "gate": "x", "passed": False, "reason": "Which?: exit 1"},
            "The agent asked a question: the gate x did not pass, a decision is required (Which?: exit 1)",
        ),
        ({"trigger": "on_prompt", "action": "fail"}, "The agent asked a question: the policy fails the run"),
        (
            {"trigger": "on_idle", "action": "done"},
            "The agent answered without reporting completion: the policy completes the run",
        ),
        (
            {"trigger": "on_idle", "silent_since": "2026-11-23T12:00:00Z"},
            "The runner has sent no event since 2026-11-23 12:00:00 UTC",
        ),
        # The action in older records.
        ({"trigger": "on_dead", "action": "Recover"}, "The worker was lost: the policy resumes the run"),
        ({"trigger": "on_dead", "action": "recover"}, "The worker was lost: the policy resumes the run"),
        ({"trigger": "on_fire", "action": "run"}, "Policy on_fire: the policy's action is run"),
        ({}, "Policy unnamed: the policy's action is none"),
    ],
    ids=range(12),
)
def test_the_description_of_an_applied_policy_is_a_sentence(payload: dict[str, object], says: str) -> None:
    """Old records of `Recover` still load."""
    assert events.describe("policy.applied", events.validate("policy.applied", payload)) == says


def test_descriptions_of_waits_give_the_reason() -> None:
    def said(**payload: object) -> str:
        return events.describe("run.waiting", events.validate("run.waiting", payload))

    assert said(reason="input", question="Which one?") == "Waiting for an answer: Which one?"
    assert said(reason="input", question="Which?", choices=["a", "b"]) == "Waiting for an answer: Which? (a / b)"
    until = "2026-01-02T03:04:05Z"
    assert said(reason="on_error", until=until) == "Waiting to be resumed after an error until 2026-01-02 03:04:05 UTC"
    assert said(reason="on_dead") == "Waiting to be resumed after its worker died"
    assert said(reason="approval") == "Waiting for approval"
