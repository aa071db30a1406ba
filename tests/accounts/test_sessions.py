"""A session ends twelve hours after its last request, and after seven days in any case."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
import time_machine
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.test import Client

from agentops.accounts.access import principal_for_user
from agentops.accounts.login import sessions
from tests.support.factories import make_person, make_project
from timeline.live import access_watch
from timeline.live.access_watch import Permit

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.fixture
def clock() -> Iterator[time_machine.Traveller]:
    with time_machine.travel(NOON, tick=False) as clock:
        yield clock


@pytest.fixture
def person(db: None, clock: time_machine.Traveller) -> User:
    return make_person(make_project("alpha"))


@pytest.fixture
def client(person: User) -> Client:
    client = Client()
    client.force_login(person)
    return client


def may_enter(client: Client) -> bool:
    return client.get("/p/alpha/runs").status_code == 200


def test_a_session_lasts_while_it_is_used(client: Client, clock: time_machine.Traveller) -> None:
    for hour in range(0, 7 * 24, 11):
        clock.move_to(NOON + timedelta(hours=hour))
        assert may_enter(client), hour


def test_an_unused_session_ends(client: Client, clock: time_machine.Traveller) -> None:
    clock.shift(timedelta(hours=11))
    assert may_enter(client)
    clock.shift(timedelta(hours=12, seconds=1))
    assert not may_enter(client)
    # The session is deleted, not only refused.
    assert not Session.objects.exists()


def test_a_session_ends_after_seven_days(client: Client, clock: time_machine.Traveller) -> None:
    for hour in range(0, 7 * 24, 11):
        clock.move_to(NOON + timedelta(hours=hour))
        may_enter(client)
    clock.move_to(NOON + timedelta(days=7, seconds=1))
    assert not may_enter(client)


def test_last_use_is_stored_at_intervals(client: Client, clock: time_machine.Traveller) -> None:
    assert may_enter(client)
    seen = client.session[sessions.LAST_USED_KEY]
    clock.shift(timedelta(minutes=9))
    assert may_enter(client)
    assert client.session[sessions.LAST_USED_KEY] == seen
    clock.shift(timedelta(minutes=2))
    assert may_enter(client)
    assert client.session[sessions.LAST_USED_KEY] == seen + 11 * 60


def test_noting_the_last_use_keeps_concurrent_changes_of_the_session(
    client: Client, clock: time_machine.Traveller
) -> None:
    stale = client.session
    other = client.session
    other["started"] = ["something"]
    other.save()
    clock.shift(timedelta(minutes=11))
    sessions.note(stale)

    assert client.session["started"] == ["something"]
    assert client.session[sessions.LAST_USED_KEY] == int((NOON + timedelta(minutes=11)).timestamp())


def test_an_open_stream_ends_with_the_session(client: Client, person: User, clock: time_machine.Traveller) -> None:
    project = person.memberships.get().project_id
    permit = Permit(principal_for_user(person), project, client.session.session_key)
    assert access_watch.revoked_permits({permit}) == set()
    clock.shift(timedelta(hours=12, seconds=1))
    assert access_watch.revoked_permits({permit}) == {permit}


def test_a_key_has_no_session(db: None) -> None:
    assert not Session.objects.exists()
    Client().get("/api/projects", headers={"Authorization": "Bearer nothing"})
    assert not Session.objects.exists()
