"""Recorded tools return recorded results, at the configured pace."""

from __future__ import annotations

import threading
import time

import pytest

from runs.fixtures.format import RecordedResult, UnknownResult
from runs.fixtures.playback import RecordedTools
from runs.tools.base import Effect, OutcomeUnknown, ToolFailed, ToolResult
from runs.tools.call_limits import run_with_deadline

IMAGE = {"kind": "image-url", "url": "https://example.org/a.png"}
RECORDING = {
    "call-1": RecordedResult(output="plain", duration_ms=1500),
    "call-2": RecordedResult(output=["text", IMAGE]),
    "call-3": RecordedResult(output="it broke", error=True),
    "call-4": UnknownResult(unknown=True),
    "call-5": RecordedResult(output="long", duration_ms=60_000),
}


def recorded(call_id: str, model_call: int) -> RecordedResult | UnknownResult | None:
    return RECORDING.get(call_id)


def answer(make_ctx, call_id: str, arguments="{}", **options) -> ToolResult:
    tools = RecordedTools(recorded, **options)
    return run_with_deadline(tools.get("any name"), make_ctx(call_id=call_id), arguments)


def test_results_are_looked_up_by_call_id(make_ctx):
    assert answer(make_ctx, "call-1") == ToolResult("plain", duration_ms=1500)
    assert answer(make_ctx, "call-2") == ToolResult(["text", IMAGE], duration_ms=0)
    assert answer(make_ctx, "call-3") == ToolResult("it broke", is_error=True, retryable=False, duration_ms=0)


def test_arguments_do_not_affect_the_result(make_ctx):
    for arguments in ("{", "[]", {"a": 1}, ""):
        assert answer(make_ctx, "call-1", arguments).output == "plain"


def test_a_repeated_call_id_is_distinguished_by_the_model_call(make_ctx):
    tools = RecordedTools(lambda call_id, model_call: RecordedResult(output=f"{call_id} of {model_call}"))

    for number in (1, 2):
        ctx = make_ctx(call_id="same", model_call=number)
        assert run_with_deadline(tools.get("t"), ctx, "{}").output == f"same of {number}"


def test_an_unknown_outcome_stays_unknown(make_ctx):
    with pytest.raises(OutcomeUnknown, match="call-4"):
        answer(make_ctx, "call-4")


def test_a_call_without_a_recording_fails_permanently(make_ctx):
    with pytest.raises(ToolFailed, match="call-9") as caught:
        answer(make_ctx, "call-9")

    assert (caught.value.error_type, caught.value.retryable) == ("no_recording", False)


def test_the_default_effect_is_read_and_the_agent_can_change_it():
    assert RecordedTools(recorded).get("t").effect is Effect.READ
    settings = {"recorded_effect": "at_most_once"}
    assert RecordedTools(recorded, settings=settings).get("t").effect is Effect.AT_MOST_ONCE
    with pytest.raises(ValueError, match="sometimes"):
        RecordedTools(recorded, settings={"recorded_effect": "sometimes"})


def test_the_pace_determines_the_duration(make_ctx):
    assert RecordedTools(recorded).get("t").inline
    assert not RecordedTools(recorded, pace=1).get("t").inline

    started = time.monotonic()
    answer(make_ctx, "call-5", pace=400)
    # The second limit is the recorded duration; a busy machine may wake the thread late.
    assert 0.15 <= time.monotonic() - started < 60


def test_a_paced_call_ends_when_the_run_is_cancelled(make_ctx):
    stopped = threading.Event()
    threading.Timer(0.1, stopped.set).start()
    tools = RecordedTools(lambda *_: RecordedResult(output="late", duration_ms=60_000), pace=1)

    started = time.monotonic()
    result = run_with_deadline(tools.get("t"), make_ctx(cancelled=stopped.is_set), "{}")

    assert time.monotonic() - started < 60
    assert result.output == "late"
