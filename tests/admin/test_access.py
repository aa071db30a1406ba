"""The administration is for superusers: neither staff status nor Django's permissions open any page of it."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from agentops.accounts.models import AuditEntry, Project, Role
from runs.models import AgentRun
from tests.support.admin_rows import add_url, fill, list_url, page_url
from tests.support.factories import make_person

BEAT = "/admin/django_celery_beat/periodictask/"


@pytest.mark.parametrize("role", [None, Role.ADMIN])
def test_staff_with_all_permissions_cannot_enter(project: Project, role: Role | None) -> None:
    run = fill(project, rows=1)
    person = make_person(project, role) if role else User.objects.create_user("clerk")
    person.is_staff = True
    person.save()
    person.user_permissions.set(Permission.objects.all())
    client = Client()
    client.force_login(person)

    for url in ("/admin/", list_url(AgentRun), page_url(run), "/admin/auth/user/", BEAT):
        assert client.get(url)["Location"] == f"/admin/login/?next={url}"
        assert client.get(url, follow=True).status_code == 403
        assert client.post(url, {"action": "stop"}).status_code == 302
    assert client.post("/admin/runs/agentrun/check/").status_code == 302
    assert "/admin/" not in client.get("/account").content.decode()


def test_a_superuser_enters_without_staff_status_until_deactivated(client: Client, boss: User) -> None:
    User.objects.filter(pk=boss.pk).update(is_staff=False)
    assert client.get("/admin/").status_code == 200
    assert client.get(BEAT).status_code == 200
    assert "/admin/" in client.get("/account").content.decode()

    User.objects.filter(pk=boss.pk).update(is_superuser=False)
    assert client.get("/admin/").status_code == 302


def test_no_page_searches_for_related_objects(client: Client) -> None:
    """Django's own would show texts that are not redacted."""
    asked = "/admin/autocomplete/?app_label=runs&model_name=agentversion&field_name=agent&term="
    assert client.get(asked).status_code == 404


def test_the_history_of_an_object_is_its_audit_log(client: Client, project: Project) -> None:
    run = fill(project, rows=1)
    about = {"project": project, "actor": "test", "object_type": "runs.agentrun"}
    AuditEntry.objects.create(**about, action="run.this_one", object_id=str(run.pk))
    AuditEntry.objects.create(**about, action="run.another", object_id=str(project.pk))

    page = client.get(page_url(run, "history"), follow=True).content.decode()

    assert "run.this_one" in page
    assert "run.another" not in page
    assert client.get(add_url(AuditEntry)).status_code == 403
