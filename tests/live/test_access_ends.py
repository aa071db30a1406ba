"""A right that is taken away ends the streams that were opened by it, within five seconds, and nobody else's."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from django.contrib.sessions.models import Session
from django.utils import timezone

from agentops.projects import keys
from agentops.projects.access import SYSTEM
from agentops.projects.actions import remove_member
from agentops.projects.models import ApiKey, Role
from tests.crash.rig import eventually
from tests.live.conftest import Scene
from tests.live.logs import grow, last_seq
from tests.web.listeners import heard
from tests.web.people import key_prefix, make_person, signed_in, with_key
from tests.web.sse_client import Follower

#: What was promised, and something for a busy machine.
PROMISED_S, TOLERANCE_S = 5.0, 1.5


def leave(scene: Scene) -> None:
    remove_member(scene.project, scene.reader, actor=SYSTEM)


def end_session(scene: Scene) -> None:
    Session.objects.filter(session_key=scene.cookie["Cookie"].partition("=")[2]).delete()


def expire_session(scene: Scene) -> None:
    Session.objects.filter(session_key=scene.cookie["Cookie"].partition("=")[2]).update(expire_date=timezone.now())


def change_password(scene: Scene) -> None:
    scene.reader.set_password("something else entirely 2")
    scene.reader.save()


def switch_off(scene: Scene) -> None:
    scene.reader.is_active = False
    scene.reader.save()


def revoked(follower: Follower) -> bool:
    return bool(follower.events("auth-revoked"))


@pytest.mark.parametrize(
    ("lose_it", "afterwards"),
    [(leave, 404), (end_session, 401), (expire_session, 401), (change_password, 401), (switch_off, 401)],
)
def test_a_person_loses_the_right(scene: Scene, lose_it: Callable[[Scene], None], afterwards: int) -> None:
    """BI-64"""
    other = scene.listeners.open(scene.url, signed_in(make_person(scene.project, Role.VIEWER)))
    json, page = scene.open(pause_s=0.1), scene.listeners.open(scene.page_url, scene.cookie, pause_s=0.1)
    for stream in (json, page, other):
        eventually(lambda stream=stream: stream.messages, within_s=5, why="the stream begins")
    began = time.monotonic()
    lose_it(scene)
    eventually(lambda: revoked(json) and revoked(page), within_s=10, why="both streams are told")
    took = time.monotonic() - began
    grow(scene.run)
    # Closed, and not opened again.
    eventually(lambda: len(json.statuses) == len(page.statuses) == 2, within_s=5, why="the reader comes back")

    assert took < PROMISED_S + TOLERANCE_S
    assert json.statuses == [200, afterwards]
    for stream in (json, page):
        assert [m.event for m in stream.messages if m.data is not None][-1] == "auth-revoked"
    assert page.statuses == [200, afterwards]
    heard(other, [*range(1, last_seq(scene.run) + 1)])
    assert other.statuses == [200]


def test_a_key_is_revoked(scene: Scene) -> None:
    headers, other_key = with_key(scene.project), with_key(scene.project)
    mine = scene.listeners.open(scene.url, headers, pause_s=0.1)
    other = scene.listeners.open(scene.url, other_key)
    eventually(lambda: mine.messages and other.messages, within_s=5, why="the streams begin")
    began = time.monotonic()
    keys.revoke(ApiKey.objects.get(prefix=key_prefix(headers)), actor=SYSTEM)
    eventually(lambda: revoked(mine), within_s=10, why="the stream is told")
    took = time.monotonic() - began
    eventually(lambda: len(mine.statuses) == 2, within_s=5, why="the program comes back")

    assert took < PROMISED_S + TOLERANCE_S
    assert mine.statuses == [200, 401]
    assert other.statuses == [200]
    assert not revoked(other)


def test_a_key_expires(scene: Scene) -> None:
    headers = with_key(scene.project)
    mine = scene.listeners.open(scene.url, headers, pause_s=0.1)
    eventually(lambda: mine.messages, within_s=5, why="the stream begins")
    ApiKey.objects.filter(prefix=key_prefix(headers)).update(expires_at=timezone.now())

    eventually(lambda: mine.statuses[1:] == [401], within_s=PROMISED_S + 5, why="closed, and refused afterwards")
    assert revoked(mine)


def test_a_superuser_who_is_demoted_loses_every_project(scene: Scene) -> None:
    boss = make_person()
    boss.is_superuser = True
    boss.save()
    stream = scene.listeners.open(scene.url, signed_in(boss), pause_s=0.1)
    eventually(lambda: stream.messages, within_s=5, why="the stream begins")
    boss.is_superuser = False
    boss.save()

    eventually(lambda: stream.statuses[1:] == [404], within_s=PROMISED_S + 5, why="closed, and refused afterwards")
    assert revoked(stream)
