"""Test the health page of the site: problems with advice, for superusers only."""

from __future__ import annotations

import html
import re
import socket
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from agentops.accounts.models import Role
from agentops.base import database_clock
from agentops.base.database_clock import Now
from agentops.base.http import health
from runs.lifecycle import transitions
from runs.lifecycle.suspicion import CHILD_SEPARATOR
from runs.models import AgentRun, Attempt, Chore, Sink, SinkCursor
from runs.pages import health_facts, system_page
from runs.telemetry.sink_claims import disable
from runs.worker import worker
from runs.worker.sweep import sweep
from tests.support.engine import empty_broker, send, use_broker
from tests.support.factories import make_agent, make_person, make_project, make_run
from tests.support.pages import parse
from tests.support.project_rows import append, make_sink
from timeline.reading import newest_event

pytestmark = pytest.mark.django_db(transaction=True)
PAGE = "/system"


@pytest.fixture
def boss(monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setattr(health, "readiness", health.Readiness())
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    return client


@pytest.fixture
def redis_broker(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of an empty Redis that is also the broker of this process."""
    use_broker(redis_url, monkeypatch)
    return redis_url


def facts_of(answer: Any) -> dict[str, str]:
    """Return each fact with its badge, value and advice in one line."""
    facts = {}
    for group in parse(answer.content.decode()).all("health"):
        for row in group.elements:
            name, value = row.elements
            facts[name.text.strip()] = " ".join(value.text.split())
    return facts


def test_only_superusers_may_open_the_page(boss: Client) -> None:
    assert Client().get(PAGE)["Location"] == "/login?next=%2Fsystem"
    project = make_project("alpha")
    admin = Client()
    admin.force_login(make_person(project, Role.ADMIN))
    assert admin.get(PAGE).status_code == 403
    assert PAGE not in admin.get("/p/alpha/runs").content.decode()
    assert boss.post(PAGE).status_code == 405
    assert f'href="{PAGE}"' in boss.get("/p/alpha/runs").content.decode()


def test_each_fact_is_good_or_has_advice(boss: Client, settings: Any) -> None:
    settings.REDIS_URL, settings.AGENTOPS_TESTING = "", True
    facts = facts_of(boss.get(PAGE))
    assert facts["Database"].startswith("good answers in ")
    assert facts["Migrations"] == "good all applied"
    assert facts["Broker"] == "good none: processes look into the database instead"
    assert facts["Oldest queued run"] == "good none"
    assert facts["Clock"] == "runs in each worker, because there is no Redis"
    assert facts["Oldest message"] == "unknown: the queues are in the memory of the workers"
    assert facts["Time until a run of a dead worker continues"] == "no worker has died in the last 24 hours"
    assert facts["Runs that wait for a place"] == "0"
    assert facts["Open event streams"] == "0 in this web process"
    product = "PostgreSQL" if connection.vendor == "postgresql" else "SQLite"
    assert re.search(rf"agentops \d.*Django \d.*Python \d.*{product} \d", facts["Versions"])
    assert re.fullmatch(r"[\d.]+\xa0?.B", facts["Size of the database"].replace(" ", ""))
    # agentops/checks.py reports this for deployments, which have a database server.
    assert ("agentops.E003" in facts) == (connection.vendor == "postgresql")
    assert "agentops.W002" not in facts

    run = make_run(make_agent(make_project("alpha")))
    AgentRun.objects.filter(pk=run.pk).update(queued_at=timezone.now() - timedelta(minutes=5))
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    health.readiness = health.Readiness()
    facts = facts_of(boss.get(PAGE))
    assert facts["Workers"] == ("needs attention none Runs wait, and no worker is at work. Start one: agentops worker")
    assert facts["Oldest queued run"].startswith("needs attention waits for 5 min")
    assert facts["Broker"].startswith("needs attention ConnectionError Look at the Redis server")


def test_sinks_with_problems_are_listed(boss: Client) -> None:
    project = make_project("alpha")
    good, meant, refused = (make_sink(project, "jsonl", {}, name=name) for name in ("good", "meant", "refused"))
    boss.get(PAGE)
    with CaptureQueriesContext(connection) as few:
        assert "3 sinks: all work" in boss.get(PAGE).content.decode()
    type(meant).objects.filter(pk=meant.pk).update(is_enabled=False)
    disable(refused, "the receiver answered 401")
    for number in range(5):
        failing = make_sink(project, "jsonl", {}, name=f"failing-{number}")
        SinkCursor.objects.filter(pk=failing.pk).update(failures=3, last_error="no space <b>")
    with CaptureQueriesContext(connection) as many:
        page = boss.get(PAGE).content.decode()
    assert len(many) == len(few)
    assert "the receiver answered 401" in page
    assert "no space &lt;b&gt;" in page
    names = re.findall(r'settings/sinks/[0-9a-f-]+">([\w-]+)<', html.unescape(page))
    assert names == ["failing-0", "failing-1", "failing-2", "failing-3", "failing-4", "refused"]
    assert good.name not in names

    # A sink of the whole site is behind if it lacks events of any project.
    site = Sink.objects.create(project=None, name="everything", kind="jsonl", origin=Sink.Origin.ENVIRONMENT)
    run = make_run(make_agent(project))
    append(run, "a")
    # Event IDs continue after those used in other tests.
    SinkCursor.objects.create(sink=site, event_id=newest_event())
    append(run, "b")
    with time_machine.travel(timezone.now() + timedelta(minutes=2)):
        rows = [" ".join(row.text.split()) for row in parse(boss.get(PAGE).content.decode()).walk() if row.tag == "tr"]
    [row] = [row for row in rows if "everything" in row]
    assert re.fullmatch(
        r"all projects everything files of the workers behind 2 min \d\d s, 1 event 0 It is behind.*", row
    )


def rows_of(answer: Any, title: str) -> list[str]:
    """Return the rows of a table, each in one line."""
    section = answer.content.decode().partition(f'<section aria-labelledby="{title}">')[2].partition("</section>")[0]
    return [" ".join(row.text.split()) for row in parse(section).walk() if row.tag == "tr"][1:]


def test_workers_are_listed_with_their_queues_and_queues_without_one_are_named(boss: Client) -> None:
    run = make_run(make_agent(make_project("alpha"), queue="gpu"))
    answer = boss.get(PAGE)
    assert facts_of(answer)["Workers"] == "good none"
    assert "Queue gpu" not in facts_of(answer)
    assert "No worker process has been seen" in answer.content.decode()
    worker.announce("host:1:a", ["default", "batch"], 4)
    worker.announce("host.example:2:b", ["default"], 8)
    other = make_run(make_agent(make_project("beta")))
    # Like a process that tries a run alone: the run belongs to the worker that started it.
    assert transitions.claim(other.pk, f"host.example:2:b{CHILD_SEPARATOR}1")

    answer = boss.get(PAGE)

    assert facts_of(answer)["Workers"] == "good 2: 1 with runs, 1 idle"
    assert facts_of(answer)["Queue gpu"].startswith(
        "needs attention 1 run waits, and no worker serves it Start a worker for gpu"
    )
    busy, idle = rows_of(answer, "workers-title")
    assert idle.startswith("host:1:a default, batch idle 4 ")
    assert busy.startswith("host.example:2:b default 1 8 ")
    [slice_row] = rows_of(answer, "slices-title")
    assert slice_row.startswith(f"{other.agent.slug} beta host.example:2:b{CHILD_SEPARATOR}1 1 ")
    assert f'href="/runs/{other.pk}"' in answer.content.decode()
    assert f'href="/runs/{run.pk}"' not in answer.content.decode()


def test_the_list_of_active_runs_is_limited(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_page, "MAX_LISTED", 1)
    agent = make_agent(make_project("alpha"))
    first, second = make_run(agent), make_run(agent)
    for run in (first, second):
        assert transitions.claim(run.pk, "host:1:a")
    Attempt.objects.filter(run=first).update(claimed_at=Now() - timedelta(seconds=90))

    answer = boss.get(PAGE)

    [row] = rows_of(answer, "slices-title")
    assert row.startswith(f"{agent.slug} alpha host:1:a 1 ")
    assert re.search(r"1 min 3\d s</span> ago", answer.content.decode())
    assert "These are the 1 that were claimed first." in answer.content.decode()


def test_runs_that_wait_for_a_place_are_counted(boss: Client) -> None:
    full, free = make_agent(make_project("alpha"), max_running=1), make_agent(make_project("beta"))
    assert transitions.claim(make_run(full).pk, "host:1:a")
    for agent in (full, full, free):
        make_run(agent)

    assert facts_of(boss.get(PAGE))["Runs that wait for a place"] == f"2: alpha/{full.slug} (2)"


def test_the_recovery_time_of_runs_of_dead_workers_is_measured(boss: Client) -> None:
    agent, now = make_agent(make_project("alpha")), database_clock.now()
    for seconds, hours in [(10, 1), (22, 2), (400, 3), (5000, 30)]:
        run, died_at = make_run(agent), now - timedelta(hours=hours)
        for epoch in (1, 2):
            assert transitions.claim(run.pk, f"host:{seconds}:{epoch}")
            transitions.expire_leases(f"host:{seconds}:{epoch}")
        Attempt.objects.filter(run=run, epoch=1).update(claimed_at=died_at, ended_at=died_at)
        Attempt.objects.filter(run=run, epoch=2).update(claimed_at=died_at + timedelta(seconds=seconds))

    facts = facts_of(boss.get(PAGE))

    # No worker has taken them over a second time.
    assert facts["Runs whose worker is gone"].startswith("needs attention 4 ")
    assert facts["Time until a run of a dead worker continues"] == (
        "median 22 s, longest 6 min 40 s (3 runs in the last 24 hours)"
    )


@pytest.mark.redis
def test_messages_in_redis_are_counted(boss: Client, redis_broker: str) -> None:
    waiting, claimed = make_run(make_agent(make_project("alpha"), queue="gpu")), make_run()
    assert transitions.claim(claimed.pk, "host:1:a")
    AgentRun.objects.filter(pk=waiting.pk).update(
        queued_at=Now() - timedelta(hours=1), message_sent_at=Now() - timedelta(minutes=2)
    )
    empty_broker(redis_broker)
    # The first message is old, but its run is no longer queued.
    send(redis_broker, claimed.pk, queue="gpu")
    send(redis_broker, waiting.pk, queue="gpu")
    send(redis_broker, waiting.pk, queue="gpu", priority=0)

    answer = boss.get(PAGE)

    assert rows_of(answer, "queues-title") == ["default 0 –", "gpu 3 0: 1; 6: 2", "upkeep 0 –"]
    assert facts_of(answer)["Oldest message"].startswith("needs attention waits for 2 min 0")


@pytest.mark.redis
def test_a_site_without_a_clock_has_a_warning(boss: Client, redis_broker: str, settings: Any) -> None:
    assert facts_of(boss.get(PAGE))["Clock"] == (
        "needs attention no sweep so far No clock: start agentops worker --beat"
    )
    settings.AGENTOPS_SWEEP_S = 5.0
    sweep()
    assert re.fullmatch(r"good last sweep [\d.]+ m?s ago", facts_of(boss.get(PAGE))["Clock"])
    Chore.objects.update(taken_at=Now() - timedelta(seconds=16))
    assert facts_of(boss.get(PAGE))["Clock"] == (
        "needs attention last sweep 16 s ago No clock: start agentops worker --beat"
    )


@pytest.mark.parametrize("port", ["refused", "silent"])
def test_a_redis_that_is_down_does_not_break_the_page(
    boss: Client, settings: Any, monkeypatch: pytest.MonkeyPatch, port: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        settings.REDIS_URL = f"redis://127.0.0.1:{server.getsockname()[1] if port == 'silent' else 1}/0"
        use_broker(settings.REDIS_URL, monkeypatch)
        answer = boss.get(PAGE)
    assert answer.status_code == 200
    assert facts_of(answer)["Oldest message"] == (
        "needs attention unknown: Redis has not answered within 1 s Look at the Redis server and REDIS_URL."
    )
    assert "The lengths of its queues are unknown." in answer.content.decode()


def test_every_readiness_check_has_a_title() -> None:
    assert set(health.readiness.check()) == set(health_facts.READY_TEXTS)
