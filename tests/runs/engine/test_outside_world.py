"""No transaction is open during a model or tool call, and a commit without an answer is verified by a query."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from django.db import OperationalError, connection, connections
from pydantic_ai.messages import ToolCallPart

from runs import chaos
from runs.conversation import transcript
from runs.engine import releases, safe_commit
from runs.engine.safe_commit import commit_safely
from runs.engine.turns import model_turn, tool_turn
from runs.lifecycle import command_outcomes
from runs.models import AgentRun
from runs.providers.base import ModelCall
from runs.statuses import RunStatus
from runs.worker.worker import Worker
from tests.support.engine import MakeScripted, drive_and_close
from tests.support.factories import drive
from tests.support.run_checks import check, events
from tests.support.run_checks import transcript as transcript_of
from tests.support.scripted_model import PIECE, Move
from timeline import log

pytestmark = pytest.mark.django_db(transaction=True)
OUTSIDE = {
    "model.before_call",
    "model.answered",
    "turn.committed",
    "hooks.before",
    "tool.marked_running",
    "tool.running",
    "tool.returned",
    "result.committed",
}
Words = Callable[[], list[str]]


def test_no_transaction_is_open_during_a_model_or_tool_call(
    scripted: MakeScripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[str] = []
    open_ones: list[str] = []
    drivers: list[Any] = []

    def look(where: str) -> None:
        passed.append(where)
        open_ones.extend(where for driver in drivers if driver.in_atomic_block)

    def point(name: str) -> None:
        if name == "model.before_call":
            drivers[:] = [connections["default"]]
        if name in OUTSIDE:
            passed.append(name)
            if connection.in_atomic_block:
                open_ones.append(name)

    def play(call: ModelCall) -> Iterable[Move]:
        for _ in range(3):
            yield from [PIECE * 6, 0.3, lambda: look("model")]
        yield ToolCallPart("ledger_read", {"n": 1}, "a") if call.number < 3 else "Done."

    real = tool_turn.run_with_deadline

    def watched(tool: Any, ctx: Any, arguments: Any, *rest: Any, **more: Any) -> Any:
        look("tool")
        return real(tool, ctx, arguments, *rest, **more)

    monkeypatch.setattr(chaos, "point", point)
    monkeypatch.setattr(tool_turn, "run_with_deadline", watched)
    run = drive(scripted(play))

    assert run.status == RunStatus.COMPLETED
    assert set(passed) >= {"model", "tool", "model.before_call", "tool.marked_running", "tool.running", "tool.returned"}
    assert open_ones == []


# --- The answer of a commit is lost -------------------------------------------------------------------------------

Write = Callable[[], Any]


def losing_the_answer(write: Write) -> Write:
    """Commit, then fail once as if the connection was cut before the server's answer."""
    left = [1]

    def lossy() -> Any:
        answer = write()
        if left.pop() if left else 0:
            raise OperationalError("server closed the connection unexpectedly")
        return answer

    return lossy


def failing_before(write: Write) -> Write:
    """Fail once as if the server was unavailable, then work."""
    left = [1]

    def lossy() -> Any:
        if left.pop() if left else 0:
            raise OperationalError("connection refused")
        return write()

    return lossy


class Fault:
    """Makes commit number `at` of a drive fail once."""

    def __init__(self, at: int, fault: Callable[[Write], Write]) -> None:
        self.left = at
        self._fault = fault

    def commit_safely(self, write: Write, *, is_committed: Callable[[], bool], **rest: Any) -> Any:
        self.left -= 1
        if self.left:
            return commit_safely(write, is_committed=is_committed, **rest)
        return commit_safely(self._fault(write), is_committed=is_committed, **rest)


CALLS = [["ledger_idempotent", "ledger_once"], ["ledger_read"]]


@pytest.mark.parametrize("fault", [losing_the_answer, failing_before])
def test_a_commit_without_an_answer_counts_once(
    scripted: MakeScripted, effects: Words, monkeypatch: pytest.MonkeyPatch, fault: Callable[[Write], Write]
) -> None:
    """Every commit of a run fails once: rows, log and effects are the same as without failures."""
    monkeypatch.setattr(safe_commit, "FIRST_WAIT_S", 0.01)
    undisturbed = drive(scripted(calls=CALLS))
    expected, lines, done = transcript_of(undisturbed), types(undisturbed), effects()
    at = 0
    while True:
        at += 1
        faulty = Fault(at, fault)
        for module in (releases, safe_commit, model_turn, tool_turn):
            monkeypatch.setattr(module, "commit_safely", faulty.commit_safely)
        run = drive(scripted(calls=CALLS))
        assert run.status == RunStatus.COMPLETED, (at, run.error_message)
        check(run)
        assert transcript_of(run) == expected, at
        assert types(run) == lines, at
        assert effects() == done * (at + 1), at
        if faulty.left > 0:
            break
    assert at > 8, "there are more commits in such a run"


@pytest.mark.slow
def test_a_failing_read_does_not_count_as_a_death(scripted: MakeScripted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads are not repeated singly: the whole run is loaded again, under the same lease."""
    for owner, name in [(command_outcomes, "pending_types"), (log, "require_epoch"), (transcript, "load")]:
        real, left = getattr(owner, name), [1, 1]

        def failing(*args: Any, real: Any = real, left: list[int] = left) -> Any:
            if left.pop() if left else 0:
                raise OperationalError("connection refused")
            return real(*args)

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, failing)
            run = drive(scripted(calls=[["ledger_idempotent", "ledger_read"]]))
        assert (run.status, run.lease_epoch) == (RunStatus.COMPLETED, 1), name
        assert not left
        check(run)


def test_a_reload_reads_the_current_row_of_the_run(scripted: MakeScripted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes since the claim take effect; here, the step limit."""
    real, left = transcript.load, [1]

    def failing(run: AgentRun) -> transcript.Conversation:
        if left and left.pop():
            AgentRun.objects.filter(pk=run.pk).update(max_steps=1)
            raise OperationalError("connection refused")
        return real(run)

    monkeypatch.setattr(transcript, "load", failing)
    run = drive(scripted(calls=[["ledger_read"]]))

    assert (run.status, run.status_reason, run.step_count) == (RunStatus.PAUSED, "max_steps", 1)


def types(run: AgentRun) -> list[str]:
    return [event.type for event in events(run)]


def always_losing(write: Write, **rest: Any) -> Any:
    return commit_safely(losing_the_answer(write), **rest)


@pytest.mark.slow
def test_text_deltas_are_logged_once(scripted: MakeScripted, monkeypatch: pytest.MonkeyPatch) -> None:
    def play(_: ModelCall) -> Iterable[Move]:
        for number in range(8):
            yield from [f"{number} {PIECE * 4}", 0.15]

    for module in (releases, safe_commit, model_turn, tool_turn):
        monkeypatch.setattr(module, "commit_safely", always_losing)
    run = drive(scripted(play))

    assert run.status == RunStatus.COMPLETED
    shown = "".join(event.payload["text"] for event in events(run) if event.type == "llm.text.delta")
    assert shown
    assert run.result.startswith(shown)
    check(run)


#: Crash points of the API, the pages and the sweep, and points that only a takeover reaches.
NOT_DRIVEN = {
    "hint.received",
    "recovery.before",
    "recovery.done",
    "command.in_transaction",
    "command.committed",
    "command.hint_sent",
    "sweep.run_seen",
    "sweep.message_sent",
    "lease.lapse_seen",
    "run.taken_over",
}


@pytest.fixture
def undisturbed(scripted: MakeScripted) -> dict[str, Any]:
    """Return the transcript of an undisturbed run, without IDs and times, for all cases."""
    if not UNDISTURBED:
        UNDISTURBED.update(transcript_of(drive(scripted(calls=CALLS, on_unknown_tool="tell_model"))))
    return UNDISTURBED


UNDISTURBED: dict[str, Any] = {}


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.parametrize("cut_at", sorted(set(chaos.POINTS) - NOT_DRIVEN))
def test_a_cut_connection_does_not_count_as_a_death(
    scripted: MakeScripted,
    worker: Worker,
    undisturbed: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    cut_at: str,
) -> None:
    """The server ends the driving connection: the worker opens a new one and continues under its lease."""
    planned = [cut_at]

    def point(name: str) -> None:
        if name in planned and connection.connection is not None:
            planned.remove(name)
            with psycopg.connect(_url(), autocommit=True) as other:
                pid = connection.connection.info.backend_pid
                other.execute("SELECT pg_terminate_backend(%s)", [pid])
                until = time.monotonic() + 5
                while other.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone():
                    assert time.monotonic() < until
                    time.sleep(0.002)

    monkeypatch.setattr(chaos, "point", point)
    run = scripted(calls=CALLS, on_unknown_tool="tell_model")
    for _ in range(3):
        # In a separate thread, like a worker's threads, so that the connection of this thread stays intact.
        thread = threading.Thread(target=drive_and_close, args=[worker, run])
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
        run.refresh_from_db()
        if run.state.terminal:
            break

    assert run.status == RunStatus.COMPLETED
    check(run)
    assert "run.recovered" not in types(run)
    if cut_at not in {"turn.committed", "hooks.before", "tool.marked_running", "tool.running"}:
        # At these points the check before a running call may fail, which makes its outcome unknown.
        assert transcript_of(run) == undisturbed


def _url() -> str:
    parts = urlsplit(os.environ["DATABASE_URL"])
    return urlunsplit(parts._replace(path=f"/{connection.settings_dict['NAME']}"))
