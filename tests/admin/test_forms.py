"""Admin forms call the same functions as every other entry point, with the same validation and audit entries."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from agentops.accounts.keys import authenticate, create_key
from agentops.accounts.models import ApiKey, AuditEntry, Membership, Project, Role
from runs.models import Agent
from tests.support.accounts import PASSWORD, make_person, session_of
from tests.support.admin.every_table import add_url, list_url, page_url
from tests.support.admin.staff import client_of, make_staff
from tests.support.attempts import forget_attempts
from tests.support.factories import make_agent

pytestmark = pytest.mark.usefixtures("cheap_passwords")


@pytest.fixture(autouse=True)
def no_tries_yet() -> None:
    forget_attempts()


def audited(action: str) -> int:
    return AuditEntry.objects.filter(action=action).count()


# --- Projects ----------------------------------------------------------------------------------------------------


def test_a_superuser_creates_a_project(client: Client) -> None:
    assert client.post(add_url(Project), {"slug": "gamma", "name": " Gamma "}).status_code == 302

    assert Project.objects.get(slug="gamma").name == "Gamma"
    assert audited("project.created") == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"slug": "alpha", "name": "A"}, "already exists"),
        ({"slug": "Not a slug", "name": "A"}, "is not a valid slug"),
        ({"slug": "ok", "name": "a\x1bb"}, "control characters"),
        ({"slug": "ok", "name": ""}, "This field is required"),
    ],
)
def test_invalid_projects_show_the_error_at_the_field(
    client: Client, project: Project, given: dict[str, str], said: str
) -> None:
    answer = client.post(add_url(Project), given)

    assert answer.status_code == 200
    assert said in answer.content.decode()
    assert Project.objects.count() == 1


def test_a_project_admin_changes_the_project(project: Project) -> None:
    client = client_of(make_staff(project, Role.ADMIN))

    assert client.post(page_url(project), {"name": "New", "retention_days": "30"}).status_code == 302
    project.refresh_from_db()
    assert (project.name, project.retention_days) == ("New", 30)
    assert client.post(page_url(project), {"name": "New", "retention_days": ""}).status_code == 302
    project.refresh_from_db()
    assert project.retention_days is None
    assert b"1 to 36500" in client.post(page_url(project), {"name": "New", "retention_days": "0"}).content
    assert audited("project.changed") == 2
    assert client.get(add_url(Project)).status_code == 403


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
def test_others_change_nothing(project: Project, role: Role) -> None:
    client, agent = client_of(make_staff(project, role)), make_agent(project)
    membership = Membership.objects.get(project=project)

    for row, form in ((project, {"name": "X"}), (agent, {"model": "x"}), (membership, {"role": "admin"})):
        page = client.get(page_url(row))
        assert page.status_code == 200
        assert b'name="_save"' not in page.content
        assert client.post(page_url(row), form).status_code == 403
    for model in (Project, Agent, Membership, ApiKey):
        assert client.get(add_url(model)).status_code == 403
        assert client.post(add_url(model), {}).status_code == 403
    assert client.post(page_url(membership, "delete"), {"post": "yes"}).status_code == 403


# --- Members -----------------------------------------------------------------------------------------------------


def test_members_are_added_changed_and_removed(project: Project) -> None:
    client, person = client_of(make_staff(project)), make_person()

    form = {"project": str(project.pk), "user_name": person.username, "role": "viewer"}
    assert client.post(add_url(Membership), form).status_code == 302
    membership = Membership.objects.get(user=person)
    assert "is already a member" in client.post(add_url(Membership), form).content.decode()
    assert client.post(page_url(membership), {"role": "operator"}).status_code == 302
    membership.refresh_from_db()
    assert membership.role == Role.OPERATOR
    assert client.get(page_url(membership, "delete")).status_code == 200
    assert client.post(page_url(membership, "delete"), {"post": "yes"}).status_code == 302
    assert not Membership.objects.filter(user=person).exists()
    assert [audited(f"member.{word}") for word in ("added", "role_changed", "removed")] == [2, 1, 1]


def test_the_last_admin_cannot_be_removed(project: Project) -> None:
    staff = make_staff(project)
    client, membership = client_of(staff), Membership.objects.get(user=staff)

    assert "last admin" in client.post(page_url(membership), {"role": "viewer"}).content.decode()
    answer = client.post(page_url(membership, "delete"), {"post": "yes"}, follow=True)
    assert "last admin" in answer.content.decode()
    assert Membership.objects.get(user=staff).role == Role.ADMIN


def test_staff_cannot_add_members_to_a_foreign_project(project: Project, other: Project) -> None:
    staff = make_staff(project)

    form = {"project": str(other.pk), "user_name": staff.username, "role": "admin"}
    answer = client_of(staff).post(add_url(Membership), form)

    assert "not one of the available choices" in answer.content.decode()
    assert not Membership.objects.filter(project=other).exists()


# --- Keys --------------------------------------------------------------------------------------------------------


def key_form(project: Project, **changes: Any) -> dict[str, Any]:
    return {"project": str(project.pk), "name": "runner", "scopes": ["ingest", "read"], "password": PASSWORD, **changes}


def test_a_new_key_is_displayed_once(project: Project) -> None:
    client = client_of(make_staff(project, password=PASSWORD))

    answer = client.post(add_url(ApiKey), key_form(project))

    assert answer.status_code == 200
    assert "no-store" in answer["Cache-Control"]
    [plain] = set(re.findall(r"aok_test_[0-9A-Za-z]{12}_[0-9A-Za-z]{49}", answer.content.decode()))
    key = authenticate(plain)
    assert (key.project, key.scopes) == (project, ["ingest", "read"])
    assert audited("key.created") == 1
    # The prefix is public, although it looks like the start of a key.
    assert key.prefix in client.get(list_url(ApiKey)).content.decode()
    for url in (list_url(ApiKey), page_url(key), "/admin/"):
        assert plain not in client.get(url).content.decode()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"password": "wrong"}, "Wrong password"),
        ({"password": ""}, "This field is required"),
        ({"name": "\x1b[2J"}, "control characters"),
        ({"scopes": []}, "This field is required"),
        ({"scopes": ["everything"]}, "not one of the available choices"),
        ({"expires_at": "2001-01-01T00:00"}, "expiry must be in the future"),
        ({"expires_at": "soon"}, "valid date"),
    ],
)
def test_invalid_forms_create_no_key(project: Project, changes: dict[str, Any], said: str) -> None:
    answer = client_of(make_staff(project, password=PASSWORD)).post(add_url(ApiKey), key_form(project, **changes))

    assert said in answer.content.decode()
    assert not ApiKey.objects.exists()


def test_the_key_form_cannot_be_used_to_guess_passwords(project: Project) -> None:
    client = client_of(make_staff(project, password=PASSWORD))
    for number in range(5):
        client.post(add_url(ApiKey), key_form(project, password="wrong"), REMOTE_ADDR=f"2001:db8::{number}")

    client.defaults["REMOTE_ADDR"] = "2001:db8::ffff"
    assert "too many attempts" in client.post(add_url(ApiKey), key_form(project)).content.decode()
    assert not ApiKey.objects.exists()


def test_keys_are_revoked(client: Client, project: Project) -> None:
    made = [create_key(project, name=f"k{n}", scopes=["read"], actor="test").key for n in range(2)]
    form = {"action": "revoke", "index": "0", "_selected_action": [str(key.pk) for key in made]}

    assert "API keys revoked: 2." in client.post(list_url(ApiKey), form, follow=True).content.decode()
    assert "already revoked" in client.post(list_url(ApiKey), form, follow=True).content.decode()
    assert not ApiKey.objects.filter(revoked_at=None).exists()
    assert audited("key.revoked") == 2


def test_only_a_project_admin_revokes_keys(project: Project) -> None:
    key = create_key(project, name="k", scopes=["read"], actor="test").key
    form = {"action": "revoke", "index": "0", "_selected_action": str(key.pk)}

    told = client_of(make_staff(project, Role.OPERATOR)).post(list_url(ApiKey), form, follow=True)

    assert "this requires the role admin" in told.content.decode()
    assert ApiKey.objects.filter(revoked_at=None).exists()


# --- Agents ------------------------------------------------------------------------------------------------------


def agent_form(project: Project, **changes: str) -> dict[str, str]:
    return {
        "project": str(project.pk), "slug": "helper", "provider": "fixture", "model": "claude-code-5c",
        "instructions": "Help.\r\nWell.", "tools": '["recorded"]', "max_steps": "7", "settings": "", "policies": "{}",
        **changes,
    }  # fmt: skip


def test_agents_are_created_and_changed(project: Project) -> None:
    client = client_of(make_staff(project))

    answer = client.post(add_url(Agent), agent_form(project))
    assert answer.status_code == 302, answer.content.decode()
    agent = Agent.objects.get(slug="helper")
    assert (agent.instructions, agent.tools, agent.max_steps, agent.version) == ("Help.\nWell.", ["recorded"], 7, 1)
    assert "has an agent" in client.post(add_url(Agent), agent_form(project)).content.decode()
    assert client.post(page_url(agent), agent_form(project, max_steps="8", slug="other")).status_code == 302
    agent.refresh_from_db()
    assert (agent.slug, agent.max_steps, agent.version) == ("helper", 8, 2)
    assert (audited("agent.created"), audited("agent.changed")) == (1, 1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"slug": "Not One"}, "is not a valid slug"),
        ({"provider": "../../etc"}, "etc"),
        ({"model": "nope"}, "nope"),
        ({"tools": '["no_such_tool"]'}, "no_such_tool"),
        ({"tools": "[1"}, "Not valid JSON"),
        ({"tools": '"recorded"'}, "valid list"),
        ({"settings": '{"a": 1, "a": 2}'}, "duplicate key"),
        ({"settings": "[" * 100_000}, "nested too deeply"),
        ({"settings": '{"a": NaN}'}, "not a finite number"),
        ({"max_steps": "0"}, "greater than or equal to 1"),
        ({"max_steps": "x"}, "whole number"),
        ({"policies": "<script>"}, "Not valid JSON"),
    ],
)
def test_invalid_agents_show_the_error_at_the_field(project: Project, changes: dict[str, str], said: str) -> None:
    answer = client_of(make_staff(project)).post(add_url(Agent), agent_form(project, **changes))

    text = answer.content.decode()
    assert answer.status_code == 200
    assert said in text
    assert "<script>" not in text.replace('<script src="', "")
    assert not Agent.objects.exists()


# --- People ------------------------------------------------------------------------------------------------------


def test_sessions_are_ended(client: Client, project: Project) -> None:
    person, bystander = make_person(project), make_person(project)
    theirs = Client()
    theirs.cookies["sessionid"] = session_of(person)
    others = Client()
    others.cookies["sessionid"] = session_of(bystander)
    session_of(person)
    assert theirs.get(f"/p/{project.slug}/runs").status_code == 200

    form = {"action": "end_sessions", "index": "0", "_selected_action": str(person.pk)}
    told = client.post("/admin/auth/user/", form, follow=True).content.decode()

    assert "Sessions ended: 2, of 1 users." in told
    assert theirs.get(f"/p/{project.slug}/runs").status_code == 302
    assert others.get(f"/p/{project.slug}/runs").status_code == 200
    assert AuditEntry.objects.get(action="sessions.ended").after == {"ended": 2}


def test_changes_of_users_are_audited(client: Client, project: Project) -> None:
    form = {"username": "new", "usable_password": "true", "password1": PASSWORD, "password2": PASSWORD}
    assert client.post("/admin/auth/user/add/", form).status_code == 302
    person = User.objects.get(username="new")
    changed = {
        "username": "new",
        "is_staff": "on",
        "is_active": "on",
        "date_joined_0": "2026-01-01",
        "date_joined_1": "00:00",
    }
    assert client.post(f"/admin/auth/user/{person.pk}/change/", changed).status_code == 302
    assert client.post(f"/admin/auth/user/{person.pk}/delete/", {"post": "yes"}).status_code == 302

    [entry] = AuditEntry.objects.filter(action="user.changed")
    assert "Staff status" in entry.after["fields"]
    assert PASSWORD not in str([e.after for e in AuditEntry.objects.all()])
    assert (audited("user.created"), audited("user.deleted")) == (1, 1)
