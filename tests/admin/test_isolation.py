"""Staff who are not superusers see only rows of their projects.

Differential test: every page that a member of project A can open is byte-identical, whether project B is empty or full.
test_foreign_rows.py requests rows of B.
"""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission, User
from django.db.models import Model
from django.test import Client
from django.utils import timezone

from agentops.accounts.models import Membership, Project, Role
from runs.models import AgentRun
from tests.support.admin.every_table import (
    GLOBAL,
    OF_RUNS,
    OURS,
    add_url,
    fill,
    fill_global,
    filter_urls,
    list_url,
    page_url,
    registered,
    rows_of,
)
from tests.support.admin.staff import client_of, make_staff, seen
from timeline.models import Event, Log, Tombstone


def everything(client: Client, app: str, own: dict[type[Model], list[Model]]) -> dict[str, tuple[int, str]]:
    """Return all pages reachable from the index of an app: lists, filters, searches, rows, forms and choosers."""
    found: dict[str, tuple[int, str]] = {}
    urls = ["/admin/", f"/admin/{app}/", *CHOOSERS[app]]
    for model, rows in own.items():
        base = list_url(model)
        found[base] = seen(client, base)
        urls += [f"{base}?q=beta", add_url(model), *filter_urls(model, found[base][1])[-1:], *map(page_url, rows)]
    return found | {url: seen(client, url) for url in urls}


def chooser(app: str, model: str, field: str) -> tuple[str, str]:
    asked = f"/admin/autocomplete/?app_label={app}&model_name={model}&field_name={field}&term="
    return asked, f"{asked}beta"


#: Choosers of related rows, and the lists of users.
CHOOSERS = {
    "projects": (*chooser("projects", "membership", "user"), "/admin/auth/user/", "/admin/auth/group/"),
    "runs": (
        *(*chooser("runs", "agentrun", "agent"), *chooser("runs", "agentrun", "root_run")),
        *(*chooser("runs", "agentrunmessage", "run"), *chooser("runs", "agent", "project")),
    ),
    "timeline": chooser("timeline", "event", "log"),
}


@pytest.mark.slow
@pytest.mark.parametrize("app", OURS)
def test_pages_are_identical_with_a_full_or_empty_neighbour(project: Project, other: Project, app: str) -> None:
    fill_global()
    fill(project, rows=1)
    client = client_of(make_staff(project))
    models = [model for model in registered() if model._meta.app_label == app]
    own = {model: rows_of(model, project)[:1] if model not in GLOBAL else [] for model in models}
    client.get("/admin/")
    empty = everything(client, app, own)
    assert {empty[list_url(model)][0] for model in models} == {200}

    fill(other, rows=2, text="beta's own")
    make_staff(other)

    full = everything(client, app, own)
    assert full.keys() == empty.keys()
    assert [url for url in full if full[url] != empty[url]] == []
    assert not [url for url, (status, _) in empty.items() if status == 500]


def test_a_member_of_two_projects_chooses_one(project: Project, other: Project) -> None:
    fill(project, rows=2, text="of alpha")
    fill(other, rows=2, text="of beta")
    staff = make_staff(project)
    Membership.objects.create(project=other, user=staff, role=Role.VIEWER)
    client = client_of(staff)

    first = client.get(list_url(AgentRun)).content.decode()
    second = client.get(list_url(AgentRun), {"project": str(other.pk)}).content.decode()

    assert "of alpha" in first
    assert "of beta" not in first
    assert "of beta" in second
    assert "of alpha" not in second


def test_django_permissions_are_required_too(project: Project) -> None:
    run = fill(project, rows=1)
    staff = make_staff(project)
    staff.user_permissions.set(Permission.objects.filter(codename="view_agentrun"))
    client = client_of(staff)

    assert client.get(list_url(AgentRun)).status_code == 200
    text = client.get(page_url(run)).content.decode()
    assert "Attempts" not in text
    assert "Messages</a>" not in text
    for model in registered():
        if model is not AgentRun:
            assert client.get(list_url(model)).status_code == 403


def test_a_removed_membership_takes_effect_at_once(project: Project, other: Project) -> None:
    """Permissions are read on every request."""
    run = fill(project, rows=1)
    staff = make_staff(project, Role.VIEWER)
    client = client_of(staff)
    assert client.get(page_url(run)).status_code == 200

    Membership.objects.filter(user=staff).delete()

    assert client.get(page_url(run)).status_code == 404


def test_staff_cannot_extend_their_own_rights(project: Project) -> None:
    """Django allows any user with the change permission on users to create superusers; here only superusers may."""
    staff = make_staff(project)
    client = client_of(staff)
    change = f"/admin/auth/user/{staff.pk}/change/"

    assert client.post(change, {"username": staff.username, "is_superuser": "on"}).status_code == 403
    assert client.get("/admin/auth/user/add/").status_code == 403
    assert client.get(f"/admin/auth/user/{staff.pk}/password/").status_code == 403
    assert not User.objects.get(pk=staff.pk).is_superuser


@pytest.mark.slow
def test_rows_of_a_project_that_is_being_deleted_are_hidden_from_superusers(
    client: Client, project: Project, other: Project
) -> None:
    fill(project, rows=1, text="of alpha")
    fill(other, rows=1, text="of beta")
    models = [model for model in registered() if model not in GLOBAL]
    rows = {model: rows_of(model, other)[:1] for model in models}
    assert [model for model, [row] in rows.items() if client.get(page_url(row)).status_code != 200] == []
    Project.objects.filter(pk=other.pk).update(removed_at=timezone.now())

    assert [model for model, [row] in rows.items() if client.get(page_url(row)).status_code != 404] == []
    for model in models:
        page = client.get(list_url(model)).content.decode()
        assert page_url(rows[model][0]) not in page, model


def test_runs_being_deleted_are_hidden_from_everyone(client: Client, project: Project) -> None:
    run = fill(project, rows=2)
    rows = {model: rows_of(model, project)[:1] for model in [Log, Event, *OF_RUNS]}
    now = timezone.now()
    Tombstone.objects.create(
        id=run.pk, project=project, family=run.pk, created_at=now, reason="old", removed_by="test", removed_at=now
    )
    AgentRun.objects.filter(pk=run.pk).update(removed_at=now)

    assert client.get(page_url(run)).status_code == 404
    for model, found in rows.items():
        for row in found:
            hidden = getattr(row, "run_id", getattr(row, "log_id", row.pk)) == run.pk
            assert client.get(page_url(row)).status_code == (404 if hidden else 200), model
        assert f"run={run.pk}" not in client.get(list_url(model)).content.decode()
        assert f"/{run.pk}/change/" not in client.get(list_url(model)).content.decode()
