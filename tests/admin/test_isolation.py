"""Staff who are no superusers see their own projects' rows and nothing of any other.

Differential: every page that somebody of project A can reach is the same, to the byte, whether project B is empty or
full; and what belongs to B is answered as what is not there.
"""

from __future__ import annotations

import re
from uuid import uuid4

from django.contrib.auth.models import Permission, User
from django.db.models import Model
from django.test import Client
from django.utils import timezone

from agentops.projects.models import Membership, Project, Role
from runs.models import AgentRun
from tests.support.admin.every_table import (
    GLOBAL,
    OF_RUNS,
    add_url,
    fill,
    fill_global,
    filter_urls,
    list_url,
    page_url,
    registered,
    rows_of,
)
from tests.support.admin.staff import client_of, make_staff
from timeline.models import Event, Log, Tombstone

#: Made anew for every answer.
FRESH = re.compile(
    r'csrfmiddlewaretoken" value="[^"]+"|<code>[0-9a-f]{32}</code>|data-copy="[0-9a-f]{32}"|data-now="[^"]+"'
)


def seen(client: Client, url: str) -> tuple[int, str]:
    answer = client.get(url)
    return answer.status_code, FRESH.sub("", answer.content.decode())


def everything(client: Client, project: Project, own: dict[type[Model], list[Model]]) -> dict[str, tuple[int, str]]:
    """All that can be reached from the index: lists, their filters and searches, rows, forms and choosers."""
    found: dict[str, tuple[int, str]] = {}
    urls = [
        "/admin/",
        "/admin/projects/",
        "/admin/runs/",
        "/admin/timeline/",
        "/admin/auth/user/",
        "/admin/auth/group/",
    ]
    for model in registered():
        base = list_url(model)
        found[base] = seen(client, base)
        urls += [f"{base}?q=beta", add_url(model), *filter_urls(model, found[base][1])[::2]]
        urls += [page_url(row) for row in own[model]] + [f"{base}?q={row.pk}" for row in own[model][:1]]
    for app, model_name, field in (
        *(("runs", "agentrun", "agent"), ("runs", "agentrun", "root_run"), ("runs", "agentrunmessage", "run")),
        *(("runs", "agent", "project"), ("projects", "membership", "user"), ("timeline", "event", "log")),
    ):
        asked = f"app_label={app}&model_name={model_name}&field_name={field}"
        urls += [f"/admin/autocomplete/?{asked}&term=", f"/admin/autocomplete/?{asked}&term=beta"]
    return found | {url: seen(client, url) for url in urls}


def test_a_full_neighbour_changes_not_a_byte(project: Project, other: Project) -> None:
    fill_global()
    fill(project)
    staff = make_staff(project)
    client = client_of(staff)
    own = {model: rows_of(model, project) if model not in GLOBAL else [] for model in registered()}
    client.get("/admin/")
    empty = everything(client, project, own)
    assert len(empty) > 100

    fill(other, rows=5, text="beta's own")
    make_staff(other)

    full = everything(client, project, own)
    assert full.keys() == empty.keys()
    assert [url for url in full if full[url] != empty[url]] == []
    assert not [url for url, (status, _) in empty.items() if status == 500]


def test_a_foreign_row_is_one_that_is_not_there(project: Project, other: Project) -> None:
    fill(other)
    fill(project)
    fill_global()
    client = client_of(make_staff(project))
    for model in registered():
        for row in [*model._default_manager.all()[:1]] if model in GLOBAL else rows_of(model, other):
            for page in ("change", "delete", "history"):
                url = page_url(row, page)
                unknown = url.replace(str(row.pk), str(uuid4()) if "-" in str(row.pk) else "987654321")
                assert seen(client, url) == seen(client, unknown), url
                assert seen(client, url)[0] in {403, 404}
            answer = client.post(page_url(row), {"name": "mine now"})
            assert answer.status_code in {403, 404}
        if model not in GLOBAL:
            run = rows_of(AgentRun, other)[0]
            for query in (f"project={other.pk}", f"run={run.pk}", f"root={run.pk}", f"parent={run.pk}", f"q={run.pk}"):
                text = client.get(f"{list_url(model)}?{query}", follow=True).content.decode()
                assert "beta's own" not in text
                assert f"/{run.pk}/change/" not in text


def test_somebody_of_two_projects_chooses_one(project: Project, other: Project) -> None:
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


def test_djangos_rights_are_needed_too(project: Project) -> None:
    run = fill(project)
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


def test_a_removed_membership_ends_it_at_once(project: Project, other: Project) -> None:
    """Asked anew with every request."""
    run = fill(project)
    staff = make_staff(project, Role.VIEWER)
    client = client_of(staff)
    assert client.get(page_url(run)).status_code == 200

    Membership.objects.filter(user=staff).delete()

    assert client.get(page_url(run)).status_code == 404


def test_nobody_makes_themselves_more(project: Project) -> None:
    """Django lets whoever may change people make superusers: here only superusers may."""
    staff = make_staff(project)
    client = client_of(staff)
    change = f"/admin/auth/user/{staff.pk}/change/"

    assert client.post(change, {"username": staff.username, "is_superuser": "on"}).status_code == 403
    assert client.get("/admin/auth/user/add/").status_code == 403
    assert client.get(f"/admin/auth/user/{staff.pk}/password/").status_code == 403
    assert not User.objects.get(pk=staff.pk).is_superuser


def test_what_is_being_removed_is_hidden_from_everyone(client: Client, project: Project) -> None:
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
