"""Projects, members, invitations and API keys in the API: effects, errors and audit entries."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, ClassVar

import pytest
import time_machine
from django.contrib.auth.models import User
from django.core.mail.backends.base import BaseEmailBackend
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from agentops.accounts.access import SYSTEM
from agentops.accounts.keys import create_key
from agentops.accounts.memberships import add_member, archive_project, create_project
from agentops.accounts.models import ApiKey, AuditEntry, IdempotencyKey, Invitation, Membership, Project, Role, Scope
from tests.support.factories import make_agent, make_run, verify_address, with_key

pytestmark = [pytest.mark.django_db, pytest.mark.every_database]

PROJECTS, ALPHA = "/api/projects", "/api/projects/alpha"
MEMBERS, INVITATIONS, KEYS = f"{ALPHA}/members", f"{ALPHA}/invitations", f"{ALPHA}/keys"
UNKNOWN = "01a1f86c-1b1a-72f0-b808-0c8f1390c3f4"


@pytest.fixture
def project() -> Project:
    return create_project("alpha", "Alpha", actor=SYSTEM)


def person(name: str, project: Project | None = None, role: Role = Role.ADMIN, **fields: Any) -> Client:
    user = User.objects.create(username=name, **fields)
    if project is not None:
        add_member(project, user, role, actor=SYSTEM)
    client = Client(REMOTE_ADDR="192.0.2.7")
    client.force_login(user)
    return client


@pytest.fixture
def alice(project: Project) -> Client:
    return person("alice", project)


@pytest.fixture
def boss() -> Client:
    return person("boss", is_superuser=True)


def send(client: Client, method: str, url: str, body: Any = None, **headers: str) -> Any:
    text = "" if body is None else json.dumps(body)
    return client.generic(method, url, text, content_type="application/json", headers=headers)


def refusal(answer: Any) -> tuple[int, str, list[str]]:
    problem = answer.json()
    return answer.status_code, problem["code"], [error["pointer"] for error in problem["errors"]]


def audited(action: str) -> list[tuple[str, str, str | None]]:
    rows = AuditEntry.objects.filter(action=action).order_by("pk")
    return [(row.actor, row.door, row.ip) for row in rows]


BY_ALICE = [("user:alice", "api", "192.0.2.7")]


# --- Projects -------------------------------------------------------------------------------------------------------


def test_a_superuser_creates_a_project_and_becomes_its_admin(boss: Client) -> None:
    answer = send(boss, "POST", PROJECTS, {"slug": "gamma", "description": "Ours.\nAll."})

    assert (answer.status_code, answer["Location"]) == (201, "/api/projects/gamma")
    row = boss.get("/api/projects/gamma").json()
    assert row == answer.json()
    assert (row["slug"], row["name"], row["description"]) == ("gamma", "gamma", "Ours.\nAll.")
    assert (row["retention_days"], row["archived_at"]) == (90, None)
    assert Membership.objects.get(project__slug="gamma").user.username == "boss"
    assert audited("project.created") == [("user:boss", "api", "192.0.2.7")]
    assert send(boss, "POST", PROJECTS, {"slug": "delta", "name": "Delta"}).json()["name"] == "Delta"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"slug": "alpha"}, (409, "slug_taken", ["/slug"])),
        ({"slug": "A B"}, (422, "invalid_slug", ["/slug"])),
        ({"slug": UNKNOWN}, (422, "invalid_slug", ["/slug"])),
        ({"slug": "ok", "name": " "}, (422, "invalid_name", ["/name"])),
        ({"slug": "ok", "name": "a\nb"}, (422, "invalid_name", ["/name"])),
        ({"slug": "ok", "description": "a\x1bb"}, (422, "invalid_description", ["/description"])),
        ({"slug": "ok", "description": "x" * 2001}, (422, "max_length", ["/description"])),
        ({"slug": 7}, (422, "invalid", ["/slug"])),
        ({}, (422, "required", ["/slug"])),
        ({"slug": "ok", "retention_days": 7}, (422, "unknown_field", ["/retention_days"])),
    ],
)
def test_an_invalid_project_is_refused(
    body: dict[str, Any], expected: tuple[int, str, list[str]], boss: Client, project: Project
) -> None:
    assert refusal(send(boss, "POST", PROJECTS, body)) == expected
    assert Project.objects.count() == 1


def test_a_project_can_be_changed(alice: Client, project: Project) -> None:
    answer = send(alice, "PATCH", ALPHA, {"name": " Alpha 2 ", "retention_days": None})

    assert answer.status_code == 200
    assert (answer.json()["name"], answer.json()["retention_days"]) == ("Alpha 2", None)
    assert audited("project.changed") == BY_ALICE
    entry = AuditEntry.objects.get(action="project.changed")
    assert (entry.before, entry.after) == (
        {"name": "Alpha", "retention_days": 90},
        {"name": "Alpha 2", "retention_days": None},
    )
    # A request without changes writes no audit entry.
    assert send(alice, "PATCH", ALPHA, {"name": "Alpha 2"}).status_code == 200
    assert send(alice, "PATCH", ALPHA, {}).json()["name"] == "Alpha 2"
    assert audited("project.changed") == BY_ALICE


def test_a_project_can_limit_its_running_runs(alice: Client, project: Project) -> None:
    assert send(alice, "PATCH", ALPHA, {"max_running": 3}).json()["max_running"] == 3
    assert alice.get(ALPHA).json()["max_running"] == 3
    assert send(alice, "PATCH", ALPHA, {"max_running": None}).json()["max_running"] is None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"name": ""}, (422, "invalid_name", ["/name"])),
        ({"name": "x" * 201}, (422, "max_length", ["/name"])),
        ({"retention_days": 0}, (422, "min_value", ["/retention_days"])),
        ({"retention_days": 36_501}, (422, "max_value", ["/retention_days"])),
        ({"retention_days": "30"}, (422, "invalid", ["/retention_days"])),
        ({"max_running": 0}, (422, "min_value", ["/max_running"])),
        ({"max_running": 1_000_001}, (422, "max_value", ["/max_running"])),
        ({"slug": "other"}, (422, "unknown_field", ["/slug"])),
        ({"archived_at": None}, (422, "unknown_field", ["/archived_at"])),
    ],
)
def test_an_invalid_change_is_refused(
    body: dict[str, Any], expected: tuple[int, str, list[str]], alice: Client
) -> None:
    assert refusal(send(alice, "PATCH", ALPHA, body)) == expected


def test_a_project_can_be_archived_and_unarchived(alice: Client, project: Project) -> None:
    agent = make_agent(project)

    assert send(alice, "POST", f"{ALPHA}/archive").json()["archived_at"] is not None
    assert send(alice, "POST", f"{ALPHA}/archive").status_code == 200
    started = send(alice, "POST", f"{ALPHA}/agent-runs", {"agent_id": agent.slug})
    assert refusal(started)[:2] == (403, "project_archived")
    assert alice.get(PROJECTS).json()["results"][0]["archived_at"] is not None
    # An archived project can still be managed.
    assert alice.get(KEYS).status_code == 200
    assert send(alice, "POST", f"{ALPHA}/unarchive").json()["archived_at"] is None

    assert audited("project.archived") == audited("project.unarchived") == BY_ALICE
    make_run(agent)
    assert refusal(send(alice, "POST", f"{ALPHA}/archive"))[:2] == (409, "runs_in_progress")


# --- Members --------------------------------------------------------------------------------------------------------


def test_members_can_be_listed_added_changed_and_removed(alice: Client, project: Project) -> None:
    bob = User.objects.create_user("bob@work", email="bob@example.org")

    added = send(alice, "POST", MEMBERS, {"user": "bob@work", "role": "viewer"})
    changed = send(alice, "PATCH", f"{MEMBERS}/bob@work", {"role": "operator"})
    rows = alice.get(MEMBERS).json()["results"]

    assert (added.status_code, added.json()["role"], changed.json()["role"]) == (201, "viewer", "operator")
    assert [(row["user"], row["email"], row["role"], row["is_active"]) for row in rows] == [
        ("alice", "", "admin", True),
        ("bob@work", "bob@example.org", "operator", True),
    ]
    assert send(alice, "DELETE", f"{MEMBERS}/bob@work").status_code == 204
    assert not Membership.objects.filter(user=bob).exists()
    assert audited("member.added")[1:] == audited("member.role_changed") == audited("member.removed") == BY_ALICE


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("POST", "", {"user": "nobody", "role": "viewer"}, (422, "member_not_found", ["/user"])),
        ("POST", "", {"user": "alice", "role": "viewer"}, (409, "already_member", ["/user"])),
        ("POST", "", {"user": "eve", "role": "owner"}, (422, "invalid_choice", ["/role"])),
        ("POST", "", {"user": "eve"}, (422, "required", ["/role"])),
        ("POST", "", {"user": "", "role": "viewer"}, (422, "blank", ["/user"])),
        ("POST", "", {"user": "eve", "role": "viewer", "superuser": True}, (422, "unknown_field", ["/superuser"])),
        ("PATCH", "/eve", {"role": "viewer"}, (404, "member_not_found", [])),
        ("PATCH", "/e%00ve", {"role": "viewer"}, (404, "member_not_found", [])),
        ("PATCH", "/alice", {"role": "viewer"}, (409, "last_admin", [])),
        ("PATCH", "/alice", {"role": "boss"}, (422, "invalid_choice", ["/role"])),
        ("DELETE", "/alice", None, (409, "last_admin", [])),
        ("DELETE", "/eve", None, (404, "member_not_found", [])),
    ],
)
def test_invalid_changes_of_members_are_refused(
    method: str, path: str, body: Any, expected: tuple[int, str, list[str]], alice: Client
) -> None:
    User.objects.create_user("eve")

    assert refusal(send(alice, method, MEMBERS + path, body)) == expected
    assert list(Membership.objects.values_list("user__username", "role")) == [("alice", "admin")]


def test_an_admin_who_gives_up_the_role_loses_access_immediately(alice: Client, project: Project) -> None:
    add_member(project, User.objects.create_user("bob"), Role.ADMIN, actor=SYSTEM)

    assert send(alice, "PATCH", f"{MEMBERS}/alice", {"role": "viewer"}).status_code == 200
    assert refusal(alice.get(MEMBERS))[:2] == (403, "role_required")


@pytest.mark.parametrize("text", ["\ud800", "bob\0", "bob@\ud800.example", '"\x01"@example.org'])
def test_texts_that_no_database_can_compare_are_refused(text: str, alice: Client) -> None:
    member = send(alice, "POST", MEMBERS, {"user": text, "role": "viewer"})
    invited = send(alice, "POST", INVITATIONS, {"email": text, "role": "viewer"})

    assert refusal(member) == (422, "member_not_found", ["/user"])
    assert refusal(invited) == (422, "invalid_email", ["/email"])


def test_a_member_is_named_by_username_and_an_email_address_must_be_invited(alice: Client, project: Project) -> None:
    """An invited person chooses a username and enters an address: neither may match another person."""
    verify_address(User.objects.create_user("carol", email="carol@example.org"))
    User.objects.create_user("carol@example.org", email="mallory@example.org")

    for address in ("carol@example.org", "mallory@example.org", "nobody@example.org"):
        refused = send(alice, "POST", MEMBERS, {"user": address, "role": "admin"})
        assert refusal(refused) == (422, "user_is_address", ["/user"])
    assert Membership.objects.filter(project=project).count() == 1
    added = send(alice, "POST", MEMBERS, {"user": "carol", "role": "viewer"})
    assert (added.status_code, added.json()["email"], added.json()["email_verified"]) == (
        201,
        "carol@example.org",
        True,
    )


class NotingBackend(BaseEmailBackend):
    """Records whether it is called within a transaction."""

    notes: ClassVar[list[bool]] = []

    def send_messages(self, email_messages: Any) -> int:
        self.notes.append(connection.in_atomic_block)
        return len(email_messages)


@pytest.mark.django_db(transaction=True)
def test_mail_is_sent_outside_transactions_and_no_link_is_stored(alice: Client, settings: Any) -> None:
    settings.AGENTOPS_EMAIL, settings.AGENTOPS_BASE_URL = True, "https://agentops.example.org"
    settings.EMAIL_BACKEND = f"{__name__}.NotingBackend"

    body = {"email": "eve@example.org", "role": "viewer"}
    answers = [send(alice, "POST", INVITATIONS, body, **{"Idempotency-Key": "once"}) for _ in "ab"]

    assert [answer.status_code for answer in answers] == [201, 409]
    assert answers[0].json()["is_sent"] is True
    assert (NotingBackend.notes, IdempotencyKey.objects.count()) == ([False], 0)


@time_machine.travel("2026-03-01T12:00:00Z", tick=False)
def test_a_person_without_an_account_can_be_invited(alice: Client, project: Project) -> None:
    """The URL is signed with the current second, so the clock is stopped."""
    answer = send(alice, "POST", INVITATIONS, {"email": "Eve@Example.org", "role": "operator"})

    row = answer.json()
    assert (answer.status_code, row["email"], row["role"], row["is_sent"]) == (
        201,
        "eve@example.org",
        "operator",
        False,
    )
    [listed] = alice.get(INVITATIONS).json()["results"]
    assert listed == {name: row[name] for name in row if name != "is_sent"}
    assert row["created_by"] == "user:alice"
    assert Client().get(row["url"]).status_code == 200
    repeated = send(alice, "POST", INVITATIONS, {"email": "eve@example.org", "role": "viewer"})
    assert refusal(repeated) == (409, "already_invited", ["/email"])
    assert refusal(send(alice, "POST", INVITATIONS, {"email": "eve", "role": "viewer"}))[:2] == (422, "invalid_email")

    assert send(alice, "DELETE", f"{INVITATIONS}/{row['id']}").status_code == 204
    assert refusal(send(alice, "DELETE", f"{INVITATIONS}/{row['id']}"))[:2] == (404, "invitation_not_found")
    assert Client().get(row["url"]).status_code == 404
    assert (Invitation.objects.count(), audited("invitation.created")) == (0, BY_ALICE)
    assert audited("invitation.withdrawn") == BY_ALICE


# --- API keys -------------------------------------------------------------------------------------------------------

CI: dict[str, Any] = {"name": "ci", "scopes": ["read"]}


def test_a_key_appears_once_and_can_be_rotated_and_revoked(alice: Client, project: Project) -> None:
    expiry = timezone.now() + timedelta(days=90)
    made = send(
        alice, "POST", KEYS, {"name": "ci", "scopes": ["write", "read", "read"], "expires_at": expiry.isoformat()}
    )
    new = made.json()

    assert made.status_code == 201
    assert made["Cache-Control"] == "no-store"
    assert (new["name"], new["scopes"], new["state"]) == ("ci", ["read", "write"], "active")
    assert new["key"].startswith(f"{new['prefix']}_")
    assert Client(headers={"Authorization": f"Bearer {new['key']}"}).get(ALPHA).json()["slug"] == "alpha"
    for url in (KEYS, f"{KEYS}/{new['id']}"):
        assert new["key"] not in alice.get(url).content.decode()
    assert alice.get(f"{KEYS}/{new['id']}").json().keys() == new.keys() - {"key"}

    rotated = send(alice, "POST", f"{KEYS}/{new['id']}/rotate", {"overlap_hours": 0})
    assert rotated.status_code == 201
    assert rotated.json()["key"] not in ("", new["key"])
    assert Client(headers={"Authorization": f"Bearer {new['key']}"}).get(ALPHA).status_code == 401
    assert refusal(send(alice, "POST", f"{KEYS}/{new['id']}/rotate"))[:2] == (409, "key_not_active")

    revoked = send(alice, "POST", f"{KEYS}/{rotated.json()['id']}/revoke")
    assert (revoked.status_code, revoked.json()["state"]) == (200, "revoked")
    assert Client(headers={"Authorization": f"Bearer {rotated.json()['key']}"}).get(ALPHA).status_code == 401
    assert [row["state"] for row in alice.get(KEYS).json()["results"]] == ["revoked", "expired"]
    assert audited("key.created") == audited("key.rotated") == audited("key.revoked") == BY_ALICE
    assert not any(new["key"] in str([entry.before, entry.after]) for entry in AuditEntry.objects.all())


def test_a_repeated_creation_creates_another_key(alice: Client) -> None:
    """An `Idempotency-Key` would require storing the secret."""
    bodies = [
        send(alice, "POST", KEYS, {"name": "ci", "scopes": ["read"]}, **{"Idempotency-Key": "1"}) for _ in range(2)
    ]

    assert len({answer.json()["key"] for answer in bodies}) == 2


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"name": "", "scopes": ["read"]}, (422, "blank", ["/name"])),
        ({"name": "a\tb", "scopes": ["read"]}, (422, "invalid_name", ["/name"])),
        ({"name": "ci", "scopes": []}, (422, "min_length", ["/scopes"])),
        ({"name": "ci", "scopes": ["admin"]}, (422, "invalid_choice", ["/scopes/0"])),
        ({"name": "ci", "scopes": "read"}, (422, "not_a_list", ["/scopes"])),
        ({"name": "ci"}, (422, "required", ["/scopes"])),
        ({**CI, "expires_at": "2020-01-01T00:00:00Z"}, (422, "invalid_expiry", ["/expires_at"])),
        ({**CI, "expires_at": "tomorrow"}, (422, "invalid", ["/expires_at"])),
        ({**CI, "expires_at": 1795000000}, (422, "invalid", ["/expires_at"])),
        ({**CI, "project": "beta"}, (422, "unknown_field", ["/project"])),
    ],
)
def test_an_invalid_key_is_refused(body: dict[str, Any], expected: tuple[int, str, list[str]], alice: Client) -> None:
    assert refusal(send(alice, "POST", KEYS, body)) == expected
    assert ApiKey.objects.count() == 0


@pytest.mark.parametrize("overlap", [-1, 721, "1", 1.5])
def test_an_invalid_overlap_is_refused(overlap: Any, alice: Client, project: Project) -> None:
    key = create_key(project, name="ci", scopes=["read"], actor=SYSTEM).key

    answer = send(alice, "POST", f"{KEYS}/{key.pk}/rotate", {"overlap_hours": overlap})

    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/overlap_hours")
    assert ApiKey.objects.count() == 1


# --- Permissions ----------------------------------------------------------------------------------------------------

MANAGING = [
    ("PATCH", ALPHA, {"name": "Mine"}),
    ("POST", f"{ALPHA}/archive", None),
    ("POST", f"{ALPHA}/unarchive", None),
    ("GET", MEMBERS, None),
    ("POST", MEMBERS, {"user": "eve", "role": "admin"}),
    ("PATCH", f"{MEMBERS}/alice", {"role": "viewer"}),
    ("DELETE", f"{MEMBERS}/alice", None),
    ("GET", INVITATIONS, None),
    ("POST", INVITATIONS, {"email": "eve@example.org", "role": "admin"}),
    ("DELETE", f"{INVITATIONS}/{UNKNOWN}", None),
    ("GET", KEYS, None),
    ("POST", KEYS, {"name": "more", "scopes": ["read"]}),
    ("GET", f"{KEYS}/KEY", None),
    ("POST", f"{KEYS}/KEY/rotate", None),
    ("POST", f"{KEYS}/KEY/revoke", None),
]


def everything(project: Project) -> list[object]:
    project.refresh_from_db()
    rows = [Membership, Invitation, ApiKey, AuditEntry, Project]
    return [project.name, project.archived_at, *(model.objects.count() for model in rows)]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("who", "status", "code"),
    [
        ("anonymous", 401, "auth_required"),
        ("key", 403, "scope_required"),
        ("viewer", 403, "role_required"),
        ("operator", 403, "role_required"),
        ("outsider", 404, "project_not_found"),
        ("outsider's key", 404, "project_not_found"),
    ],
)
def test_only_admins_with_a_session_may_manage(
    who: str, status: int, code: str, alice: Client, project: Project
) -> None:
    """Even a key with all scopes may not, because it could grant more permissions than it has."""
    User.objects.create_user("eve")
    beta = create_project("beta", "Beta", actor=SYSTEM)
    key = create_key(project, name="ci", scopes=["read"], actor=SYSTEM).key
    clients = {
        "anonymous": Client(),
        "key": Client(headers=with_key(project, *Scope.values)),
        "viewer": person("vic", project, Role.VIEWER),
        "operator": person("olga", project, Role.OPERATOR),
        "outsider": person("zoe", beta),
        "outsider's key": Client(headers=with_key(beta, *Scope.values)),
    }
    before = everything(project)

    for method, url, body in MANAGING:
        answer = send(clients[who], method, url.replace("KEY", str(key.pk)), body)
        assert refusal(answer)[:2] == (status, code), (method, url)
    creation = send(clients[who], "POST", PROJECTS, {"slug": "mine"})
    assert creation.status_code == (401 if who == "anonymous" else 403)

    assert everything(project) == before


def test_a_session_requires_a_csrf_token(project: Project, alice: Client) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = alice.cookies
    before = everything(project)

    for method, url, body in MANAGING:
        if method != "GET":
            assert refusal(send(strict, method, url.replace("KEY", UNKNOWN), body))[:2] == (403, "csrf_failed"), url

    assert everything(project) == before


def test_a_key_or_invitation_of_another_project_is_unknown(alice: Client, project: Project) -> None:
    beta = create_project("beta", "Beta", actor=SYSTEM)
    theirs = create_key(beta, name="ci", scopes=["read"], actor=SYSTEM).key
    zoe = person("zoe", beta)
    invitation = send(
        zoe, "POST", "/api/projects/beta/invitations", {"email": "e@example.org", "role": "viewer"}
    ).json()

    for method, url in (("GET", ""), ("POST", "/rotate"), ("POST", "/revoke")):
        assert refusal(send(alice, method, f"{KEYS}/{theirs.pk}{url}"))[:2] == (404, "key_not_found")
    assert refusal(send(alice, "DELETE", f"{INVITATIONS}/{invitation['id']}"))[:2] == (404, "invitation_not_found")
    assert refusal(send(alice, "PATCH", f"{MEMBERS}/zoe", {"role": "viewer"}))[:2] == (404, "member_not_found")
    theirs.refresh_from_db()
    assert (theirs.revoked_at, Invitation.objects.count()) == (None, 1)


def test_lists_have_pages_and_a_constant_number_of_queries(alice: Client, project: Project) -> None:
    for url in (MEMBERS, KEYS, INVITATIONS):
        counts = []
        for number in (1, 12):
            for each in range(number):
                name = f"{url.rpartition('/')[2]}-{number}-{each}"
                add_member(project, User.objects.create_user(name), Role.VIEWER, actor=SYSTEM)
                create_key(project, name=name, scopes=["read"], actor=SYSTEM)
                Invitation.objects.create(
                    project=project,
                    email=f"{name}@example.org",
                    role="viewer",
                    created_by="x",
                    expires_at=timezone.now() + timedelta(days=1),
                )
            with CaptureQueriesContext(connection) as asked:
                rows = alice.get(f"{url}?limit=200").json()["results"]
            counts.append(len(asked))
        assert counts[0] == counts[1], url
        first = alice.get(f"{url}?limit=5").json()
        second = alice.get(first["next"]).json()
        # The link of an invitation is signed with the second of the response.
        assert [row | {"url": ""} for row in first["results"] + second["results"]] == [
            row | {"url": ""} for row in rows[:10]
        ]


def test_an_archived_project_can_be_managed_but_its_keys_cannot_write(alice: Client, project: Project) -> None:
    archive_project(project, actor=SYSTEM)

    made = send(alice, "POST", KEYS, {"name": "ci", "scopes": ["write"]}).json()

    writer = Client(headers={"Authorization": f"Bearer {made['key']}"})
    assert refusal(send(writer, "POST", f"{ALPHA}/agent-runs", {"agent_id": "x"}))[:2] == (403, "project_archived")
