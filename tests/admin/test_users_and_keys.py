"""What can be changed in the administration: users, their sessions, and the end of API keys. All of it is audited."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from agentops.accounts.keys import create_key
from agentops.accounts.models import ApiKey, AuditEntry, Project
from tests.support.admin_rows import list_url
from tests.support.factories import PASSWORD, make_person, session_of

pytestmark = pytest.mark.usefixtures("cheap_passwords")


def test_keys_are_revoked(client: Client, project: Project) -> None:
    made = [create_key(project, name=f"k{n}", scopes=["read"], actor="test") for n in range(2)]
    form = {"action": "revoke", "index": "0", "_selected_action": [str(new.key.pk) for new in made]}
    page = client.get(list_url(ApiKey)).content.decode()
    # The prefix is public, although it looks like the start of a key.
    assert made[0].key.prefix in page
    assert made[0].plain not in page

    assert "API keys revoked: 2." in client.post(list_url(ApiKey), form, follow=True).content.decode()
    assert "API keys revoked: 0." in client.post(list_url(ApiKey), form, follow=True).content.decode()
    assert not ApiKey.objects.filter(revoked_at=None).exists()
    assert set(AuditEntry.objects.filter(action="key.revoked").values_list("actor", "door")) == {("user:boss", "admin")}
    assert AuditEntry.objects.filter(action="key.revoked").count() == 2


def test_sessions_are_ended(client: Client, project: Project) -> None:
    person, bystander = make_person(project), make_person(project)
    theirs, others = Client(), Client()
    theirs.cookies["sessionid"] = session_of(person)
    others.cookies["sessionid"] = session_of(bystander)
    session_of(person)
    assert theirs.get(f"/p/{project.slug}/runs").status_code == 200

    form = {"action": "end_sessions", "index": "0", "_selected_action": str(person.pk)}
    told = client.post("/admin/auth/user/", form, follow=True).content.decode()

    assert "Sessions ended: 2, of 1 users." in told
    assert theirs.get(f"/p/{project.slug}/runs").status_code == 302
    assert others.get(f"/p/{project.slug}/runs").status_code == 200
    assert AuditEntry.objects.get(action="sessions.ended").after == {"ended": 2}


def test_changes_of_users_are_audited(client: Client) -> None:
    form = {"username": "new", "usable_password": "true", "password1": PASSWORD, "password2": PASSWORD}
    assert client.post("/admin/auth/user/add/", form).status_code == 302
    person = User.objects.get(username="new")
    page = client.get(f"/admin/auth/user/{person.pk}/change/").content.decode()
    for without_meaning in ("is_staff", "user_permissions", "groups"):
        assert without_meaning not in page
    changed = {"username": "new", "is_superuser": "on", "is_active": "on"}
    changed |= {"date_joined_0": "2026-01-01", "date_joined_1": "00:00"}
    assert client.post(f"/admin/auth/user/{person.pk}/change/", changed).status_code == 302
    assert client.post(f"/admin/auth/user/{person.pk}/delete/", {"post": "yes"}).status_code == 302

    entries = {entry.action: entry for entry in AuditEntry.objects.filter(object_id=str(person.pk))}
    assert set(entries) == {"user.created", "user.changed", "user.deleted"}
    assert "Superuser status" in entries["user.changed"].after["fields"]
    assert PASSWORD not in str([entry.after for entry in entries.values()])


def test_several_users_are_deleted_with_an_entry_for_each(client: Client) -> None:
    people = [User.objects.create_user(name) for name in ("ann", "bob")]
    form = {"action": "delete_selected", "post": "yes", "_selected_action": [str(person.pk) for person in people]}

    assert client.post("/admin/auth/user/", form).status_code == 302

    assert not User.objects.filter(pk__in=[person.pk for person in people]).exists()
    assert AuditEntry.objects.filter(action="user.deleted").count() == 2
