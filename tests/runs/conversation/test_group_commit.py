"""Commits of several runs in one PostgreSQL transaction: which runs share it, and the effect of a failure on each."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from uuid import UUID

import psycopg
import pytest
from django.db import connection
from pydantic_ai.messages import ModelRequest, UserPromptPart

from agentops.base.database_clock import clock
from runs.conversation import group_commit, transcript, writes
from runs.conversation.group_commit import GROUP
from runs.conversation.writes import Commit
from runs.engine.leases import Lease
from runs.engine.safe_commit import commit_safely
from runs.lifecycle import transitions
from runs.models import AgentRunMessage
from tests.support.factories import make_run
from tests.support.timing import eventually
from timeline import log
from timeline.models import Event, LeaseLost

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.postgres,
    pytest.mark.breaks_invariants("messages that no step has written"),
]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the timeout of threads that wait for the leader of a group, for busy machines."""
    monkeypatch.setattr(group_commit, "PATIENCE_S", 60)


def claimed_run() -> Commit:
    """Return the commit of a message to a claimed run."""
    run = make_run()
    claimed = transitions.claim(run.pk, "owner")
    assert claimed is not None
    position = transcript.last_position(run.pk) + 1
    message = ModelRequest(parts=[UserPromptPart("more")])
    row, _ = transcript.new_row(run.pk, position, message, role="user", step=0, epoch=claimed.epoch)
    return Commit(run_id=run.pk, epoch=claimed.epoch, events=[transcript.message_event(row)], messages=[row])


class Threads:
    """Threads that commit. A thread that commits alone waits up to a minute for a locked row."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool

    def start(self, write: Callable[[], object]) -> Future[object]:
        def writing() -> object:
            try:
                with connection.cursor() as cursor:
                    # On a busy machine, the usual five seconds pass before all threads wait.
                    cursor.execute("SET lock_timeout = '60s'")
                return write()
            finally:
                with connection.cursor() as cursor:
                    cursor.execute("RESET lock_timeout")
                connection.close()

        return self._pool.submit(writing)


@pytest.fixture
def threads() -> Iterator[Threads]:
    with ThreadPoolExecutor(8) as pool:
        yield Threads(pool)


@contextmanager
def locked(run_id: UUID) -> Iterator[None]:
    """Lock the log of a run from a separate connection."""
    settings = connection.get_connection_params()
    keys = ("host", "port", "user", "password", "dbname")
    with psycopg.connect(**{key: settings[key] for key in keys if settings.get(key)}) as other:
        other.execute("SELECT 1 FROM timeline_log WHERE id = %s FOR UPDATE", [run_id])
        yield


def behind_a_leader(threads: Threads, *others: Callable[[], object]) -> list[Future[object]]:
    """Start the other commits while a leader waits for a locked row; unlock the row once all of them wait."""
    first = claimed_run()
    with locked(first.run_id):
        led = threads.start(partial(writes.write, first))
        eventually(lambda: GROUP.has_leader, why="nobody leads", within_s=20)
        waiting = [threads.start(other) for other in others]
        eventually(lambda: len(GROUP.waiting) == len(others), why="not all of them wait", within_s=20)
    assert led.result(20) is False
    return waiting


def transactions(*commits: Commit) -> list[str]:
    """Return the transaction that stored the message of each commit."""
    with connection.cursor() as cursor:
        found = []
        for commit in commits:
            cursor.execute("SELECT xmin FROM agent_run_messages WHERE id = %s", [commit.messages[0].pk])
            found.append(str(cursor.fetchone()[0]))
    return found


def stored(commit: Commit) -> bool:
    """Return whether the message of a commit is stored, with its event."""
    event = Event.objects.filter(log_id=commit.run_id, ref_id=commit.messages[0].pk)
    assert event.count() == AgentRunMessage.objects.filter(pk=commit.messages[0].pk).count()
    return event.exists()


@pytest.mark.usefixtures("patient")
def test_commits_that_arrive_during_a_commit_share_the_next_one(threads: Threads) -> None:
    commits = [claimed_run() for _ in range(4)]

    futures = behind_a_leader(threads, *(partial(writes.write, commit) for commit in commits))

    assert [future.result(20) for future in futures] == [False] * 4
    assert len(set(transactions(*commits))) == 1
    assert all(stored(commit) for commit in commits)


@pytest.mark.usefixtures("patient")
def test_a_commit_that_lost_its_lease_is_refused_and_the_others_are_stored(threads: Threads) -> None:
    commits = [claimed_run() for _ in range(3)]
    assert commits[1].epoch is not None
    log.raise_epoch(commits[1].run_id, commits[1].epoch + 1)

    before, refused, after = behind_a_leader(threads, *(partial(writes.write, commit) for commit in commits))

    assert (before.result(20), after.result(20)) == (False, False)
    with pytest.raises(LeaseLost):
        refused.result(20)
    assert [stored(commit) for commit in commits] == [True, False, True]


@pytest.mark.usefixtures("patient")
def test_a_locked_row_delays_only_its_run(threads: Threads) -> None:
    commits = [claimed_run() for _ in range(3)]
    with locked(commits[1].run_id):
        before, held, after = behind_a_leader(threads, *(partial(writes.write, commit) for commit in commits))

        assert (before.result(20), after.result(20)) == (False, False)
        assert not held.done()
    assert held.result(20) is False
    assert all(stored(commit) for commit in commits)


def test_waiting_for_a_leader_has_a_timeout(threads: Threads) -> None:
    first, other = claimed_run(), claimed_run()
    with locked(first.run_id):
        led = threads.start(partial(writes.write, first))
        eventually(lambda: GROUP.has_leader, why="nobody leads", within_s=20)

        assert threads.start(partial(writes.write, other)).result(4) is False
        assert not led.done()
    assert led.result(20) is False
    assert stored(first)
    assert stored(other)


@pytest.mark.usefixtures("patient")
def test_after_a_refused_leader_another_thread_leads(threads: Threads) -> None:
    first, *others = [claimed_run() for _ in range(3)]
    assert first.epoch is not None
    log.raise_epoch(first.run_id, first.epoch + 1)
    with locked(first.run_id):
        led = threads.start(partial(writes.write, first))
        eventually(lambda: GROUP.has_leader, why="nobody leads", within_s=20)
        waiting = [threads.start(partial(writes.write, other)) for other in others]
        eventually(lambda: len(GROUP.waiting) == len(others), why="not all of them wait", within_s=20)

    with pytest.raises(LeaseLost):
        led.result(20)
    assert [future.result(20) for future in waiting] == [False, False]
    assert [stored(commit) for commit in (first, *others)] == [False, True, True]
    eventually(lambda: not GROUP.has_leader, why="somebody still leads", within_s=20)


def test_an_interrupted_waiting_thread_never_leads(threads: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "PATIENCE_S", 1)  # an interrupt arrives only after this timeout
    first, other = claimed_run(), claimed_run()
    idents: list[int] = []

    def interrupted() -> bool:
        idents.append(threading.get_ident())
        return writes.write(other)

    with locked(first.run_id):
        led = threads.start(partial(writes.write, first))
        eventually(lambda: GROUP.has_leader, why="nobody leads", within_s=20)
        waiting = threads.start(interrupted)
        eventually(lambda: GROUP.waiting, why="nobody waits", within_s=20)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(idents[0]), ctypes.py_object(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            waiting.result(20)
        assert not GROUP.waiting
    assert led.result(20) is False
    eventually(lambda: not GROUP.has_leader, why="somebody still leads", within_s=20)
    assert not stored(other)


@pytest.fixture
def sleeping() -> Iterator[None]:
    """Delay the first insert of several messages by half a minute."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            CREATE SEQUENCE insertions;
            CREATE FUNCTION sleep_once() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
              -- The time that a group waits for locks.
              IF current_setting('lock_timeout') = '50ms' AND nextval('insertions') = 1 THEN
                PERFORM pg_sleep(30);
              END IF;
              RETURN NEW;
            END $$;
            CREATE TRIGGER sleeping BEFORE INSERT ON agent_run_messages FOR EACH ROW EXECUTE FUNCTION sleep_once();
            """
        )
    yield
    with connection.cursor() as cursor:
        cursor.execute(
            "DROP TRIGGER sleeping ON agent_run_messages; DROP FUNCTION sleep_once(); DROP SEQUENCE insertions"
        )


def safely(commit: Commit) -> bool:
    """Run a commit as a step does."""
    assert commit.epoch is not None
    row = commit.messages[0]
    return commit_safely(
        partial(writes.write, commit),
        is_committed=lambda: AgentRunMessage.objects.filter(pk=row.pk).exists(),
        read_result=lambda: False,
        lease=Lease(commit.run_id, commit.epoch, clock() + 60),
    )


def backend_of_the_group() -> int | None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE query LIKE '%runs_commit_group%' AND wait_event = 'PgSleep'"
        )
        row = cursor.fetchone()
    return row[0] if row else None


@pytest.mark.usefixtures("patient")
def test_after_a_lost_connection_each_thread_looks_for_its_rows(
    threads: Threads, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    commits = [claimed_run() for _ in range(3)]
    request.getfixturevalue("sleeping")

    futures = behind_a_leader(threads, *(partial(safely, commit) for commit in commits))
    pid = eventually(backend_of_the_group, why="no group commits", within_s=20)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [pid])

    assert [future.result(20) for future in futures] == [False] * 3
    assert all(stored(commit) for commit in commits)
    assert caplog.text.count("storage failed in a step") == 3
