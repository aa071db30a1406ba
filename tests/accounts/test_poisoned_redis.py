"""An attacker who can write to Redis can neither run code in a process of the site nor make requests fail."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis
from django.contrib.auth.models import User
from django.test import Client

from agentops import checks
from agentops.accounts.models import Project
from agentops.accounts.rate_counter import Counter
from agentops.base.backing_services import cache_config
from runs.external.import_runs import ImportReport
from runs.external.import_states import ProgressReport, set_progress
from runs.models import FileImport, ImportState
from tests.support.factories import PASSWORD, forget_attempts, with_key


class Bomb:
    """An object that creates a file if it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.redis
@pytest.mark.usefixtures("cheap_passwords")
def test_no_value_in_redis_is_code(redis_url: str, settings: Any, project: Project, tmp_path: Path) -> None:
    settings.CACHES = {"default": cache_config(redis_url)}
    forget_attempts()
    User.objects.create_user("alice", password=PASSWORD)
    headers = with_key(project, "read")
    running = FileImport(pk=uuid4(), state=ImportState.RUNNING, events=9)

    def use_the_site() -> list[int]:
        """Send requests that read everything the site keeps in Redis."""
        logins = [{"username": name, "password": word} for name in ("alice", "bob") for word in ("wrong", PASSWORD)]
        answers = [Client().post("/login", login).status_code for login in logins]
        answers.append(Client().get(f"/api/projects/{project.slug}/agent-runs", headers=headers).status_code)
        answers.append(Client().post("/csp-report", b"{}", content_type="application/csp-report").status_code)
        ProgressReport(running.pk).report(ImportReport(events=5))
        set_progress([running])
        return answers

    expected = [422, 302, 422, 422, 200, 204]
    assert use_the_site() == expected
    assert running.events_done == 5
    bomb = pickle.dumps(Bomb(tmp_path / "exploded"))
    with redis.Redis.from_url(redis_url) as client:
        keys = client.keys()
        assert len(keys) >= 5, keys
        for write in (client.set, client.lpush):
            for key in keys:
                client.delete(key)
                write(key, bomb)
            set_progress([running])
            assert running.events_done == 0
            assert use_the_site() == expected
    assert not (tmp_path / "exploded").exists()


def test_the_cache_holds_integers_and_json_and_startup_refuses_another_serializer(settings: Any) -> None:
    assert checks.cache_reads_no_code(None) == checks.messages_and_sessions_are_no_code(None) == []
    safe = cache_config("redis://127.0.0.1:1/0")
    for config in (
        {**safe, "OPTIONS": {}},
        {**safe, "OPTIONS": {"serializer": "django.core.cache.backends.redis.RedisSerializer"}},
        {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"},
        {"BACKEND": "django.core.cache.backends.filebased.FileBasedCache", "LOCATION": "/tmp/x"},
        {"BACKEND": "django.core.cache.backends.db.DatabaseCache", "LOCATION": "cache"},
    ):
        settings.CACHES = {"default": safe, "other": config}
        [problem] = checks.cache_reads_no_code(None)
        assert (problem.id, "'other'" in problem.msg) == ("agentops.E007", True)
    settings.CELERY_ACCEPT_CONTENT = ["json", "pickle"]
    settings.SESSION_SERIALIZER = "django.contrib.sessions.serializers.PickleSerializer"
    assert [each.id for each in checks.messages_and_sessions_are_no_code(None)] == ["agentops.E008"] * 2


@pytest.mark.redis
def test_no_request_limit_is_lifted_or_lasts_for_ever(redis_url: str) -> None:
    counter = Counter(redis_url)
    with redis.Redis.from_url(redis_url) as client:
        # If the shared counter is deleted before each request, the counter of the process still limits.
        allowed = [not (client.flushdb(), counter.take(10, "key:x"))[1].exceeded for _ in range(30)]
        assert allowed == [True] * 20 + [False] * 10
        for value, kind in (("1000000000", client.set), ("garbage", client.set), ("x", client.lpush)):
            counter, holder = Counter(redis_url), f"key:{value}"
            counter.take(10, holder)
            [key] = [key for key in client.scan_iter() if value.encode() in key]
            client.delete(key)
            kind(key, value)
            standings = [counter.take(10, holder) for _ in range(3)]
            assert not standings[-1].exceeded
            assert all(standing.reset_s <= 60 for standing in standings)
