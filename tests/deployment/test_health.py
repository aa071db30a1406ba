"""`/healthz` and `/readyz`, which monitors call at the address of each process."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client

from agentops import checks
from agentops.base.http import health
from runs.management.site.start_checks import POOLS, warn_of_pools


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "readiness", health.Readiness())


@pytest.fixture
def probe() -> Client:
    """Return a client without the site's host name, like a container's probe."""
    return Client(headers={"Host": "10.0.0.7:8000"})


def test_living_process_responds_ok(probe: Client, settings: Any) -> None:
    settings.AGENTOPS_HTTPS = settings.SECURE_SSL_REDIRECT = True
    answer = probe.get("/healthz")

    assert (answer.status_code, answer.content) == (200, b"ok\n")
    assert answer["Cache-Control"] == "no-store"


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_health_urls_are_read_only(probe: Client, path: str, method: str) -> None:
    answer = probe.generic(method, path)

    assert (answer.status_code, answer["Allow"]) == (405, "GET, HEAD")
    assert answer["X-Content-Type-Options"] == "nosniff"


@pytest.mark.django_db(transaction=True)
def test_process_is_ready(probe: Client) -> None:
    answer = probe.get("/readyz")

    assert answer.status_code == 200, answer.content
    found = json.loads(answer.content)
    assert found["ready"]
    assert set(found["checks"]) == {"libraries", "database", "migrations", "disk", "broker"}
    assert all(each["ok"] for each in found["checks"].values())


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("where", ["REMOTE_ADDR", "HTTP_X_FORWARDED_FOR"])
def test_strangers_get_only_one_word(probe: Client, settings: Any, where: str) -> None:
    probe.defaults[where] = "203.0.113.9"
    assert probe.get("/readyz").content == b"ready\n"
    settings.AGENTOPS_HEALTH_TOKEN = "a-token-of-the-watch"
    assert probe.get("/readyz", headers={"Authorization": "Bearer another"}).content == b"ready\n"
    told = probe.get("/readyz", headers={"Authorization": "Bearer a-token-of-the-watch"})
    assert json.loads(told.content)["ready"]


@pytest.mark.django_db(transaction=True)
def test_many_requests_cause_one_check(probe: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests need no credentials, so they must be cheap."""
    looks: list[str] = []
    counted = health.Check("database", lambda: looks.append("once"))
    monkeypatch.setattr(health, "CHECKS", [counted])

    assert {probe.get("/readyz", REMOTE_ADDR="203.0.113.9").content for _ in range(50)} == {b"ready\n"}
    assert looks == ["once"]


@pytest.mark.django_db(transaction=True)
def test_unusable_database_is_reported(probe: Client) -> None:
    """The table is missing, so reading and writing fail. The response contains no text from the database."""
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
def test_process_is_ready_without_a_broker(probe: Client, settings: Any) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    answer = probe.get("/readyz")

    assert answer.status_code == 200
    assert json.loads(answer.content)["checks"]["broker"] | {"ms": 0} == {
        "ok": False,
        "ms": 0,
        "problem": "ConnectionError",
    }


@pytest.mark.postgres
@pytest.mark.django_db
def test_commit_durability_is_checked() -> None:
    assert checks.commits_are_durable(None, databases=["default"]) == []


@pytest.mark.postgres
@pytest.mark.django_db
def test_too_large_pools_are_reported(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert checks.pools_fit_the_server(None, databases=["default"]) == []
    assert checks.pools_fit_the_server(None, databases=[]) == []

    settings.AGENTOPS_DB_PROCESSES = 10_000
    [warning] = checks.pools_fit_the_server(None, databases=["default"])
    assert warning.id == POOLS
    assert "may open 200000" in warning.msg
    warn_of_pools()
    assert "may open 200000" in caplog.text


def test_process_starts_although_the_database_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runs.management.site.start_checks.run_checks", is_down)
    warn_of_pools()


def is_down(**_: Any) -> None:
    raise OperationalError
