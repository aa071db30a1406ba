"""Archiving, the project list, the audit log and its CSV export, and a user's own account."""

from __future__ import annotations

import csv
import enum
import html
import itertools
import re
from datetime import UTC, datetime
from io import StringIO
from typing import Any

import pytest
import time_machine
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client

from agentops.accounts.access import SYSTEM, Action, Principal, actions_of, allowed_pairs, enter, may, project_for
from agentops.accounts.audit import record
from agentops.accounts.errors import AuthRequired, ProjectArchived, ProjectNotFound
from agentops.accounts.keys import create_key
from agentops.accounts.memberships import archive_project, unarchive_project
from agentops.accounts.models import AuditEntry, Project, Role
from agentops.base.refusals import Forbidden
from runs.access import SECRETS_REVEALED
from runs.actions.claude_transcripts import TRANSCRIPT_DELETED
from tests.support.factories import PASSWORD, make_person

AUDIT = "/p/alpha/settings/audit"
#: Actions that an archived project still allows to users who have the right.
READING = {Action.READ, Action.VIEW_IMPORTS, Action.EXPORT, Action.REVEAL, Action.MANAGE, Action.SUPER}


@pytest.fixture
def admin(member: Any) -> Client:
    client = Client()
    client.force_login(member("alice", Role.ADMIN))
    return client


def text_of(answer: Any) -> str:
    return html.unescape(re.sub("</?bdi>", "", answer.content.decode()))


# --- Archived projects ---------------------------------------------------------------------------------------------


def test_an_archived_project_is_read_only_for_everyone(cast: dict[str, Principal], project: Project) -> None:
    before = {who: actions_of(principal, project.pk) for who, principal in cast.items()}

    archive_project(project, actor=SYSTEM)
    archive_project(project, actor=SYSTEM)

    for who, principal in cast.items():
        assert actions_of(principal, project.pk) == before[who] & READING, who
        for action in before[who] - READING:
            assert not may(principal, action, project.pk)
            assert allowed_pairs([(principal, project.pk)], action) == set()
            with pytest.raises(ProjectArchived):
                enter(principal, "alpha", action)
        for action in set(Action) - before[who]:
            with pytest.raises((AuthRequired, ProjectNotFound, Forbidden)):
                project_for(principal, "alpha", action)
    assert project_for(SYSTEM, "alpha", Action.OPERATE).archived_at is not None
    assert not enter(cast["admin"], "alpha", Action.READ).visible.exists()
    unarchive_project(project, actor="cli:alice")
    assert {who: actions_of(principal, project.pk) for who, principal in cast.items()} == before
    entries = AuditEntry.objects.filter(action__contains="archived").order_by("pk")
    assert [(each.action, each.door) for each in entries] == [
        ("project.archived", ""),
        ("project.unarchived", "command"),
    ]


def test_a_key_of_an_archived_project_cannot_ingest(project: Project, client: Client) -> None:
    key = create_key(project, name="runner", scopes=["ingest", "read"], actor=SYSTEM).plain
    archive_project(project, actor=SYSTEM)

    def send(method: str, url: str) -> Any:
        return client.generic(method, url, "{}", "application/json", headers={"Authorization": f"Bearer {key}"})

    refused = send("POST", "/api/internal/agent-events")
    assert (refused.status_code, refused.json()["code"]) == (403, "project_archived")
    assert send("GET", "/api/projects/alpha/agent-runs").status_code == 200


# --- The list of projects ------------------------------------------------------------------------------------------


def test_superusers_create_projects_and_become_their_admins(member: Any, admin: Client, project: Project) -> None:
    boss = Client()
    boss.force_login(member("boss", superuser=True))
    new = {"name": "Gamma rays", "slug": "gamma", "description": "Two\r\nlines"}

    assert admin.post("/projects", new).status_code == 403
    assert "Only superusers" in text_of(admin.get("/projects"))
    assert boss.post("/projects", new)["Location"] == "/p/gamma/runs"
    again = boss.post("/projects", {**new, "name": ""})
    assert (again.status_code, set(again.context["form"].errors)) == (422, {"name"})
    assert set(boss.post("/projects", new).context["form"].errors) == {"slug"}

    gamma = Project.objects.get(slug="gamma")
    assert gamma.description == "Two\nlines"
    assert gamma.memberships.get().role == "admin"
    assert [each.slug for each, _ in boss.get("/projects").context["rows"]] == ["alpha", "gamma"]
    assert [each.slug for each, _ in admin.get("/projects").context["rows"]] == ["alpha"]
    archive_project(gamma, actor=SYSTEM)
    page = boss.get("/projects")
    assert "archived" in text_of(page)
    assert [each.slug for each in page.context["projects"]] == ["alpha"]


def test_commands_match_the_settings_pages(project: Project, member: Any, capsys: pytest.CaptureFixture[str]) -> None:
    member("alice", Role.ADMIN)
    User.objects.create_user("bob", email="bob@example.org")
    call_command("member", "add", "bob", "--project", "alpha", "--role", "viewer")
    call_command("member", "role", "bob", "--project", "alpha", "--role", "operator")
    call_command("member", "ls", "--project", "alpha")
    assert capsys.readouterr().out.splitlines()[-2:] == ["alice\tadmin\t\t", "bob\toperator\tbob@example.org\tno"]
    call_command("member", "remove", "bob", "--project", "alpha")
    call_command("project", "change", "alpha", "--description", "The first")
    call_command("project", "archive", "alpha")
    project.refresh_from_db()
    assert (project.name, project.description, project.archived_at is None) == ("Alpha", "The first", False)
    call_command("project", "unarchive", "alpha")
    key = create_key(project, name="ci", scopes=["read"], actor=SYSTEM).key
    call_command("key", "rotate", key.prefix, "--overlap", "1h")

    entries = AuditEntry.objects.filter(project=project, door="command").order_by("pk")
    assert {entry.actor.partition(":")[0] for entry in entries} == {"cli"}
    assert [entry.action for entry in entries] == [
        *("member.added", "member.role_changed", "member.removed", "project.changed"),
        *("project.archived", "project.unarchived", "key.rotated"),
    ]


# --- The audit log -------------------------------------------------------------------------------------------------


def shown(client: Client, **query: str) -> list[str]:
    return [row.entry.action for row in client.get(AUDIT, query).context["rows"]]


def test_audit_log_can_be_filtered_and_is_paged(
    project: Project, foreign: Project, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    AuditEntry._base_manager.all()._raw_delete("default")  # entries of the fixtures
    for day, actor, action in (
        (1, "user:bob", "run.created"),
        (1, "key:aok_test_1", "run.stopped"),
        (2, "cli:bob", "key.created"),
        (3, "user:alice", "runner.changed"),
    ):
        with time_machine.travel(datetime(2026, 3, day, 23, 59, 59, tzinfo=UTC), tick=False):
            record(actor, action, project=project, obj=project, after={"note": "=1+1"})
            record(actor, action, project=foreign)

    assert shown(admin) == ["runner.changed", "key.created", "run.stopped", "run.created"]
    assert shown(admin, who="bob") == ["key.created", "run.created"]
    assert shown(admin, who="user:bob") == ["run.created"]
    assert shown(admin, who="aok_test_1") == ["run.stopped"]
    assert shown(admin, action="run.") == ["run.stopped", "run.created"]
    assert shown(admin, action="run.created", who="alice") == []
    assert shown(admin, since="2026-03-02", until="2026-03-02") == ["key.created"]
    assert shown(admin, until="9999-12-31", since="0001-01-01")[0] == "runner.changed"
    assert admin.get(AUDIT, {"since": "yesterday"}).status_code == 400
    monkeypatch.setattr("agentops.accounts.settings_pages.audit_page.PAGE_SIZE", 2)
    page = admin.get(AUDIT, {"until": "2026-03-02"})
    assert shown(admin, until="2026-03-02", before=str(page.context["older"])) == ["run.created"]
    theirs = AuditEntry.objects.filter(project=foreign).latest("pk")
    assert shown(admin, before=str(theirs.pk)) == []


def test_filter_suggests_all_action_types_of_projects(admin: Client) -> None:
    suggested = re.findall(r'<option value="([^"]*)">', admin.get(AUDIT).content.decode())
    enums = [each for each in enum.StrEnum.__subclasses__() if each.__name__.endswith("AuditAction")]
    actions = [*itertools.chain.from_iterable(enums), SECRETS_REVEALED, TRANSCRIPT_DELETED]
    families = {action.partition(".")[0] for action in actions}
    of_the_site = {"login", "login_failed", "user", "group", "sessions"}

    assert len(enums) == 11
    assert suggested == [f"{family}." for family in sorted(families - of_the_site)]


def test_audit_csv_escapes_formulas(project: Project, admin: Client) -> None:
    record("user:=cmd", "run.created", project=project, after={"api_key": "sk-ant-api03-" + "a" * 95}, ip="192.0.2.1")
    record("=1+1", "run.stopped", project=project)
    record("\N{FULLWIDTH EQUALS SIGN}1+1", "run.stopped", project=project)

    answer = admin.get(f"{AUDIT}.csv", {"action": "run."})

    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    assert answer["Content-Disposition"] == 'attachment; filename="audit-log-alpha.csv"'
    rows = list(csv.DictReader(StringIO(answer.content.decode())))
    assert [row["who"] for row in rows] == ["'\N{FULLWIDTH EQUALS SIGN}1+1", "'=1+1", "user:=cmd"]
    assert (rows[2]["ip"], rows[2]["action"], rows[2]["before"]) == ("192.0.2.1", "run.created", "")
    assert "sk-ant-api03" not in rows[2]["after"]
    assert "REDACTED" in rows[2]["after"]
    assert "sk-ant-api03" not in text_of(admin.get(AUDIT))
    assert admin.get(f"{AUDIT}.csv", {"since": "x"}).status_code == 400


# --- The account ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_changing_the_password_ends_the_other_sessions(project: Project) -> None:
    person = make_person(project, Role.VIEWER, password=PASSWORD)
    here, there = Client(), Client()
    for client in (here, there):
        client.force_login(person)
    new = "another long password 2"

    wrong = here.post("/account", {"old_password": "guess", "new_password1": new, "new_password2": new})
    assert (wrong.status_code, set(wrong.context["form"].errors)) == (422, {"old_password"})
    short = here.post("/account", {"old_password": PASSWORD, "new_password1": "short", "new_password2": "short"})
    assert set(short.context["form"].errors) == {"new_password2"}
    assert here.post("/account", {"old_password": PASSWORD, "new_password1": new, "new_password2": new})[
        "Location"
    ] == ("/account")

    assert (here.get("/account").status_code, there.get("/account").status_code) == (200, 302)
    person.refresh_from_db()
    assert person.check_password(new)
    entry = AuditEntry.objects.get(action="user.changed")
    assert (entry.actor, entry.after["fields"]) == (f"user:{person.username}", ["password"])
    for number in range(5):
        guess = {"old_password": "guess", "new_password1": new, "new_password2": new}
        here.post("/account", guess, REMOTE_ADDR=f"2001:db8::{number}")
    here.defaults["REMOTE_ADDR"] = "2001:db8::ffff"
    refused = here.post("/account", {"old_password": new, "new_password1": new, "new_password2": new})
    assert "Too many attempts" in text_of(refused)


def test_a_user_ends_their_other_sessions(project: Project) -> None:
    person, other = make_person(project), make_person(project)
    here, there, theirs = Client(), Client(), Client()
    for client, who in ((here, person), (there, person), (theirs, other)):
        client.force_login(who)

    assert here.post("/account/sessions/end").status_code == 303

    assert [client.get("/account").status_code for client in (here, there, theirs)] == [200, 302, 200]
    assert AuditEntry.objects.get(action="sessions.ended").after == {"ended": 1}
    here.post("/account/sessions/end")
    assert "There is no other session" in text_of(here.get("/account"))


def test_account_pages_require_a_login(db: None, client: Client) -> None:
    for url in ("/account", "/projects"):
        assert client.get(url).status_code == 302
        assert client.post(url).status_code == 302
    assert client.post("/account/sessions/end").status_code == 302
