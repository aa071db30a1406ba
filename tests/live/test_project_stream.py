"""The stream of a project's run list: it names runs that changed, to users who may read them, and nothing else."""

from __future__ import annotations

import time

import pytest

from runs.lifecycle import transitions
from runs.models import AgentRun
from runs.statuses import RunStatus
from tests.support.databases import OwnRedis
from tests.support.factories import make_agent, make_person, make_run, signed_in
from tests.support.stream_clients import Follower, Listeners
from tests.support.suite_fixtures import MakeWeb
from tests.support.timelines import StreamedRun, grow
from tests.support.timing import eventually
from timeline.events.run import RunPaused
from timeline.models import Source


def follow(streamed: StreamedRun, headers: dict[str, str] | None = None) -> Follower:
    url = f"{streamed.web.url}/p/{streamed.project.slug}/runs/stream"
    reader = streamed.listeners.open(url, headers or streamed.cookie, pause_s=0.1)
    eventually(lambda: reader.messages or reader.statuses[-1:] not in ([], [200]), why="an answer")
    return reader


def told(reader: Follower) -> list[str]:
    """Return the IDs in order. A change by this process may arrive twice: directly and through Redis."""
    named = [message.data or "" for message in reader.events("run")]
    return [run_id for place, run_id in enumerate(named) if run_id not in named[max(0, place - 2) : place]]


def told_since(reader: Follower, run: AgentRun) -> list[str]:
    """Return the IDs from this run on. Changes made before the stream was opened may be reported late."""
    ids = told(reader)
    return ids[ids.index(str(run.pk)) :] if str(run.pk) in ids else []


def pause(run: AgentRun) -> None:
    transitions.move(run, RunStatus.PAUSED, RunPaused(reason="operator"), source=Source.WEB, reason="operator")


def test_the_stream_names_new_and_changed_runs(streamed: StreamedRun) -> None:
    reader = follow(streamed)
    assert reader.statuses == [200]
    new = make_run(make_agent(streamed.project))
    eventually(lambda: told_since(reader, new) == [str(new.pk)], why="a new run is named")
    pause(streamed.run)
    eventually(lambda: told_since(reader, new)[1:] == [str(streamed.run.pk)], why="a paused run is named")

    # Events of a run do not reach the list, and its messages have no ID to resume from.
    grow(streamed.run, 5)
    last = make_run(make_agent(streamed.project))
    eventually(lambda: str(last.pk) in told(reader), why="the next run is named")
    assert told_since(reader, new) == [str(new.pk), str(streamed.run.pk), str(last.pk)]
    assert {message.id for message in reader.messages} == {None}


def test_the_stream_does_not_name_runs_of_other_projects(streamed: StreamedRun) -> None:
    reader = follow(streamed)
    foreign = make_run(make_agent())
    pause(foreign)
    own = make_run(make_agent(streamed.project))
    eventually(lambda: str(own.pk) in told(reader), why="the own run is named")

    assert str(foreign.pk) not in told(reader)


def test_many_runs_at_once_are_all_reported(streamed: StreamedRun) -> None:
    """Each by ID, or all by an empty message, which means: reload the list."""
    reader = follow(streamed)
    agent = make_agent(streamed.project)
    made = {str(make_run(agent).pk) for _ in range(40)}
    eventually(lambda: "" in told(reader) or set(told(reader)) >= made, why="all runs are announced")


def test_a_user_without_access_receives_nothing(streamed: StreamedRun) -> None:
    stranger = signed_in(make_person(make_agent().project))
    assert follow(streamed, stranger).statuses == [404]
    assert follow(streamed, {"Cookie": "none=1"}).statuses == [401]
    reader = follow(streamed)
    assert reader.statuses == [200]
    streamed.reader.is_active = False
    streamed.reader.save()

    eventually(lambda: reader.events("auth-revoked"), within_s=7, why="the stream is ended")
    eventually(lambda: len(reader.statuses) == 2, within_s=3, why="it comes back")
    assert reader.statuses == [200, 401]


@pytest.mark.postgres
def test_changes_by_other_processes_arrive_through_redis(
    shared_redis: OwnRedis, web_process: MakeWeb, listeners: Listeners
) -> None:
    streamed = StreamedRun(web_process(), listeners)
    reader = follow(streamed)
    run = make_run(make_agent(streamed.project))
    eventually(lambda: str(run.pk) in told(reader), why="a run of another process is named")
    shared_redis.kill()
    shared_redis.start()
    # Changes during the outage are unknown: the list gets a message to reload, or the next run.
    eventually(lambda: _moves(reader, streamed), within_s=10, why="heard again after a restart of Redis")


def _moves(reader: Follower, streamed: StreamedRun) -> bool:
    before = len(told(reader))
    make_run(make_agent(streamed.project))
    try:
        eventually(lambda: len(told(reader)) > before, within_s=0.5, why="")
    except pytest.fail.Exception:
        return False
    return True


@pytest.mark.slow
def test_runs_of_other_processes_are_named_without_redis(web_process: MakeWeb, listeners: Listeners) -> None:
    """New runs, such as `agentops watch` creates next to a site on SQLite, and runs whose status changes."""
    streamed = StreamedRun(web_process(REDIS_URL=""), listeners)
    reader = follow(streamed)
    time.sleep(1.2)  # longer than the interval of the poll
    run = make_run(make_agent(streamed.project))
    expected = [str(run.pk)]
    for moved in (None, streamed.run):
        if moved is not None:
            pause(moved)
            expected.append(str(moved.pk))
        began = time.monotonic()
        eventually(lambda: told_since(reader, run) == expected, within_s=20, why="a run of another process is named")
        assert time.monotonic() - began < 10  # one second on an idle machine
