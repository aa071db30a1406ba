"""Agents with `on_crash: roll_back`: a turn whose tools have not started is removed from the conversation after a
crash.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runs import chaos
from runs.conversation import tool_results, tool_starts, transcript, writes
from runs.conversation.tool_results import CallResult
from runs.engine.results import ShutdownDue
from runs.lifecycle import inbox
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, Attempt, TurnUsage
from runs.statuses import RunStatus, ToolStatus
from runs.upkeep.invariants import check as violations
from runs.upkeep.replay_check import differences
from runs.worker.worker import Worker
from tests.support.engine import DieAt, MakeScripted
from tests.support.factories import drive
from tests.support.run_checks import check, events

pytestmark = pytest.mark.django_db(transaction=True)
CALLS = [["ledger_read"], ["ledger_idempotent", "ledger_once"]]
Effects = Callable[[], list[str]]
ModelCalls = Callable[[], list[int]]
Role = AgentRunMessage.Role


@pytest.fixture
def rolling(scripted: MakeScripted) -> MakeScripted:
    """Create a run like `scripted`, for an agent that rolls back unfinished turns."""

    def make(*args: Any, **options: Any) -> AgentRun:
        run = scripted(*args, **options)
        run.agent_config["policies"] = {"on_crash": "roll_back"}
        run.save()
        return run

    return make


def in_order(run: AgentRun) -> None:
    check(run)
    assert differences(run.pk) == []


def active(run: AgentRun) -> list[tuple[int, str]]:
    rows = AgentRunMessage.objects.filter(run=run, rolled_back_at=None).order_by("position")
    return list(rows.values_list("position", "role"))


def rolled_back(run: AgentRun) -> list[dict[str, Any]]:
    return [event.payload for event in events(run) if event.type == "run.rolled_back"]


def test_only_the_unfinished_turn_is_removed_from_the_conversation(
    rolling: MakeScripted, die_at: DieAt, effects: Effects, model_calls: ModelCalls
) -> None:
    """The crash comes after the checkpoint of the first turn and the committed answer of the second."""
    run, other = rolling(calls=CALLS), rolling(calls=CALLS)
    assert die_at(other, "turn.committed")
    assert die_at(run, "turn.committed", hit=2)
    assert active(run) == [(1, "system"), (2, "user"), (3, "assistant"), (4, "tool_result"), (5, "assistant")]
    untouched = active(other)

    run = drive(run)

    assert run.status == RunStatus.COMPLETED
    assert [(told["reason"], told["positions"]) for told in rolled_back(run)] == [("crash", [5])]
    taken_back = AgentRunMessage.objects.get(run=run, position=5)
    assert taken_back.rolled_back_at is not None
    calls = AgentRunToolCall.objects.filter(message=taken_back)
    assert {(call.status, call.starts, call.result_message_id) for call in calls} == {(ToolStatus.DENIED, 0, None)}
    assert [position for position, _ in active(run)] == [1, 2, 3, 4, 6, 7, 8, 9]
    assert effects() == ["call-1-0", "call-2-0", "call-2-1"]
    assert active(other) == untouched
    in_order(run)
    assert drive(other).status == RunStatus.COMPLETED
    in_order(other)


def test_the_model_request_after_a_rollback_equals_the_earlier_request(
    rolling: MakeScripted, die_at: DieAt, ledger: Path
) -> None:
    """The request contains nothing of the removed turn, in particular no call without a result."""
    run = rolling(calls=CALLS)
    assert die_at(run, "turn.committed", hit=2)
    drive(run)

    asked = [line.split(" ") for line in Path(f"{ledger}.calls").read_text().splitlines()]
    assert [number for number, _ in asked] == ["1", "2", "2", "3"]
    assert asked[1] == asked[2]


@pytest.mark.parametrize(
    "point", ["tool.marked_running", "tool.running", "tool.returned", "result.committed", "tool.next"]
)
def test_a_turn_with_a_started_tool_is_kept(
    rolling: MakeScripted, die_at: DieAt, effects: Effects, model_calls: ModelCalls, point: str
) -> None:
    """The first call of two was started or finished: the second runs before the next model call, and no finished call
    repeats.
    """
    run = rolling(calls=[["ledger_read"], ["ledger_idempotent", "ledger_read"]])
    assert die_at(run, point, hit=1 if point == "tool.next" else 2)

    run = drive(run)

    assert run.status == RunStatus.COMPLETED
    assert rolled_back(run) == []
    assert model_calls() == [1, 2, 3]
    assert effects().count("call-2-0") == (2 if point == "tool.returned" else 1)
    assert effects().count("call-2-1") == 1
    in_order(run)


@pytest.mark.parametrize(
    "point", ["result.committed", "checkpoint.before", "model.before_start", "model.before_call", "end.before"]
)
def test_a_finished_turn_is_never_rolled_back(
    rolling: MakeScripted, die_at: DieAt, effects: Effects, model_calls: ModelCalls, point: str
) -> None:
    """Its results are stored, with or without a checkpoint, or its answer had no tool calls."""
    run = rolling(calls=[["ledger_idempotent"]])
    assert die_at(run, point)

    run = drive(run)

    assert run.status == RunStatus.COMPLETED
    assert rolled_back(run) == []
    assert effects() == ["call-1-0"] * (2 if point == "checkpoint.before" else 1)
    assert set(model_calls()) == {1, 2}
    in_order(run)


def test_the_cost_of_a_rolled_back_turn_stays_counted(rolling: MakeScripted, die_at: DieAt) -> None:
    """Tokens and usage of the turn stay, its rows are marked, and nothing is counted twice."""
    run = rolling(calls=CALLS)
    assert die_at(run, "turn.committed", hit=2)
    run.refresh_from_db()
    spent = run.input_tokens
    assert (run.step_count, spent) == (2, 200)

    run = drive(run)

    assert (run.step_count, run.input_tokens, run.output_tokens) == (3, 400, 40)
    assert list(TurnUsage.objects.filter(run=run).order_by("id").values_list("step_number", flat=True)) == [1, 2, 2, 3]
    in_order(run)


def test_a_finished_call_keeps_its_turn_even_if_an_earlier_call_has_not_started(
    rolling: MakeScripted, die_at: DieAt, effects: Effects
) -> None:
    """The second of two calls finished before the first: the first runs, and the second does not run again."""
    run = rolling(calls=[["ledger_idempotent", "ledger_read"]])
    assert die_at(run, "turn.committed")
    _, second = AgentRunToolCall.objects.filter(run=run).order_by("id")
    started = tool_starts.start_call(second, attempt=0)
    tool_starts.commit_start(second, [started], 1, expected_status="planned")
    result = CallResult(ToolStatus.COMPLETED, "did it", attempts=1)
    position = transcript.last_position(run.pk) + 1
    writes.write(tool_results.close(second, result, position=position, epoch=1).commit)

    run = drive(run)

    assert run.status == RunStatus.COMPLETED
    assert rolled_back(run) == []
    assert effects() == ["call-1-0"]
    in_order(run)


def test_a_message_sent_before_the_rollback_is_kept(rolling: MakeScripted, die_at: DieAt) -> None:
    """It is delivered once, after the rollback."""
    run = rolling(calls=CALLS)
    assert die_at(run, "turn.committed")
    inbox.send(run.pk, "And hurry.", by="oscar")

    run = drive(run)

    users = AgentRunMessage.objects.filter(run=run, role=Role.USER, rolled_back_at=None)
    assert [row.content["parts"][0]["content"] for row in users.order_by("position")] == ["Go.", "And hurry."]
    assert run.status == RunStatus.COMPLETED
    in_order(run)


def test_a_crash_during_the_rollback(rolling: MakeScripted, die_at: DieAt, effects: Effects) -> None:
    """The crash comes before and after the commit; the turn is rolled back once."""
    run = rolling(calls=CALLS)
    for point in ("turn.committed", "recovery.before", "recovery.done"):
        assert die_at(run, point)

    run = drive(run)

    assert run.status == RunStatus.COMPLETED
    assert len(rolled_back(run)) == 1
    assert Attempt.objects.filter(run=run, end_reason="died").count() == 3
    assert effects() == ["call-1-0", "call-2-0", "call-2-1"]
    in_order(run)


def test_a_turn_that_kills_three_workers_is_poison(rolling: MakeScripted, die_at: DieAt) -> None:
    run = rolling(calls=CALLS)
    for _ in range(3):
        assert die_at(run, "turn.committed", alone=True)

    run = drive(run)

    assert (run.status, run.status_reason) == (RunStatus.PAUSED, "poison_step")
    assert len(rolled_back(run)) == 2
    in_order(run)


def test_a_released_run_does_not_count_as_crashed(
    rolling: MakeScripted, worker: Worker, monkeypatch: pytest.MonkeyPatch, model_calls: ModelCalls
) -> None:
    run, left = rolling(calls=CALLS), ["hooks.before"]

    def leave(point: str) -> None:
        if point in left:
            left.remove(point)
            raise ShutdownDue

    monkeypatch.setattr(chaos, "point", leave)
    assert worker.drive(run.pk)
    assert AgentRunToolCall.objects.get(run=run).status == ToolStatus.PLANNED

    assert drive(run).status == RunStatus.COMPLETED
    assert rolled_back(run) == []
    assert model_calls() == [1, 2, 3]
    in_order(run)


def test_agents_without_the_policy_keep_the_unfinished_turn(
    scripted: MakeScripted, die_at: DieAt, model_calls: ModelCalls
) -> None:
    """A call of a missing tool is answered with an error, also by the worker that takes over."""
    run = scripted(calls=[["no_such_tool"], ["ledger_read"]])
    assert die_at(run, "turn.committed")
    assert not AgentRunToolCall.objects.get(run=run).starts

    assert drive(run).status == RunStatus.COMPLETED
    assert rolled_back(run) == []
    assert model_calls() == [1, 2, 3]
    in_order(run)


# --- Unreadable turns -----------------------------------------------------------------------------------------------


def tear(run: AgentRun) -> None:
    """Damage the last answer, like a partial write or a format of another version."""
    last = AgentRunMessage.objects.filter(run=run, role=Role.ASSISTANT).order_by("-position")[0]
    last.content = {"kind": "response", "parts": [{"part_kind": "no-such-part"}]}
    last.save()


@pytest.mark.breaks_invariants("a message is spoilt")
def test_an_unreadable_turn_is_rolled_back(scripted: MakeScripted, die_at: DieAt, model_calls: ModelCalls) -> None:
    """For every policy of the agent, as long as no tool was started."""
    run = scripted(calls=[["no_such_tool"], ["ledger_read"]])
    assert die_at(run, "turn.committed")
    tear(run)

    run = drive(run)

    assert run.status == RunStatus.COMPLETED
    assert [payload["reason"] for payload in rolled_back(run)] == ["unreadable"]
    assert model_calls() == [1, 1, 2, 3]
    assert {violation.invariant for violation in violations(run.pk)} == {"W6"}
    assert differences(run.pk) == []


@pytest.mark.breaks_invariants("a message is spoilt")
def test_an_unreadable_turn_with_a_started_tool_fails_the_run(
    scripted: MakeScripted, die_at: DieAt, effects: Effects
) -> None:
    """A possible effect is never rolled back, and without the answer the run cannot continue."""
    run = scripted(calls=[["ledger_once"]])
    assert die_at(run, "tool.returned")
    tear(run)

    run = drive(run)

    assert (run.status, run.error_type) == (RunStatus.FAILED, "unusable_agent")
    assert rolled_back(run) == []
    assert effects() == ["call-1-0"]
