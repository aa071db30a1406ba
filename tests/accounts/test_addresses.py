"""E-mail addresses: an address counts as unverified until the user opens the link sent to it."""

from __future__ import annotations

import re
from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest
import time_machine
from django.apps import apps
from django.contrib.auth.models import User
from django.core import mail
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from agentops.accounts import invitations
from agentops.accounts.access import SYSTEM
from agentops.accounts.login.addresses import VALID_FOR, change_address, is_verified
from agentops.accounts.models import AuditEntry, EmailAddress, Invitation, Membership, Project, Role
from tests.support.factories import PASSWORD, forget_attempts, make_person, session_of, verify_address

pytestmark = pytest.mark.usefixtures("cheap_passwords", "mail_is_sent")
MEMBERS = "/p/alpha/settings/members"


@pytest.fixture
def mail_is_sent(settings: Any) -> None:
    settings.AGENTOPS_EMAIL, settings.AGENTOPS_BASE_URL = True, "https://agentops.example.org"
    settings.DEFAULT_FROM_EMAIL = "agentops@example.org"
    forget_attempts()


@pytest.fixture
def eve(db: None) -> User:
    """A user who entered another person's address."""
    return User.objects.create_user("eve", email="Victim@example.org", password=PASSWORD)


@pytest.fixture
def admin(member: Any) -> Client:
    return client_of(member("alice", Role.ADMIN))


def client_of(person: User) -> Client:
    client = Client()
    client.force_login(person)
    return client


def link_of(message: Any) -> str:
    [path] = re.findall(r"https://agentops\.example\.org(/\S+)", message.body)
    return str(path)


def fresh(person: User) -> User:
    return User.objects.get(pk=person.pk)


# --- Unverified addresses ------------------------------------------------------------------------------------------


def test_an_unverified_address_does_not_identify_a_user(project: Project, admin: Client, eve: User) -> None:
    """A user who enters another person's address gets neither that person's membership nor their link."""
    admin.post(f"{MEMBERS}/add", {"who": "victim@example.org", "role": "admin"})
    body = {"user": "victim@example.org", "role": "admin"}
    refused = admin.post(f"/api/projects/{project.slug}/members", body, content_type="application/json")
    with pytest.raises(CommandError):
        call_command("member", "add", "victim@example.org", "--project", "alpha", "--role", "admin")

    assert refused.status_code == 422
    assert not Membership.objects.filter(user=eve).exists()
    assert [message.to for message in mail.outbox] == [["victim@example.org"]]


def test_inviting_does_not_reveal_which_addresses_have_accounts(project: Project, admin: Client, eve: User) -> None:
    """Compares responses, sent mails and number of queries, for the page and the API."""
    verify_address(User.objects.create_user("bob", email="bob-bob@example.org"))
    User.objects.create_user("cyd@example.org", email="")
    results = {}
    for email in ("victim@example.org", "bob-bob@example.org", "cyd@example.org", "nobody@example.org"):
        with CaptureQueriesContext(connection) as queries:
            added = admin.post(f"{MEMBERS}/add", {"who": email, "role": "viewer"})
        count = len(queries)
        page = admin.get(MEMBERS).content.decode()
        again = admin.post(f"{MEMBERS}/add", {"who": email, "role": "viewer"}).content.decode()
        Invitation.objects.all().delete()
        body = {"email": email, "role": "viewer"}
        by_api = admin.post(f"/api/projects/{project.slug}/invitations", body, content_type="application/json")
        member = {"user": email, "role": "viewer"}
        as_member = admin.post(f"/api/projects/{project.slug}/members", member, content_type="application/json")
        Invitation.objects.all().delete()
        texts = (page, again, str(sorted(by_api.json())), as_member.content.decode())
        results[email] = (
            *(added.status_code, added["Location"], by_api.status_code, as_member.status_code, count),
            *(_without_chance(re.sub(email, "ADDRESS", text, flags=re.IGNORECASE)) for text in texts),
        )
    first, *others = ([line for value in values for line in str(value).splitlines()] for values in results.values())
    for other in others:
        assert [pair for pair in zip(first, other, strict=True) if pair[0] != pair[1]] == []
    assert [message.to[0] for message in mail.outbox] == [email for email in results for _ in range(2)]


def _without_chance(text: str) -> str:
    """Return a text without tokens, IDs and times."""
    return re.sub(r"[\w:-]{20,}|\d\d:\d\d(:\d\d)?|T[\d:.]+", "", text)


def test_only_the_mailed_link_verifies_the_address(project: Project, admin: Client, member: Any) -> None:
    """The link that admins copy also creates an account; its address is unverified, and a verification link is sent."""
    new = {"username": "cleo", "password1": PASSWORD, "password2": PASSWORD}
    invitation = invitations.invite(project, "cleo@example.org", "viewer", actor=SYSTEM)
    Client().post(invitations.url_path(invitation), new)
    cleo = User.objects.get(username="cleo")
    assert not is_verified(cleo)
    assert client_of(cleo).post(link_of(mail.outbox[-1])).status_code == 303
    assert is_verified(fresh(cleo))

    for name, email in (("dan", "dan@example.org"), ("dora", "cleo@example.org")):
        invitations.send(invitations.invite(project, email, "viewer", actor=SYSTEM))
        Client().post(link_of(mail.outbox[-1]), {**new, "username": name})
    assert is_verified(User.objects.get(username="dan"))
    # Another account has already verified this address and keeps it.
    assert not is_verified(User.objects.get(username="dora"))
    assert is_verified(fresh(cleo))
    # The current session's account accepts the invitation only if it has the address.
    for email, expected in (("fay@example.org", True), ("other@example.org", False)):
        fay = make_person()
        change_address(fay, email, actor=SYSTEM)
        invitations.send(invitations.invite(project, "fay@example.org", "viewer", actor=SYSTEM))
        client_of(fay).post(link_of(mail.outbox[-1]))
        assert is_verified(fresh(fay)) is expected
        EmailAddress.objects.filter(pk=fay.pk).delete()


# --- The link ------------------------------------------------------------------------------------------------------


def asked(client: Client) -> str:
    """Request a new link as the account page does."""
    count = len(mail.outbox)
    assert client.post("/account/address/send").status_code == 303
    assert len(mail.outbox) == count + 1
    return link_of(mail.outbox[-1])


def test_a_link_verifies_once_and_only_its_own_address_and_account(eve: User) -> None:
    client = client_of(eve)
    first, link = asked(client), asked(client)
    assert mail.outbox[-1].to == ["victim@example.org"]
    assert "The account eve" in mail.outbox[-1].body

    for bad in (first, link[:-1], f"{link}x"):
        answer = client.post(bad)
        assert (answer.status_code, "This link is not valid" in answer.content.decode()) == (404, True)
    # The owner of the address must not verify it for another account by clicking the link.
    victim = client_of(make_person())
    assert victim.post(link).status_code == 404
    assert Client().get(link).status_code == 302
    assert "Verify address" in client.get(link).content.decode()
    assert not is_verified(fresh(eve)), "nothing is verified by opening it: programs that check mails do so too"
    assert client.post(link).status_code == 303
    assert is_verified(fresh(eve))
    assert client.post(link).status_code == 404
    assert AuditEntry.objects.filter(action="user.address_verified", actor="user:eve").count() == 1
    client.post("/account/address/send")
    assert "already verified" in client.get("/account/address").content.decode()


def test_expired_link_shows_an_error_and_offers_a_new_one(eve: User) -> None:
    client = client_of(eve)
    link = asked(client)
    with time_machine.travel(timezone.now() + VALID_FOR + timedelta(seconds=1)):
        client = client_of(eve)
        for answer in (client.get(link), client.post(link)):
            assert answer.status_code == 404
            assert "This link has expired" in answer.content.decode()
            assert "Send a new link" in answer.content.decode()
    assert not is_verified(fresh(eve))


def test_an_address_is_verified_by_one_account(eve: User) -> None:
    verify_address(User.objects.create_user("victim", email="victim@example.org"))
    client = client_of(eve)
    answer = client.post(asked(client))

    assert (answer.status_code, "Another account has verified" in answer.content.decode()) == (409, True)
    assert not is_verified(fresh(eve))
    # An account that has since changed its address does not block the address.
    User.objects.filter(username="victim").update(email="new@example.org")
    assert client.post(asked(client)).status_code == 303


def test_a_changed_address_is_unverified(eve: User, settings: Any) -> None:
    verify_address(eve)
    client = client_of(eve)
    change = {"email": "Eve@Example.org", "password": PASSWORD}
    assert client.post("/account/address", {**change, "password": "wrong"}).status_code == 422
    assert client.post("/account/address", {**change, "email": "no address"}).status_code == 422
    assert is_verified(fresh(eve))
    assert client.post("/account/address", change).status_code == 303
    assert (fresh(eve).email, is_verified(fresh(eve))) == ("eve@example.org", False)
    assert mail.outbox[-1].to == ["eve@example.org"]
    old = link_of(mail.outbox[-1])
    assert client.post("/account/address", {**change, "email": "eve@example.net"}).status_code == 303
    assert client.post(old).status_code == 404
    client.post(link_of(mail.outbox[-1]))
    assert is_verified(fresh(eve))
    # Also if code or a superuser changes it.
    User.objects.filter(pk=eve.pk).update(email="other@example.net")
    assert not is_verified(fresh(eve))
    assert client.post("/account/address", {**change, "email": ""}).status_code == 303
    assert fresh(eve).email == ""
    guesses = [client.post("/account/address", {**change, "password": "wrong"}) for _ in range(6)]
    assert [answer.status_code for answer in guesses] == [422] * 5 + [429]
    assert 0 < int(guesses[-1]["Retry-After"]) <= 900


def test_links_are_rate_limited_by_user_and_by_address(eve: User) -> None:
    client = client_of(eve)
    for _ in range(5):
        asked(client)
    client.post("/account/address/send")
    assert "No link was sent: too many attempts" in client.get("/account/address").content.decode()
    mallory = client_of(User.objects.create_user("mallory", email="victim@example.org"))
    mallory.post("/account/address/send")

    assert len(mail.outbox) == 5


def test_superuser_changing_an_address_does_not_verify_it(member: Any) -> None:
    boss = User.objects.create_superuser("boss", email="boss@example.org", password=PASSWORD)
    eve = verify_address(User.objects.create_user("eve", email="eve@example.org"))
    client = Client()
    client.cookies["sessionid"] = session_of(boss)
    page = client.get(f"/admin/auth/user/{eve.pk}/change/")
    values = {name: value for name, value in page.context["adminform"].form.initial.items() if value not in (None, [])}
    joined = {"date_joined_0": "2026-01-01", "date_joined_1": "00:00:00"}
    for email in ("other@example.org", "eve@example.org"):
        values.pop("last_login", None)
        answer = client.post(page.request["PATH_INFO"], {**values, **joined, "is_active": "on", "email": email})
        assert answer.status_code == 302, answer.context["adminform"].form.errors
        assert not is_verified(fresh(eve))


def test_migration_marks_all_addresses_as_unverified(eve: User) -> None:
    User.objects.create_user("nobody", email="")
    fill = import_module("agentops.accounts.migrations.0009_fill_email_addresses").fill
    fill(apps, None)
    fill(apps, None)

    assert list(EmailAddress.objects.values_list("user", "email", "verified_at", "nonce")) == [
        (eve.pk, "victim@example.org", None, "")
    ]
    assert Client().post("/login", {"username": "eve", "password": PASSWORD}).status_code == 302
    assert client_of(fresh(eve)).post(asked(client_of(eve))).status_code == 303
