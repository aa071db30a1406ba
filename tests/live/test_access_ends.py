"""Losing a right ends the streams opened by it, and no others: at once if announced, otherwise within five seconds."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from agentops.accounts import keys
from agentops.accounts.access import SYSTEM, principal_for_key, principal_for_user
from agentops.accounts.login.sessions import end_sessions
from agentops.accounts.memberships import change_role, remove_member
from agentops.accounts.models import ApiKey, Membership, Project, Role
from agentops.asgi import live_server
from tests.support.databases import OwnRedis
from tests.support.factories import key_prefix, make_person, make_project, session_of, signed_in, with_key
from tests.support.machine import ROOT
from tests.support.stage import Stage
from tests.support.stream_clients import TINY, Follower, Listeners, heard
from tests.support.timelines import StreamedRun, grow, last_seq
from tests.support.timing import eventually
from tests.support.web_server import WebProcess
from timeline.live import access_watch, client
from timeline.live.access_watch import AccessWatch, Permit

NEVER_S = 3600.0
#: Time limit for one message and one database check on a busy machine.
AT_ONCE_S = 15.0


@pytest.fixture
def no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable periodic checks: only a message ends a stream. Request it before the fixture that creates the hub."""
    assert access_watch.CHECK_INTERVAL_S == 3
    monkeypatch.setattr(access_watch, "CHECK_INTERVAL_S", NEVER_S)


def revoked(follower: Follower) -> bool:
    return bool(follower.events("auth-revoked"))


def begun(*followers: Follower) -> None:
    for follower in followers:
        eventually(lambda follower=follower: follower.messages, why="the stream begins")


# --- Ways in which a user loses the right to read ---------------------------------------------------------------


def boss() -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser(f"boss-{User.objects.count()}"))
    return client


def leave(project: Project, person: User) -> None:
    remove_member(project, person, actor=SYSTEM)


def be_removed_by_an_admin(project: Project, person: User) -> None:
    url = f"/p/{project.slug}/settings/members/remove"
    assert boss().post(url, {"user": person.username}).status_code == 303


def have_memberships_deleted(project: Project, person: User) -> None:
    Membership.objects.filter(user=person).delete()


def log_out(project: Project, person: User) -> None:
    """Log out on the page, with the session that opened the stream."""
    [session] = [row for row in Session.objects.all() if row.get_decoded()["_auth_user_id"] == str(person.pk)]
    browser = Client()
    browser.cookies["sessionid"] = session.session_key
    assert browser.post("/logout").status_code == 302


def have_sessions_ended(project: Project, person: User) -> None:
    assert end_sessions(person, actor=SYSTEM) == 1


def have_sessions_ended_by_an_admin(project: Project, person: User) -> None:
    boss().post("/admin/auth/user/", {"action": "end_sessions", "_selected_action": [person.pk]})


def change_password(project: Project, person: User) -> None:
    person.set_password("something else entirely 2")
    person.save()


def be_switched_off_by_an_admin(project: Project, person: User) -> None:
    form = {"username": person.username, "date_joined_0": "2026-11-20", "date_joined_1": "12:00:00"}
    assert boss().post(f"/admin/auth/user/{person.pk}/change/", form).status_code == 302
    assert not User.objects.get(pk=person.pk).is_active


def be_deleted(project: Project, person: User) -> None:
    """Delete the user. Members cannot be deleted, so the membership is removed first."""
    Membership.objects.filter(user=person).delete()
    person.delete()


WAYS: dict[Callable[[Project, User], None], int] = {
    leave: 404,
    be_removed_by_an_admin: 404,
    have_memberships_deleted: 404,
    log_out: 401,
    have_sessions_ended: 401,
    have_sessions_ended_by_an_admin: 401,
    change_password: 401,
    be_switched_off_by_an_admin: 401,
    be_deleted: 401,
}


def test_whoever_loses_the_right_is_told_at_once(no_looks: None, streamed: StreamedRun) -> None:
    """Each of these changes sends a message that reaches every open stream of the user."""
    bystander = streamed.open()
    readers = {}
    for way in WAYS:
        person = make_person(streamed.project, Role.VIEWER)
        cookie = signed_in(person)
        json = streamed.listeners.open(streamed.url, cookie, pause_s=0.1)
        page = streamed.listeners.open(streamed.page_url, cookie, pause_s=0.1)
        readers[way] = person, json, page
    begun(bystander, *(stream for _, *streams in readers.values() for stream in streams))
    slowest = 0.0
    for way, (person, json, page) in readers.items():
        way(streamed.project, person)
        began = time.monotonic()
        eventually(lambda: revoked(json) and revoked(page), within_s=10, why=f"both are told: {way.__name__}")  # noqa: B023
        slowest = max(slowest, time.monotonic() - began)
        # The stream is closed, and the reconnect is refused.
        eventually(lambda: len(json.statuses) == len(page.statuses) == 2, why="the reader comes back")  # noqa: B023
        assert json.statuses == page.statuses == [200, WAYS[way]], way.__name__
        for stream in (json, page):
            assert [m.event for m in stream.messages if m.data is not None][-1] == "auth-revoked"
    print(f"told after {slowest:.3f} s at most")
    assert slowest < AT_ONCE_S
    grow(streamed.run)
    heard(bystander, [*range(1, last_seq(streamed.run) + 1)])
    assert bystander.statuses == [200]


def revoke_key(headers: Mapping[str, str]) -> None:
    keys.revoke(ApiKey.objects.get(prefix=key_prefix(headers)), actor=SYSTEM)


def revoke_key_as_an_admin(headers: Mapping[str, str]) -> None:
    key = ApiKey.objects.get(prefix=key_prefix(headers))
    boss().post("/admin/projects/apikey/", {"action": "revoke", "_selected_action": [key.pk]})


def revoke_key_on_the_command_line(headers: Mapping[str, str]) -> None:
    call_command("key", "revoke", key_prefix(headers))


def take_its_scopes(headers: Mapping[str, str]) -> None:
    ApiKey.objects.filter(prefix=key_prefix(headers)).update(scopes=["ingest"])


def rotate_without_overlap(headers: Mapping[str, str]) -> None:
    key = ApiKey.objects.get(prefix=key_prefix(headers))
    keys.rotate(key, actor=SYSTEM, overlap=timedelta(0))


def delete_key(headers: Mapping[str, str]) -> None:
    ApiKey.objects.get(prefix=key_prefix(headers)).delete()


KEY_WAYS = [revoke_key, revoke_key_as_an_admin, revoke_key_on_the_command_line, rotate_without_overlap, delete_key]


def test_ending_a_key_ends_its_streams_at_once(no_looks: None, streamed: StreamedRun) -> None:
    bystander = streamed.listeners.open(streamed.url, with_key(streamed.project))
    streams = {}
    for way in [*KEY_WAYS, take_its_scopes]:
        headers = with_key(streamed.project)
        streams[way] = headers, streamed.listeners.open(streamed.url, headers, pause_s=0.1)
    begun(bystander, *(stream for _, stream in streams.values()))
    for way, (headers, stream) in streams.items():
        way(headers)
        eventually(lambda: revoked(stream), within_s=AT_ONCE_S, why=f"it is told: {way.__name__}")  # noqa: B023
        eventually(lambda: len(stream.statuses) == 2, why="the program comes back")  # noqa: B023
        assert stream.statuses == [200, 403 if way is take_its_scopes else 401], way.__name__
    grow(streamed.run)
    heard(bystander, [*range(1, last_seq(streamed.run) + 1)])


def test_a_demoted_superuser_loses_every_project(no_looks: None, streamed: StreamedRun) -> None:
    demoted = make_person()
    demoted.is_superuser = True
    demoted.save()
    stream = streamed.listeners.open(streamed.url, signed_in(demoted), pause_s=0.1)
    begun(stream)
    demoted.is_superuser = False
    demoted.save()

    eventually(lambda: stream.statuses[1:] == [404], within_s=AT_ONCE_S + 3, why="closed, and refused afterwards")
    assert revoked(stream)


def test_a_user_who_keeps_the_right_keeps_the_stream(no_looks: None, streamed: StreamedRun) -> None:
    """Changes to another role that may read, the end of another of their sessions, or a new name do not end it."""
    stream = streamed.open()
    begun(stream)
    change_role(streamed.project, streamed.reader, Role.OPERATOR, actor=SYSTEM)
    Session.objects.get(pk=session_of(streamed.reader)).delete()
    streamed.reader.first_name = "Rita"
    streamed.reader.save()

    grow(streamed.run)
    heard(stream, [*range(1, last_seq(streamed.run) + 1)])
    assert stream.statuses == [200]


def test_a_reader_that_reads_nothing_is_disconnected(no_looks: None, streamed: StreamedRun) -> None:
    """The send buffer is full, so no final message can be sent; the connection still ends."""
    assert client.LINGER_S == 1
    stuck = streamed.open(receive_buffer=TINY, slow_s=3600, pause_s=0.05)
    begun(stuck)
    for _ in range(40):
        grow(streamed.run, 10, size=16_000)
    hub = live_server.hub()
    eventually(lambda: any(one.sending_since for one in hub.clients), within_s=10, why="the sockets are full")
    leave(streamed.project, streamed.reader)

    eventually(lambda: not hub.clients, within_s=AT_ONCE_S + 2, why="the stream is gone")


# --- Without a message ------------------------------------------------------------------------------------------


def switch_off(streamed: StreamedRun) -> None:
    User.objects.filter(pk=streamed.reader.pk).update(is_active=False)


def expire_session(streamed: StreamedRun) -> None:
    Session.objects.filter(session_key=streamed.cookie["Cookie"].partition("=")[2]).update(expire_date=timezone.now())


@pytest.mark.parametrize("lose_it", [switch_off, expire_session])
def test_an_unannounced_change_is_detected_by_the_periodic_check(
    lose_it: Callable[[StreamedRun], None], monkeypatch: pytest.MonkeyPatch, streamed: StreamedRun
) -> None:
    """Also a change whose message no Redis carries: another process revokes the right while the site runs on SQLite."""
    monkeypatch.setattr(access_watch, "CHECK_INTERVAL_S", 0.2)
    stream = streamed.open(pause_s=0.1)
    begun(stream)
    lose_it(streamed)

    eventually(lambda: stream.statuses[1:] == [401], within_s=5, why="closed, and refused afterwards")
    assert revoked(stream)


def test_the_check_costs_the_same_for_many_readers(transactional_db: None) -> None:
    """80 readers take as many queries as two, which keeps the check short on a busy machine."""
    project, other = make_project(), make_project()
    people = [make_person(project, Role.VIEWER) for _ in range(40)]
    permits = {Permit(principal_for_user(one), project.pk, session_of(one)) for one in people}
    made = [keys.create_key(project, name="one", scopes=["read"], actor=SYSTEM).key for _ in range(40)]
    permits |= {Permit(principal_for_key(key), project.pk) for key in made}
    foreign = {Permit(principal_for_user(people[0]), other.pk, session_of(people[0]))}
    with CaptureQueriesContext(connection) as queries:
        assert access_watch.revoked_permits(permits | foreign) == foreign

    assert len(queries) <= 5
    User.objects.filter(pk=people[1].pk).update(is_active=False)
    Session.objects.filter(pk=next(p.session_key for p in permits if p.principal.user_id == people[2].pk)).delete()
    ApiKey.objects.filter(pk=made[0].pk).update(expires_at=timezone.now())
    lost = {one.principal.user_id or one.principal.key_id for one in access_watch.revoked_permits(permits)}
    assert lost == {people[1].pk, people[2].pk, made[0].pk}


@pytest.mark.slow
def test_checks_keep_their_interval_however_long_one_takes(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next check starts on schedule, not one interval after the end of the last."""
    monkeypatch.setattr(access_watch, "CHECK_INTERVAL_S", 0.5)
    began: list[float] = []

    def slow_look(permits: Any) -> set[Permit]:
        began.append(time.monotonic())
        time.sleep(0.4)
        return set()

    monkeypatch.setattr(access_watch, "revoked_permits", slow_look)
    watch = AccessWatch(lambda permits: None)
    try:
        watch.add(Permit(SYSTEM, make_project().pk))
        eventually(lambda: len(began) >= 4, within_s=10, why="four looks")
    finally:
        watch.close()
    assert (began[3] - began[0]) / 3 < 0.75


def test_a_change_just_before_a_stream_is_opened_is_not_missed(no_looks: None, transactional_db: None) -> None:
    """The view checks access before the change; the stream is registered after the message has arrived."""
    project = make_project()
    key = keys.create_key(project, name="one", scopes=["read"], actor=SYSTEM).key
    permit = Permit(principal_for_key(key), project.pk)
    told: list[set[Permit]] = []
    watch = AccessWatch(told.append)
    try:
        keys.revoke(key, actor=SYSTEM)
        watch.add(permit)
        eventually(lambda: told, within_s=5, why="it is checked once more")
    finally:
        watch.close()
    assert told == [{permit}]


# --- Between processes ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_other_processes_receive_changes_through_redis(
    shared_redis: OwnRedis, stage: Stage, listeners: Listeners
) -> None:
    """The stream server runs no periodic checks; the right ends in this process, and in a command that then exits."""
    web = WebProcess(
        stage, env={"TEST_UNWATCHED_ACCESS": "1"}, settings_module="tests.support.process_settings"
    ).start()
    streamed = StreamedRun(web, listeners)
    mine, other = with_key(streamed.project), with_key(streamed.project)
    streams = [streamed.open(pause_s=0.1), *(listeners.open(streamed.url, one, pause_s=0.1) for one in (mine, other))]
    begun(*streams)
    person, here, command = streams
    leave(streamed.project, streamed.reader)
    eventually(lambda: revoked(person), within_s=AT_ONCE_S, why="the person's stream ends")
    revoke_key(mine)
    eventually(lambda: revoked(here), within_s=AT_ONCE_S, why="the key's stream ends")

    environment = stage.databases.env(stage.name, stage.home) | {
        "REDIS_URL": shared_redis.url,
        "PATH": os.environ["PATH"],
    }
    words = [sys.executable, "manage.py", "key", "revoke", key_prefix(other)]
    subprocess.run(words, env=environment, cwd=ROOT, check=True, capture_output=True, timeout=60)
    eventually(lambda: revoked(command), within_s=AT_ONCE_S, why="the other key's stream ends")
