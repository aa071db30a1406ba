"""The settings pages for members, invitations and API keys: changes are audited, errors appear next to their fields."""

from __future__ import annotations

import html
import re
import shlex
from typing import Any

import pytest
import time_machine
from django.contrib.auth.models import User
from django.core import mail
from django.test import Client
from django.utils import timezone

from agentops.accounts import invitations, keys
from agentops.accounts.access import SYSTEM, Action, may, principal_for_user
from agentops.accounts.errors import InvitationNotFound
from agentops.accounts.invitations import InvitationLink
from agentops.accounts.models import ApiKey, AuditEntry, Invitation, Membership, Project, Role
from tests.support.factories import PASSWORD, make_person

MEMBERS, KEYS = "/p/alpha/settings/members", "/p/alpha/settings/keys"


@pytest.fixture
def alice(project: Project, member: Any) -> User:
    return member("alice", Role.ADMIN)


@pytest.fixture
def admin(alice: User) -> Client:
    client = Client()
    client.force_login(alice)
    return client


def text_of(answer: Any) -> str:
    return html.unescape(re.sub("</?bdi>", "", answer.content.decode()))


def followed(client: Client, url: str, values: dict[str, Any]) -> Any:
    """Follow the redirect of a form and return the page."""
    answer = client.post(url, values)
    assert answer.status_code == 303
    return client.get(answer["Location"])


def audited(project: Project, *actions: str) -> list[tuple[str, str, str]]:
    """Return action, actor and entry point of the newest audit entries."""
    rows = AuditEntry.objects.filter(project=project, action__in=actions).order_by("pk")
    return [(row.action, row.actor, row.door) for row in rows]


# --- Members -------------------------------------------------------------------------------------------------------


def test_members_are_added_by_name_changed_and_removed(project: Project, admin: Client) -> None:
    bob = User.objects.create_user("bob", email="bob@example.org")
    User.objects.create_user("eve", email="eve@example.org")

    assert admin.post(f"{MEMBERS}/add", {"who": "bob", "role": "viewer"}).status_code == 303
    assert admin.post(f"{MEMBERS}/add", {"who": "eve", "role": "operator"}).status_code == 303
    assert admin.post(f"{MEMBERS}/role", {"user": "bob", "role": "admin"}).status_code == 303
    assert "loses access to Alpha at once" in text_of(admin.get(f"{MEMBERS}/remove?user=eve"))
    assert admin.post(f"{MEMBERS}/remove", {"user": "eve"}).status_code == 303

    assert may(principal_for_user(bob), Action.MANAGE, project.pk)
    assert set(Membership.objects.filter(project=project).values_list("user__username", "role")) == {
        ("alice", "admin"),
        ("bob", "admin"),
    }
    assert audited(project, "member.added", "member.role_changed", "member.removed")[1:] == [
        ("member.added", "user:alice", "page"),
        ("member.added", "user:alice", "page"),
        ("member.role_changed", "user:alice", "page"),
        ("member.removed", "user:alice", "page"),
    ]


@pytest.mark.parametrize(
    ("who", "error"),
    [
        ("nobody", "No account has the name 'nobody'."),
        ("alice", "'alice' is already a member"),
        ("", "This field is required."),
    ],
)
def test_error_of_a_refused_member_appears_at_the_field(admin: Client, who: str, error: str) -> None:
    answer = admin.post(f"{MEMBERS}/add", {"who": who, "role": "viewer"})

    assert answer.status_code == 422
    assert error in answer.context["form"].errors["who"][0]
    assert error in text_of(answer)


def test_last_admin_cannot_be_removed_and_leaving_shows_a_warning(project: Project, admin: Client, member: Any) -> None:
    member("bob", Role.VIEWER)
    assert "This is you." in text_of(admin.get(f"{MEMBERS}/remove?user=alice"))
    for path, values in (("remove", {}), ("role", {"role": "viewer"})):
        answer = followed(admin, f"{MEMBERS}/{path}", {"user": "alice", **values})
        assert "the last admin of a project cannot be removed" in text_of(answer)
    assert Membership.objects.get(project=project, user__username="alice").role == "admin"

    admin.post(f"{MEMBERS}/role", {"user": "bob", "role": "admin"})
    assert admin.post(f"{MEMBERS}/remove", {"user": "alice"})["Location"] == "/"
    assert admin.get(MEMBERS).status_code == 404


def test_long_lists_are_paged_with_a_constant_number_of_queries(
    project: Project, admin: Client, member: Any, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: Any
) -> None:
    monkeypatch.setattr("agentops.accounts.settings_pages.member_pages.PAGE_SIZE", 2)
    monkeypatch.setattr("agentops.accounts.settings_pages.key_pages.PAGE_SIZE", 2)
    for name in ("bea", "cid", "dan"):
        member(name, Role.VIEWER)
        keys.create_key(project, name=f"key of {name}", scopes=["read"], actor=SYSTEM)
    first = admin.get(MEMBERS)
    with django_assert_num_queries(len(_queries(admin, MEMBERS))):
        second = admin.get(f"{MEMBERS}?after={first.context['next']}")

    names = [[row.user.username for row, _ in page.context["rows"]] for page in (first, second)]
    assert names == [["alice", "bea"], ["cid", "dan"]]
    assert second.context["next"] == ""
    older = admin.get(f"{KEYS}?before={admin.get(KEYS).context['older']}")
    assert [row["key"].name for row in older.context["rows"]] == ["key of bea"]


def _queries(client: Client, url: str) -> list[Any]:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    with CaptureQueriesContext(connection) as queries:
        client.get(url)
    return list(queries)


# --- Invitations ---------------------------------------------------------------------------------------------------


def invite(admin: Client, email: str = "Cleo@example.org", role: str = "operator") -> str:
    """Create an invitation and return its link."""
    page = followed(admin, f"{MEMBERS}/add", {"who": email, "role": role})
    assert page.status_code == 200
    [(_, link)] = page.context["invitations"]
    return str(link).removeprefix("http://testserver")


def test_an_invitation_creates_an_account_once(project: Project, admin: Client) -> None:
    link, guest = invite(admin), Client()

    assert "invites you to this project as operator" in text_of(guest.get(link))
    short = guest.post(link, {"username": "ALICE", "password1": "short", "password2": "short"})
    assert (short.status_code, set(short.context["form"].errors)) == (422, {"username", "password2"})
    joined = guest.post(link, {"username": "cleo", "password1": PASSWORD, "password2": PASSWORD})

    assert (joined.status_code, joined["Location"]) == (303, "/p/alpha/runs")
    cleo = User.objects.get(username="cleo")
    assert (cleo.email, cleo.is_staff, cleo.is_superuser) == ("cleo@example.org", False, False)
    assert may(principal_for_user(cleo), Action.OPERATE, project.pk)
    assert guest.get("/p/alpha/runs").status_code == 200
    assert Client().get(link).status_code == 404
    assert audited(project, "invitation.created", "invitation.accepted") == [
        ("invitation.created", "user:alice", "page"),
        ("invitation.accepted", "user:cleo", "link"),
    ]


def test_existing_user_joins_by_invitation(project: Project, admin: Client) -> None:
    link, client = invite(admin, role="viewer"), Client()
    bob = make_person()
    client.force_login(bob)

    assert f"Join as {bob.username}" in text_of(client.get(link))
    assert client.post(link).status_code == 303
    assert Membership.objects.get(project=project, user=bob).role == "viewer"
    assert not Invitation.objects.exists()


def test_invitation_links_expire_can_be_withdrawn_and_cannot_be_forged(project: Project, admin: Client) -> None:
    link = invite(admin)
    again = admin.post(f"{MEMBERS}/add", {"who": "cleo@example.org", "role": "viewer"})
    assert "already invited" in again.context["form"].errors["who"][0]
    with time_machine.travel(timezone.now() + invitations.VALID_FOR):
        assert Client().get(link).status_code == 404
    assert Client().get(link[:-2]).status_code == 404
    Project.objects.filter(pk=project.pk).update(archived_at=timezone.now())
    assert Client().get(link).status_code == 404
    Project.objects.filter(pk=project.pk).update(archived_at=None)
    invitation = Invitation.objects.get()

    assert [admin.post(f"{MEMBERS[:-7]}invitations/withdraw", {"id": invitation.pk}).status_code for _ in "ab"] == [
        303,
        303,
    ]
    assert Client().post(link, {"username": "cleo", "password1": PASSWORD, "password2": PASSWORD}).status_code == 404
    assert not User.objects.filter(username="cleo").exists()
    with pytest.raises(InvitationNotFound):
        invitations.accept(InvitationLink(invitation, was_mailed=False), make_person(), actor=SYSTEM)


def test_invitation_is_mailed_if_a_mail_server_is_configured(project: Project, admin: Client, settings: Any) -> None:
    settings.AGENTOPS_EMAIL, settings.AGENTOPS_BASE_URL = True, "https://agentops.example.org"
    settings.DEFAULT_FROM_EMAIL = "agentops@example.org"

    link = invite(admin)

    [message] = mail.outbox
    assert message.to == ["cleo@example.org"]
    [sent] = re.findall(r"https://agentops.example.org(/invitations/\S+)", message.body)
    assert sent != link, "who copies the link has not received it at the address"
    assert {Client().get(each).status_code for each in (sent, link)} == {200}
    assert "alice invites you to the project Alpha as operator" in message.body


# --- API keys ------------------------------------------------------------------------------------------------------


def test_new_key_appears_once_with_an_example_command(project: Project, admin: Client) -> None:
    answer = admin.post(f"{KEYS}/create", {"name": "ci", "scopes": ["read", "ingest"], "days": "30"})

    [key] = ApiKey.objects.filter(project=project)
    plain = answer.context["plain"]
    assert (answer.status_code, answer["Cache-Control"]) == (200, "no-store")
    assert keys.authenticate(plain).pk == key.pk
    assert f"Authorization: Bearer {plain}" in text_of(answer)
    assert key.created_by == "user:alice"
    assert 29 < (key.expires_at - timezone.now()).total_seconds() / 86_400 < 30  # type: ignore[operator]
    for page in (admin.get(KEYS), admin.get(f"{KEYS}/{key.pk}")):
        assert key.prefix in text_of(page)
        assert plain not in text_of(page)


def test_the_example_command_of_a_key_for_remote_runs_is_answered(project: Project, admin: Client) -> None:
    assert "work: execute runs of remote agents" in text_of(admin.get(KEYS))
    answer = admin.post(f"{KEYS}/create", {"name": "worker", "scopes": ["work"], "days": ""})

    words = shlex.split(answer.context["command"])
    headers = {"Authorization": f"Bearer {answer.context['plain']}"}
    path = words[-1].partition("testserver")[2]
    claimed = Client().post(path, words[words.index("-d") + 1], content_type="application/json", headers=headers)
    assert (claimed.status_code, claimed.content) == (204, b"")


def test_keys_are_rotated_and_revoked(project: Project, admin: Client) -> None:
    old = keys.create_key(project, name="ci", scopes=["ingest"], actor=SYSTEM)

    answer = admin.post(f"{KEYS}/{old.key.pk}/rotate", {"hours": "1"})
    assert keys.authenticate(old.plain).pk == old.key.pk
    assert "is valid until" in text_of(answer)
    assert "run.started" in answer.context["command"]
    new = keys.authenticate(answer.context["plain"])
    assert admin.post(f"{KEYS}/{new.pk}/revoke").status_code == 303

    assert admin.post(f"{KEYS}/{new.pk}/rotate", {"hours": "1"}).status_code == 303
    assert "Not rotated" in text_of(admin.get(f"{KEYS}/{new.pk}"))
    assert admin.post(f"{KEYS}/{old.key.pk}/rotate", {"hours": "soon"}).status_code == 422
    assert audited(project, "key.rotated", "key.revoked") == [
        ("key.rotated", "user:alice", "page"),
        ("key.revoked", "user:alice", "page"),
    ]


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"name": "", "scopes": ["read"]}, "name"),
        ({"name": "a\x01b", "scopes": ["read"]}, "name"),
        ({"name": "ci", "scopes": []}, "scopes"),
        ({"name": "ci", "scopes": ["admin"]}, "scopes"),
        ({"name": "ci", "scopes": ["read"], "days": "7"}, "days"),
    ],
)
def test_invalid_key_form_shows_the_error_at_its_field(admin: Client, values: dict[str, Any], field: str) -> None:
    answer = admin.post(f"{KEYS}/create", values)

    assert (answer.status_code, set(answer.context["form"].errors)) == (422, {field})
    assert not ApiKey.objects.exists()
