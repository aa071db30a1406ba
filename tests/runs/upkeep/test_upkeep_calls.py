"""Calls of upkeep tasks: one at a time in a process, for a bounded time; errors do not end them."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import DatabaseError

from runs.worker import upkeep_call
from runs.worker.upkeep_call import CallTime, UpkeepCall
from tests.support.engine import queued_messages, task_names
from tests.support.factories import make_agent, make_project, make_run
from tests.support.timing import eventually

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.redis]
TASK, QUEUE = "runs.index_texts", "upkeep"


@pytest.fixture(autouse=True)
def _empty_queue(redis_url: str) -> None:
    queued_messages(QUEUE)


def test_a_call_during_another_one_makes_it_run_again() -> None:
    looks: list[int] = []
    began, may_end = threading.Event(), threading.Event()

    def work(_: CallTime) -> bool:
        looks.append(len(looks))
        began.set()
        may_end.wait(60)
        return False

    call = UpkeepCall(TASK, "the test", work)
    first = threading.Thread(target=call)
    first.start()
    began.wait(60)
    call()
    call()
    assert looks == [0]
    may_end.set()
    first.join(60)

    assert looks == [0, 1]


def test_a_call_ends_after_its_time_and_requests_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep_call, "CALL_S", 0.0)
    looks: list[CallTime] = []

    def work(time_left: CallTime) -> bool:
        looks.append(time_left)
        return True

    UpkeepCall(TASK, "the test", work)()

    assert len(looks) == 1
    # Requests of an earlier test in this process may arrive now, too.
    eventually(lambda: TASK in task_names(QUEUE), why="the task is sent again")


@pytest.mark.parametrize("error", [DatabaseError("gone"), ValueError("a defect")])
def test_an_error_is_logged_and_the_next_call_works(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    errors, done = [error], []

    def work(_: CallTime) -> bool:
        if errors:
            raise errors.pop()
        done.append(True)
        return False

    call = UpkeepCall(TASK, "the test", work)
    call()
    assert "the test" in caplog.text
    call()
    assert done == [True]


def test_appended_events_request_tasks_with_expiry_and_priority() -> None:
    make_run(make_agent(make_project()))
    taken: dict[str, Any] = {}

    def has_both() -> bool:
        sent = {message.headers["task"]: message for message in queued_messages(QUEUE)}
        taken.update((name, sent[name]) for name in ("runs.index_texts", "runs.export_events") if name in sent)
        return len(taken) == 2

    eventually(has_both, why="the index and the sinks are asked for")
    assert all(message.headers["expires"] for message in taken.values())
    assert {message.properties["priority"] for message in taken.values()} == {5}
