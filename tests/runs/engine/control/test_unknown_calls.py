"""Unknown outcomes of tool calls: how a person resolves them, and how the run continues."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections
from pydantic_ai.messages import ToolCallPart

from agentops.accounts.models import AuditEntry
from agentops.base.refusals import Invalid
from runs.actions import run_actions, unknown_calls
from runs.actions.unknown_calls import OutcomeChoice, resolve
from runs.engine.turns import tool_turn
from runs.errors import MessageEmpty, RunNotFound
from runs.lifecycle import inbox
from runs.models import AgentRun, AgentRunToolCall
from runs.providers.base import ModelCall
from runs.statuses import RunStatus, ToolStatus
from runs.tools.base import OutcomeUnknown
from runs.upkeep.replay_check import differences
from tests.support.engine import DieAt, MakeScripted
from tests.support.factories import drive, make_waiting
from tests.support.run_checks import check, events, refuses
from timeline.models import Event

pytestmark = pytest.mark.django_db(transaction=True)
CALLS = [["ledger_once", "ledger_read"], ["ledger_idempotent"]]
Effects = Callable[[], list[str]]


def vanish(*_: Any, **__: Any) -> None:
    raise OutcomeUnknown("nobody knows")


def lost(run: AgentRun) -> AgentRun:
    """Drive the run until it waits for the outcome of a lost call that had no effect."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tool_turn, "run_with_deadline", vanish)
        return drive(run)


@pytest.fixture
def waiting(scripted: MakeScripted) -> AgentRun:
    """Return a run whose first call has an unknown outcome and whose second call is planned."""
    return lost(scripted(calls=CALLS))


def first(run: AgentRun) -> AgentRunToolCall:
    return AgentRunToolCall.objects.filter(run=run).order_by("step_number", "id")[0]


def result_of(call: AgentRunToolCall) -> dict[str, Any]:
    assert call.result_message is not None
    part: dict[str, Any] = call.result_message.content["parts"][0]
    return part


def in_order(run: AgentRun) -> None:
    check(run)
    assert differences(run.pk) == []


# --- The three choices ----------------------------------------------------------------------------------------------


def test_done_completes_the_call_with_the_given_text(waiting: AgentRun, effects: Effects) -> None:
    in_order(waiting)

    done = resolve(waiting.pk, first(waiting).pk, OutcomeChoice.DONE, by="oscar", text="order 66 is placed")

    assert (done.is_new, done.status_before, done.run.status, done.run.status_reason) == (
        True,
        RunStatus.WAITING,
        "queued",
        "outcome_resolved",
    )
    call = first(waiting)
    assert (call.status, call.starts, call.attempts) == (ToolStatus.COMPLETED, 1, 1)
    assert (result_of(call)["content"], result_of(call)["outcome"]) == ("order 66 is placed", "success")
    *_, word, end, added, moved = events(waiting)
    assert [e.type for e in (word, end, added, moved)] == [
        "tool.outcome_resolved",
        "tool.end",
        "message.added",
        "run.phase",
    ]
    assert (word.ref_id, end.ref_id, added.ref_id) == (call.pk, call.pk, call.result_message_id)
    assert (word.payload["decision"], word.payload["by"], word.source) == ("done", "oscar", "web")
    in_order(waiting)

    assert drive(waiting).status == RunStatus.COMPLETED
    assert effects() == ["call-1-1", "call-2-0"], "a call whose outcome somebody told was run again"
    in_order(waiting)


def test_the_model_receives_the_resolved_output(scripted: MakeScripted) -> None:
    seen: list[str] = []

    def play(call: ModelCall) -> Any:
        if call.number == 1:
            yield ToolCallPart("ledger_once", {"n": 1}, tool_call_id="only")
            return
        seen.append(str(call.history[-1].parts[-1].content))  # type: ignore[union-attr]
        yield "All done."

    run = lost(scripted(play))
    resolve(run.pk, first(run).pk, OutcomeChoice.DONE, by="oscar", text="42 rows")

    assert drive(run).status == RunStatus.COMPLETED
    assert seen == ["42 rows"]
    in_order(run)


@pytest.mark.parametrize("text", ["no such table", None])
def test_failed_ends_the_call_with_an_error(waiting: AgentRun, text: str | None) -> None:
    resolve(waiting.pk, first(waiting).pk, OutcomeChoice.FAILED, by="oscar", text=text)

    call = first(waiting)
    assert (call.status, result_of(call)["outcome"]) == (ToolStatus.ERROR, "failed")
    assert result_of(call)["content"] == (text or "The call failed. Its error is not known.")
    [end] = [event for event in events(waiting) if event.type == "tool.end"]
    assert end.payload["error"] == result_of(call)["content"]
    assert drive(waiting).status == RunStatus.COMPLETED
    in_order(waiting)


def test_retry_runs_the_call_again(waiting: AgentRun, effects: Effects) -> None:
    assert effects() == []
    resolve(waiting.pk, first(waiting).pk, OutcomeChoice.RETRY, by="oscar")

    assert (first(waiting).status, first(waiting).result_message) == (ToolStatus.UNKNOWN, None)
    assert AgentRun.objects.get(pk=waiting.pk).status == "queued"
    in_order(waiting)
    assert drive(waiting).status == RunStatus.COMPLETED
    call = first(waiting)
    assert (call.status, call.starts) == (ToolStatus.COMPLETED, 2)
    assert effects() == ["call-1-0", "call-1-1", "call-2-0"]
    in_order(waiting)


def test_a_retried_call_can_be_lost_and_retried_repeatedly(waiting: AgentRun, effects: Effects) -> None:
    for starts in (1, 2, 3):
        assert (first(waiting).status, first(waiting).starts) == (ToolStatus.UNKNOWN, starts)
        resolve(waiting.pk, first(waiting).pk, OutcomeChoice.RETRY, by="oscar")
        with refuses("call_not_unknown", match="already resolved this call as retry"):
            resolve(waiting.pk, first(waiting).pk, OutcomeChoice.DONE, by="bob")
        assert lost(waiting).status == RunStatus.WAITING
        in_order(waiting)
    resolve(waiting.pk, first(waiting).pk, OutcomeChoice.DONE, by="oscar")

    assert drive(waiting).status == RunStatus.COMPLETED
    assert "call-1-0" not in effects()
    in_order(waiting)


@pytest.mark.parametrize(
    ("point", "again"),
    [
        ("claim.committed", False),
        ("hooks.before", False),
        ("hooks.decided", False),
        ("tool.marked_running", True),
        ("tool.returned", True),
    ],
)
def test_a_crash_before_the_start_keeps_the_retry_and_a_later_crash_needs_a_new_decision(
    waiting: AgentRun, die_at: DieAt, effects: Effects, point: str, again: bool
) -> None:
    """Once the call has started again, its outcome is unknown again and the run waits."""
    resolve(waiting.pk, first(waiting).pk, OutcomeChoice.RETRY, by="oscar")
    assert die_at(waiting, point)
    assert differences(waiting.pk) == []

    assert drive(waiting).status == (RunStatus.WAITING if again else RunStatus.COMPLETED)
    in_order(waiting)
    if again:
        resolve(waiting.pk, first(waiting).pk, OutcomeChoice.DONE, by="oscar")
        assert drive(waiting).status == RunStatus.COMPLETED
        in_order(waiting)
    assert effects().count("call-1-0") == (0 if point == "tool.marked_running" else 1)


@pytest.mark.breaks_invariants("a call is made unknown by hand")
def test_the_run_waits_until_every_call_is_resolved(waiting: AgentRun) -> None:
    started = first(waiting)
    AgentRunToolCall.objects.filter(run=waiting, starts=0).update(
        status="unknown", starts=1, started_at=started.started_at, finished_at=started.finished_at
    )
    one, other = unknown_calls.unresolved(waiting)

    assert resolve(waiting.pk, other.pk, OutcomeChoice.DONE, by="oscar").run.status == "waiting"
    assert resolve(waiting.pk, one.pk, OutcomeChoice.DONE, by="oscar").run.status == "queued"


# --- Concurrent requests --------------------------------------------------------------------------------------------


def at_once(*acts: Callable[[], Any]) -> list[Any]:
    """Run the functions concurrently; return their results, or the exceptions that they raised."""

    def one(act: Callable[[], Any]) -> Any:
        try:
            return act()
        except Exception as error:
            return error
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(one, acts))


def test_the_first_of_many_concurrent_resolutions_counts(waiting: AgentRun) -> None:
    """The error of the others names the stored outcome."""
    call = first(waiting)

    def word(number: int) -> Callable[[], Any]:
        choice = list(OutcomeChoice)[number % 3]
        return lambda: resolve(waiting.pk, call.pk, choice, by=f"person {number}")

    answers = at_once(*map(word, range(6)))

    [heard] = [number for number, answer in enumerate(answers) if not isinstance(answer, Exception)]
    told = f"person {heard} already resolved this call as {list(OutcomeChoice)[heard % 3]}"
    for number, answer in enumerate(answers):
        if number != heard:
            assert answer.code == "call_not_unknown"
            assert str(answer) == told
            assert answer.data["chosen"] == list(OutcomeChoice)[heard % 3]
    assert [e.payload["by"] for e in events(waiting) if e.type == "tool.outcome_resolved"] == [f"person {heard}"]
    assert drive(waiting).status == RunStatus.COMPLETED
    in_order(waiting)


@pytest.mark.parametrize("wish", [inbox.stop, inbox.pause])
@pytest.mark.parametrize("choice", list(OutcomeChoice))
def test_a_concurrent_stop_or_pause_ends_the_run_after_any_resolution(
    waiting: AgentRun, wish: Callable[..., Any], choice: OutcomeChoice
) -> None:
    call = first(waiting)

    word, _ = at_once(lambda: resolve(waiting.pk, call.pk, choice, by="oscar"), lambda: wish(waiting.pk, by="bob"))

    waiting.refresh_from_db()
    assert waiting.status == {inbox.stop: "stopped", inbox.pause: "paused"}[wish]
    if isinstance(word, Exception):
        assert str(word) == f"the run is {waiting.status}, so the outcome of this call stays unknown"
    assert all(call.result_message_id for call in AgentRunToolCall.objects.filter(run=waiting))
    in_order(waiting)


def test_a_stopped_run_refuses_a_resolution(waiting: AgentRun) -> None:
    inbox.stop(waiting.pk, by="bob")
    before = Event.objects.count()

    with refuses("call_not_unknown", match="the run is stopped, so the outcome of this call stays unknown") as refusal:
        resolve(waiting.pk, first(waiting).pk, OutcomeChoice.RETRY, by="oscar")

    assert refusal.value.data == {"call_status": "unknown", "run_status": "stopped", "chosen": None}
    assert Event.objects.count() == before


def test_a_pause_before_the_retry_leaves_the_call_unknown(waiting: AgentRun, effects: Effects) -> None:
    resolve(waiting.pk, first(waiting).pk, OutcomeChoice.RETRY, by="oscar")
    inbox.pause(waiting.pk, by="bob")

    assert first(waiting).status == ToolStatus.UNKNOWN
    assert first(waiting).result_message is not None
    assert effects() == []
    in_order(waiting)


@pytest.mark.parametrize(
    ("choice", "text"), [(OutcomeChoice.RETRY, None), (OutcomeChoice.DONE, "here"), (OutcomeChoice.FAILED, "no")]
)
def test_repeating_a_resolution_writes_no_second_event(
    waiting: AgentRun, choice: OutcomeChoice, text: str | None
) -> None:
    call = first(waiting)
    assert resolve(waiting.pk, call.pk, choice, by="oscar", text=text).is_new
    before = Event.objects.count()

    assert not resolve(waiting.pk, call.pk, choice, by="oscar", text=text).is_new

    for by, other in (("bob", text), ("oscar", "else")):
        if choice is OutcomeChoice.RETRY and by == "oscar":
            continue
        with refuses("call_not_unknown", match=f"oscar already resolved this call as {choice}"):
            resolve(waiting.pk, call.pk, choice, by=by, text=other)
    assert Event.objects.count() == before


# --- Refusals and records --------------------------------------------------------------------------------------------


def test_invalid_resolutions_are_refused(waiting: AgentRun) -> None:
    call, other_run = first(waiting), make_waiting()
    before = Event.objects.count()

    with pytest.raises(RunNotFound):
        resolve(call.pk, call.pk, OutcomeChoice.DONE, by="oscar")
    with refuses("tool_call_not_found"):
        resolve(other_run.pk, call.pk, OutcomeChoice.DONE, by="oscar")
    with refuses("call_not_unknown", match="this call is planned"):
        resolve(
            waiting.pk, AgentRunToolCall.objects.get(run=waiting, status="planned").pk, OutcomeChoice.DONE, by="oscar"
        )
    with pytest.raises(MessageEmpty):
        resolve(waiting.pk, call.pk, OutcomeChoice.FAILED, by="oscar", text=" ")
    with pytest.raises(Invalid):
        resolve(waiting.pk, call.pk, OutcomeChoice.DONE, by="oscar", text="x" * 200_001)
    with pytest.raises(Invalid):
        resolve(waiting.pk, call.pk, OutcomeChoice.RETRY, by="oscar", text="x")

    assert Event.objects.count() == before
    assert AgentRun.objects.get(pk=waiting.pk).status == "waiting"


def test_a_resolved_output_is_redacted_and_truncated_like_a_tool_output(scripted: MakeScripted) -> None:
    """Secrets are redacted before storage; the row keeps the full text and the model gets a truncated one."""
    run = lost(scripted(calls=[["ledger_once"]], tool_output_limit=100))
    secret = "ghp_" + "aB3dE5fG7h" * 3 + "aB3dE5"

    resolve(run.pk, first(run).pk, OutcomeChoice.DONE, by="oscar", text=f"\x00{secret} " + "long " * 100)

    call = first(run)
    assert len(str(call.output)) > 400 > len(result_of(call)["content"])
    kept = f"{call.output} {result_of(call)['content']} {[event.payload for event in events(run)]}"
    assert secret not in kept
    assert "\x00" not in kept
    assert "[REDACTED:" in kept
    in_order(run)


def test_a_resolution_writes_one_audit_entry() -> None:
    run = make_waiting()
    for _ in range(2):
        run_actions.resolve_call("user:oscar", run, first(run).pk, OutcomeChoice.DONE, text="done")

    [entry] = AuditEntry.objects.filter(action="run.call_resolved")
    assert (entry.actor, entry.object_id, entry.project_id) == ("user:oscar", str(run.pk), run.project_id)
    assert entry.before == {"status": "waiting", "call_status": "unknown"}
    assert entry.after == {"call": str(first(run).pk), "tool_name": first(run).tool_name, "choice": "done"}
    assert drive(run).status == RunStatus.COMPLETED
    in_order(run)
