"""The health of the site: what needs attention and what to do, for superusers only."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from agentops.http import health
from agentops.projects.models import Role
from runs.lifecycle import worker_rows
from runs.models import AgentRun, Sink, SinkCursor
from runs.telemetry.sink_claims import disable
from tests.support.accounts import make_person
from tests.support.factories import make_agent, make_project, make_run
from tests.support.pages.parsed_page import parse
from tests.support.sinks import append, make_sink
from timeline.bulk.settled import newest_event

pytestmark = pytest.mark.django_db(transaction=True)
PAGE = "/system"


@pytest.fixture
def boss(monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setattr(health, "readiness", health.Readiness())
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    return client


def facts_of(answer: Any) -> dict[str, str]:
    """Each fact with its badge, its value and its advice, in one line."""
    facts = {}
    for group in parse(answer.content.decode()).all("health"):
        for row in group.elements:
            name, value = row.elements
            facts[name.text.strip()] = " ".join(value.text.split())
    return facts


def test_it_is_for_superusers(boss: Client) -> None:
    assert Client().get(PAGE)["Location"] == "/login?next=%2Fsystem"
    project = make_project("alpha")
    admin = Client()
    admin.force_login(make_person(project, Role.ADMIN))
    assert admin.get(PAGE).status_code == 403
    assert PAGE not in admin.get("/p/alpha/runs").content.decode()
    assert boss.post(PAGE).status_code == 405
    assert f'href="{PAGE}"' in boss.get("/p/alpha/runs").content.decode()


def test_each_fact_is_good_or_says_what_to_do(boss: Client, settings: Any) -> None:
    settings.REDIS_URL, settings.AGENTOPS_TESTING = "", True
    facts = facts_of(boss.get(PAGE))
    assert facts["Database"].startswith("good answers in ")
    assert facts["Migrations"] == "good all applied"
    assert facts["Broker"] == "good none: processes look into the database instead"
    assert facts["Oldest queued run"] == "good none"
    assert facts["Open event streams"] == "0 in this web process"
    product = "PostgreSQL" if connection.vendor == "postgresql" else "SQLite"
    assert re.search(rf"agentops \d.*Django \d.*Python \d.*{product} \d", facts["Versions"])
    assert re.fullmatch(r"[\d.]+\xa0?.B", facts["Size of the database"].replace(" ", ""))
    # agentops/checks.py says so of deployments, which have a database server.
    assert ("agentops.E003" in facts) == (connection.vendor == "postgresql")
    assert "agentops.W002" not in facts

    run = make_run(make_agent(make_project("alpha")))
    AgentRun.objects.filter(pk=run.pk).update(queued_at=timezone.now() - timedelta(minutes=5))
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    health.readiness = health.Readiness()
    facts = facts_of(boss.get(PAGE))
    assert facts["Workers with runs"] == (
        "needs attention none; idle workers are not counted Runs wait, and no worker is at work. "
        "Start one: agentops worker"
    )
    assert facts["Oldest queued run"].startswith("needs attention waits for 5 min")
    assert facts["Broker"].startswith("needs attention ConnectionError Look at the Redis server")


def test_sinks_that_need_attention_are_listed(boss: Client) -> None:
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

    # A sink of the whole site is behind with the events of any project.
    site = Sink.objects.create(project=None, name="everything", kind="jsonl", origin=Sink.Origin.ENVIRONMENT)
    run = make_run(make_agent(project))
    append(run, "a")
    # The IDs of events go on where those of other tests have ended.
    SinkCursor.objects.create(sink=site, event_id=newest_event())
    append(run, "b")
    with time_machine.travel(timezone.now() + timedelta(minutes=2)):
        rows = [" ".join(row.text.split()) for row in parse(boss.get(PAGE).content.decode()).walk() if row.tag == "tr"]
    [row] = [row for row in rows if "everything" in row]
    assert re.fullmatch(
        r"all projects everything files of the workers behind 2 min \d\d s, 1 event 0 It is behind.*", row
    )


def test_worker_processes_are_named_with_their_queues_and_queues_without_one(boss: Client) -> None:
    make_run(make_agent(make_project("alpha"), queue="gpu"))
    assert facts_of(boss.get(PAGE))["Worker processes"] == "none"
    assert "Queue gpu" not in facts_of(boss.get(PAGE))

    worker_rows.announce("host:1:a", ["default", "batch"], 4)

    facts = facts_of(boss.get(PAGE))
    assert facts["Worker processes"] == "host:1:a: default, batch"
    assert facts["Queue gpu"].startswith("needs attention 1 run waits, and no worker serves it Start a worker for gpu")
