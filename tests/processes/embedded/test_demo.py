"""Test the demo of a new site, its first login, and the leases of a dead worker."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User

from agentops.accounts.access import SYSTEM
from agentops.accounts.memberships import create_project
from agentops.accounts.models import Membership, Project
from runs import demo
from runs.lifecycle import transitions
from runs.models import Agent, AgentRun, Attempt
from runs.statuses import RunStatus
from runs.upkeep import invariants
from tests.support.factories import drive, make_agent, make_run
from timeline.events import EventType
from timeline.models import Event

pytestmark = pytest.mark.django_db


def test_the_demo_is_created_once() -> None:
    assert demo.seed()
    assert not demo.seed()

    runs = AgentRun.objects.order_by("created_at", "pk")
    assert [run.agent_config["agent_id"] for run in runs] == [player.agent_id for player in demo.PLAYERS]
    assert {run.status for run in runs} == {"queued"}
    assert {tuple(run.labels) for run in runs} == {("demo",)}
    # The live one comes first, and its title says so.
    assert runs[0].title.startswith("Demo replay, live")
    assert runs[0].agent_config["settings"] == {"pace": 30}
    assert {run.project.slug for run in runs} == {"demo"}


def test_the_runs_of_the_demo_can_be_played() -> None:
    demo.seed()
    run = drive(AgentRun.objects.get(agent__slug="claude-code-5c"))

    assert (run.state, run.step_count) == (RunStatus.COMPLETED, 5)
    assert not invariants.check()


def test_the_demo_fills_an_empty_project_named_demo() -> None:
    project = create_project("demo", "Ours", actor=SYSTEM)

    assert demo.seed()
    assert AgentRun.objects.filter(project=project).count() == len(demo.PLAYERS)


def test_the_demo_does_not_change_a_project_in_use() -> None:
    make_agent(create_project("demo", "Ours", actor=SYSTEM))

    assert not demo.seed()
    assert (Agent.objects.count(), AgentRun.objects.count()) == (1, 0)


def test_runs_of_deleted_agents_are_not_created_again() -> None:
    demo.seed()
    Agent.objects.all().delete()

    assert not demo.seed()


# --- First login ------------------------------------------------------------------------------------------------


def test_the_first_login_is_an_admin_with_a_password() -> None:
    demo.seed()
    login = demo.first_login()

    admin = User.objects.get()
    assert (login.name, admin.username, admin.is_superuser, admin.is_staff) == ("admin", "admin", True, True)
    assert login.password is not None
    assert len(login.password) == 20
    assert admin.check_password(login.password)
    assert Membership.objects.get(user=admin).role == "admin"
    assert demo.first_login() == ("admin", None)


def test_passwords_differ() -> None:
    first = demo.first_login().password
    User.objects.all().delete()

    assert demo.first_login().password != first


@pytest.mark.parametrize("known", ["ann", "admin"])
def test_no_admin_is_created_if_a_user_exists(known: str) -> None:
    User.objects.create_superuser(known, password="long enough for anyone")

    assert demo.first_login() == (known, None)
    assert User.objects.count() == 1


def test_a_deactivated_admin_is_not_reactivated() -> None:
    User.objects.create_superuser("admin", password="long enough for anyone", is_active=False)

    assert demo.first_login() == ("admin", None)
    assert not User.objects.get().is_active


def test_an_admin_is_created_without_a_demo() -> None:
    assert demo.first_login().password
    assert not Project.objects.exists()


# --- The leases of a dead worker --------------------------------------------------------------------------------


def test_the_leases_of_a_dead_worker_expire_at_once() -> None:
    dead, others = make_run(), make_run()
    assert transitions.claim(dead.pk, "box:1:dead")
    assert transitions.claim(others.pk, "box:2:alive")
    assert transitions.claim(dead.pk, "box:3:next") is None
    # Held by a process that the dead worker had started for a single run.
    assert transitions.claim(make_run().pk, "box:1:dead.7")

    assert transitions.expire_leases("box:1:dead") == 2
    assert transitions.expire_leases("") == 0
    assert transitions.claim(others.pk, "box:3:next") is None
    claimed = transitions.claim(dead.pk, "box:3:next")

    assert claimed is not None
    assert (claimed.epoch, claimed.died, claimed.deaths) == (2, True, 0)
    assert Event.objects.filter(log=dead.pk).order_by("seq").last().type == EventType.RUN_RECOVERED
    assert list(Attempt.objects.filter(run=dead).order_by("epoch").values_list("end_reason", flat=True)) == ["died", ""]
    # A worker that was wrongly considered dead cannot renew its lease, and so cannot write.
    assert not transitions.renew(dead.pk, 1)


def test_without_a_previous_worker_no_lease_expires() -> None:
    run = make_run()
    assert transitions.claim(run.pk, "box:1:alive")

    assert transitions.expire_leases("") == 0
