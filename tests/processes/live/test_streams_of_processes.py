"""Test event streams of web processes: their cost, their end, and interruptions as seen by readers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import psycopg
import pytest

from tests.support.databases import OwnRedis
from tests.support.stage import Stage
from tests.support.stream_clients import Follower, Listeners, heard
from tests.support.suite_fixtures import MakeWeb
from tests.support.timelines import StreamedRun, finish, grow, last_seq
from tests.support.timing import eventually
from tests.support.web_server import WebProcess

MANY = {"AGENTOPS_STREAMS_PER_USER": "1000"}


@pytest.fixture
def web(web_process: MakeWeb) -> WebProcess:
    return web_process(**MANY)


@pytest.fixture
def streamed(web: WebProcess, listeners: Listeners) -> StreamedRun:
    """Start a run with its own web server."""
    return StreamedRun(web, listeners)


def readers(streamed: StreamedRun, count: int) -> list[Follower]:
    made = [streamed.open(pause_s=0.1, stubborn=True) for _ in range(count)]
    everything = [*range(1, last_seq(streamed.run) + 1)]
    for reader in made:
        heard(reader, everything, within_s=20)
    return made


def took(streamed: StreamedRun, reader: Follower, *, within_s: float) -> float:
    """Append an event in this process and return the seconds until the reader has it."""
    began = time.monotonic()
    last = grow(streamed.run)
    heard(reader, [*range(1, last + 1)], within_s=within_s)
    return reader.messages[-1].at - began


def test_readers_use_no_additional_threads_or_connections(
    streamed: StreamedRun, web: WebProcess, connections_of: Callable[[WebProcess], list[str]]
) -> None:
    few = readers(streamed, 5)
    grow(streamed.run, 20)
    threads, connections = web.threads(), len(connections_of(web))
    crowd = readers(streamed, 100)
    for _ in range(5):
        last = grow(streamed.run, 20)
    for reader in (*few, *crowd):
        heard(reader, [*range(1, last + 1)], within_s=20)
    states = connections_of(web)
    print(f"threads {threads} → {web.threads()}, connections {connections} → {len(states)}")

    assert web.threads() <= threads + 2
    assert len(states) <= 5
    # A waiting reader holds no connection; all connections are idle in the pool.
    assert set(states) <= {"idle"}


def test_sigterm_ends_streams_cleanly(streamed: StreamedRun, web: WebProcess) -> None:
    crowd = readers(streamed, 20)
    assert web.process is not None
    web.process.signal(Stage.TERM)
    code = web.process.wait(within_s=20, why="ended by SIGTERM")

    assert code == 0
    assert "graceful shutdown exceeded" not in web.process.said()
    assert "Traceback" not in web.process.said()
    web.start()
    last = grow(streamed.run)
    for reader in crowd:
        heard(reader, [*range(1, last + 1)], within_s=20)
        assert not reader.events("end")


def test_readers_reconnect_after_a_server_is_killed(streamed: StreamedRun, web: WebProcess) -> None:
    crowd = readers(streamed, 20)
    for _ in range(2):
        grow(streamed.run, 3)
        web.kill()
        grow(streamed.run, 3)
        web.start()
        last = grow(streamed.run, 3)
        for reader in crowd:
            heard(reader, [*range(1, last + 1)], within_s=20)
    last = finish(streamed.run)
    for reader in crowd:
        eventually(lambda reader=reader: reader.statuses[-1] == 204, why="the end, and 204 after it")
        assert [int(m.id or 0) for m in reader.events("message")] == [*range(1, last + 1)]


def test_events_of_another_process_arrive_without_redis(streamed: StreamedRun) -> None:
    """The server polls three times a second. The median allows for delays on a busy machine."""
    [reader] = readers(streamed, 1)
    times = [took(streamed, reader, within_s=10) for _ in range(4)]
    print(f"without Redis, from another process: {max(times):.2f} s at most")

    assert statistics.median_low(times) < 1.5


@pytest.mark.postgres
def test_streams_continue_while_redis_stops_and_starts(
    shared_redis: OwnRedis, web_process: MakeWeb, listeners: Listeners
) -> None:
    streamed = StreamedRun(web_process(**MANY), listeners)
    [reader] = readers(streamed, 1)
    for _ in range(2):
        quick = [took(streamed, reader, within_s=20) for _ in range(5)]
        shared_redis.kill()
        time.sleep(0.3)
        slow = [took(streamed, reader, within_s=20) for _ in range(4)]
        print(f"with Redis {max(quick):.3f} s at most, without it {max(slow):.2f} s")
        # Without Redis, the server polls once a second.
        assert min(quick) < 0.5
        assert max(slow) < 15
        shared_redis.start()
        eventually(lambda: took(streamed, reader, within_s=20) < 0.5, why="the next notification arrives")
    assert len(reader.answers) == 1


@pytest.mark.postgres
def test_a_hanging_redis_delays_no_reader(shared_redis: OwnRedis, web_process: MakeWeb, listeners: Listeners) -> None:
    streamed = StreamedRun(web_process(**MANY), listeners)
    [reader] = readers(streamed, 1)
    shared_redis.suspend()
    try:
        slow = [took(streamed, reader, within_s=5) for _ in range(4)]
    finally:
        shared_redis.go_on()
    print(f"with a Redis that hangs: {max(slow):.2f} s at most")
    assert max(slow) < 2.5
    eventually(lambda: took(streamed, reader, within_s=20) < 0.2, why="the next notification arrives")


@pytest.mark.postgres
def test_streams_survive_the_loss_of_all_database_connections(
    streamed: StreamedRun, web: WebProcess, stage: Stage
) -> None:
    crowd = readers(streamed, 5)
    ours = stage.databases.env(stage.name, stage.home)["DATABASE_URL"]
    with psycopg.connect(ours, autocommit=True) as server:
        for _ in range(3):
            # Only of this database: other tests run web processes with the same name at the same time.
            server.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name = %s",
                [web.name],
            )
            last = grow(streamed.run, 3)
            for reader in crowd:
                heard(reader, [*range(1, last + 1)], within_s=10)
    assert [len(reader.answers) for reader in crowd] == [1] * 5
