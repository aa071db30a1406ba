"""`/healthz` and `/readyz`: asked by whoever watches the processes, at their own address."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client

from agentops import checks
from agentops.base.http import health
from runs.management.site.pools import POOLS, warn_of_pools


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "readiness", health.Readiness())


@pytest.fixture
def probe() -> Client:
    """Knows no name of the site, as a container's probe."""
    return Client(headers={"Host": "10.0.0.7:8000"})


def test_a_living_process_says_ok(probe: Client, settings: Any) -> None:
    settings.AGENTOPS_HTTPS = settings.SECURE_SSL_REDIRECT = True
    answer = probe.get("/healthz")

    assert (answer.status_code, answer.content) == (200, b"ok\n")
    assert answer["Cache-Control"] == "no-store"


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_it_is_only_read(probe: Client, path: str, method: str) -> None:
    answer = probe.generic(method, path)

    assert (answer.status_code, answer["Allow"]) == (405, "GET, HEAD")
    assert answer["X-Content-Type-Options"] == "nosniff"


@pytest.mark.django_db(transaction=True)
def test_it_is_ready(probe: Client) -> None:
    answer = probe.get("/readyz")

    assert answer.status_code == 200, answer.content
    found = json.loads(answer.content)
    assert found["ready"]
    assert set(found["checks"]) == {"libraries", "database", "migrations", "disk", "broker"}
    assert all(each["ok"] for each in found["checks"].values())


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("where", ["REMOTE_ADDR", "HTTP_X_FORWARDED_FOR"])
def test_strangers_hear_a_word(probe: Client, settings: Any, where: str) -> None:
    probe.defaults[where] = "203.0.113.9"
    assert probe.get("/readyz").content == b"ready\n"
    settings.AGENTOPS_HEALTH_TOKEN = "a-token-of-the-watch"
    assert probe.get("/readyz", headers={"Authorization": "Bearer another"}).content == b"ready\n"
    told = probe.get("/readyz", headers={"Authorization": "Bearer a-token-of-the-watch"})
    assert json.loads(told.content)["ready"]


@pytest.mark.django_db(transaction=True)
def test_a_crowd_makes_it_look_once(probe: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anyone may ask, so asking must cost nothing."""
    looks: list[str] = []
    counted = health.Check("database", lambda: looks.append("once"))
    monkeypatch.setattr(health, "CHECKS", [counted])

    assert {probe.get("/readyz", REMOTE_ADDR="203.0.113.9").content for _ in range(50)} == {b"ready\n"}
    assert looks == ["once"]


@pytest.mark.django_db(transaction=True)
def test_a_database_that_cannot_be_written_is_told(probe: Client) -> None:
    """The table itself is gone: reading and writing both fail, and the answer holds no text of the database's."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE django_session RENAME TO django_session_gone")
    try:
        answer = probe.get("/readyz")
        stranger = probe.get("/readyz", REMOTE_ADDR="203.0.113.9")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE django_session_gone RENAME TO django_session")

    assert answer.status_code == 503
    assert json.loads(answer.content)["checks"]["database"]["problem"] in {"OperationalError", "ProgrammingError"}
    assert (stranger.status_code, stranger.content) == (503, b"unavailable\n")


@pytest.mark.django_db(transaction=True)
def test_without_a_broker_it_is_ready_but_slower(probe: Client, settings: Any) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    answer = probe.get("/readyz")

    assert answer.status_code == 200
    assert json.loads(answer.content)["checks"]["broker"] | {"ms": 0} == {
        "ok": False, "ms": 0, "problem": "ConnectionError",
    }  # fmt: skip


@pytest.mark.postgres
@pytest.mark.django_db
def test_what_makes_commits_durable_is_checked() -> None:
    assert checks.commits_are_durable(None, databases=["default"]) == []


@pytest.mark.postgres
@pytest.mark.django_db
def test_pools_that_need_more_connections_than_the_server_has_are_told(
    settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert checks.pools_fit_the_server(None, databases=["default"]) == []
    assert checks.pools_fit_the_server(None, databases=[]) == []

    settings.AGENTOPS_DB_PROCESSES = 10_000
    [warning] = checks.pools_fit_the_server(None, databases=["default"])
    assert warning.id == POOLS
    assert "may open 200000" in warning.msg
    warn_of_pools()
    assert "may open 200000" in caplog.text


def test_a_database_that_is_down_keeps_no_process_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runs.management.site.pools.run_checks", is_down)
    warn_of_pools()


def is_down(**_: Any) -> None:
    raise OperationalError
