"""Logins by an OpenID provider: a real one on 127.0.0.1, with discovery, signed ID tokens and user info."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from allauth.socialaccount.models import SocialAccount
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from agentops.accounts.access import SYSTEM
from agentops.accounts.invitations import invite, url_path
from agentops.accounts.login.addresses import change_address, is_verified
from agentops.accounts.models import AuditEntry, Invitation, Membership, Project
from agentops.site.computed_settings import openid_providers
from tests.support.factories import forget_attempts, verify_address
from tests.support.logins import CLIENT_ID, CLIENT_SECRET, OpenIDProvider, add_app, urls_with

NAME = "Team login"
ALICE = {"sub": "1001", "email": "Alice@Example.org", "email_verified": True, "preferred_username": "alice.a"}


@pytest.fixture(scope="session")
def provider() -> Iterator[OpenIDProvider]:
    provider = OpenIDProvider()
    yield provider
    provider.close()


@pytest.fixture(autouse=True)
def site(provider: OpenIDProvider, settings: Any, db: None) -> None:
    """Configure the provider, whose user is Alice."""
    forget_attempts()
    provider.claims, provider.token_claims = dict(ALICE), {}
    settings.AGENTOPS_OIDC_ISSUER, settings.AGENTOPS_OIDC_NAME = provider.issuer, NAME
    settings.SOCIALACCOUNT_PROVIDERS = openid_providers(
        provider.issuer, name=NAME, client_id=CLIENT_ID, secret=CLIENT_SECRET
    )
    settings.ROOT_URLCONF = urls_with("second_factor_urls", "openid_urls")


@pytest.fixture
def alice(site: None) -> User:
    return verify_address(User.objects.create_user("alice", email="alice@example.org"))


def start(client: Client, query: str = "") -> str:
    """Begin a login, and return the address to which the provider sends the browser back."""
    answer = client.get(f"/login/openid{query}")
    assert answer.status_code == 302
    back = httpx.get(answer["Location"])
    assert back.status_code == 302
    return back.headers["Location"].removeprefix("http://testserver")


def log_in(query: str = "", client: Client | None = None) -> tuple[Any, Client]:
    client = client or Client()
    return client.get(start(client, query)), client


def is_logged_in(client: Client) -> bool:
    return client.get("/account").status_code == 200


def assert_refused(answer: Any, client: Client, text: str, status: int = 403) -> None:
    assert (answer.status_code, b"login_refused" in answer.content) == (status, True)
    assert text in answer.content.decode()
    assert not is_logged_in(client)
    assert not SocialAccount.objects.exists()


# --- Off, and on ---------------------------------------------------------------------------------------------------


def test_without_the_settings_there_is_no_page_and_no_button(settings: Any) -> None:
    settings.ROOT_URLCONF, settings.AGENTOPS_OIDC_ISSUER = "agentops.urls", ""

    assert {Client().get(path).status_code for path in ("/login/openid", "/login/openid/callback")} == {404}
    assert b"Log in with" not in Client().get("/login").content


def test_the_login_page_has_a_button_that_keeps_the_page(alice: User) -> None:
    page = Client().get("/login?next=/p/alpha/runs").content.decode()

    assert 'href="/login/openid?next=/p/alpha/runs">Log in with Team login</a>' in page


def test_the_request_to_the_provider(provider: OpenIDProvider) -> None:
    target = urlsplit(Client().get("/login/openid")["Location"])
    query = {name: values[0] for name, values in parse_qs(target.query).items()}

    assert target._replace(query="").geturl() == f"{provider.issuer}/authorize"
    assert query.pop("state")
    assert query.pop("code_challenge")
    assert set(query.pop("scope").split()) == {"openid", "profile", "email"}
    assert query == {
        "client_id": CLIENT_ID,
        "redirect_uri": "http://testserver/login/openid/callback",
        "response_type": "code",
        "code_challenge_method": "S256",
    }


# --- Accounts ------------------------------------------------------------------------------------------------------


def test_a_user_with_the_verified_address_logs_in(alice: User) -> None:
    answer, client = log_in("?next=/projects")

    assert answer["Location"] == "/projects"
    assert client.session["_auth_user_id"] == str(alice.pk)
    assert "browser" in client.cookies
    [entry] = AuditEntry.objects.filter(action="login")
    assert (entry.actor, entry.ip, entry.after) == ("user:alice", "127.0.0.1", {"method": "openid"})
    [account] = SocialAccount.objects.all()
    assert (account.user, account.uid, account.extra_data) == (alice, "1001", {})


def test_a_connected_user_logs_in_whatever_their_address(alice: User, provider: OpenIDProvider) -> None:
    log_in()
    change_address(alice, "", actor=SYSTEM)
    provider.claims |= {"email": "new@example.org", "email_verified": False}

    _, client = log_in()

    assert client.session["_auth_user_id"] == str(alice.pk)
    assert User.objects.count() == 1


def test_an_account_belongs_to_the_users_of_one_provider(alice: User, provider: OpenIDProvider) -> None:
    """Another provider may give the same subject to another person."""
    SocialAccount.objects.create(user=alice, provider="https://other.example.org", uid="1002")
    provider.claims |= {"sub": "1002", "email": "mallory@example.org"}

    answer, client = log_in()

    assert answer.status_code == 403
    assert not is_logged_in(client)


def test_an_unknown_person_is_refused() -> None:
    assert_refused(*log_in(), "no account has the verified address alice@example.org")
    assert not User.objects.exists()


@pytest.mark.parametrize("claims", [{"email_verified": False}, {"email_verified": None}, {"email": ""}, {"email": "x"}])
def test_an_address_that_the_provider_has_not_verified_is_refused(
    claims: dict[str, Any], alice: User, provider: OpenIDProvider
) -> None:
    provider.claims |= claims
    answer, client = log_in()

    assert answer.status_code in {403, 422}
    assert not is_logged_in(client)
    assert not SocialAccount.objects.exists()


def test_an_address_that_the_user_has_not_verified_is_refused(alice: User) -> None:
    """Otherwise someone could enter the address of another person and wait for their login."""
    change_address(alice, "bob@example.org", actor=SYSTEM)
    change_address(alice, "alice@example.org", actor=SYSTEM)

    assert_refused(*log_in(), "no account has the verified address")


def test_a_deactivated_user_is_refused(alice: User) -> None:
    User.objects.filter(pk=alice.pk).update(is_active=False)
    answer, client = log_in()

    assert (answer.status_code, b"deactivated" in answer.content) == (403, True)
    assert not is_logged_in(client)


@pytest.mark.parametrize("process", ["connect", "redirect"])
def test_accounts_are_connected_by_their_address_only(process: str, alice: User) -> None:
    """A link with allauth's parameter would connect the account of the session with that of an attacker."""
    client = Client()
    client.force_login(User.objects.create_user("bob"))

    log_in(f"?process={process}", client)

    assert client.session["_auth_user_id"] == str(alice.pk)
    assert SocialAccount.objects.get().user == alice


def test_a_link_changes_nothing_of_the_request_to_the_provider() -> None:
    answer = Client().get("/login/openid?scope=admin&auth_params=redirect_uri%3Dhttps%253A%252F%252Fevil.example")
    query = parse_qs(urlsplit(answer["Location"]).query)

    assert query["redirect_uri"] == ["http://testserver/login/openid/callback"]
    assert "admin" not in query["scope"][0]


# --- New people ----------------------------------------------------------------------------------------------------


def test_an_invited_person_gets_an_account_and_joins(project: Project, foreign: Project) -> None:
    """The link of the invitation is then used up, so the login does not lead back to it."""
    for each in (project, foreign):
        invitation = invite(each, "alice@example.org", "viewer", actor="user:boss")

    answer, client = log_in(f"?next={url_path(invitation)}")

    user = User.objects.get()
    assert (user.username, user.email, user.has_usable_password()) == ("alice.a", "alice@example.org", False)
    assert is_verified(user)
    memberships = Membership.objects.filter(user=user).values_list("project__slug", "role")
    assert set(memberships) == {("alpha", "viewer"), ("beta", "viewer")}
    assert not Invitation.objects.exists()
    assert client.get(answer["Location"]).status_code == 200
    actions = AuditEntry.objects.filter(actor="user:alice.a").values_list("action", flat=True)
    assert {"user.created", "user.address_verified", "invitation.accepted", "login"} <= set(actions)


def test_an_expired_invitation_is_none(project: Project) -> None:
    invite(project, "alice@example.org", "viewer", actor="user:boss")
    Invitation.objects.update(expires_at=timezone.now() - timedelta(seconds=1))

    assert_refused(*log_in(), "no project has invited it")


def test_with_the_setting_everyone_gets_an_account(settings: Any, provider: OpenIDProvider) -> None:
    settings.AGENTOPS_OIDC_CREATE_USERS = True
    User.objects.create_user("Alice.A")
    log_in()
    provider.claims |= {"sub": "1002", "email": "bob@example.org", "preferred_username": "bob@example.org"}
    answer, client = log_in()

    alice, bob = User.objects.filter(password__startswith="!", email__gt="").order_by("pk")
    assert alice.username.startswith("alice.a")
    assert len(alice.username) > len("alice.a"), "another user has this name"
    assert (bob.username, is_verified(bob), Membership.objects.exists()) == ("bob", True, False)
    assert b"not a member of any project" in client.get(answer["Location"]).content


# --- Second factor -------------------------------------------------------------------------------------------------


def test_the_second_factor_of_the_site_is_required_too(alice: User, settings: Any) -> None:
    settings.AGENTOPS_SECOND_FACTOR = True
    app = add_app(alice)
    answer, client = log_in("?next=/projects")
    assert answer["Location"] == "/login/second-factor"
    assert not is_logged_in(client)

    assert client.post("/login/second-factor", {"code": app.code()})["Location"] == "/projects"
    assert is_logged_in(client)


# --- Invalid answers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "another client"},
        {"iss": "https://other.example.org"},
        {"exp": int(time.time()) - 60},
        {"sub": "1002"},
        {"sub": "x" * 300},
    ],
    ids=["audience", "issuer", "expired", "subject", "long subject"],
)
def test_invalid_id_tokens_are_refused(claims: dict[str, Any], alice: User, provider: OpenIDProvider) -> None:
    provider.token_claims = claims

    assert_refused(*log_in(), "the login by Team login failed")


def test_an_answer_to_another_browser_is_refused(alice: User) -> None:
    """Otherwise an attacker could log a person in as the attacker."""
    back = start(Client())
    client = Client()

    assert_refused(client.get(back), client, "the login by Team login failed")


def test_an_answer_is_valid_once(alice: User) -> None:
    client = Client()
    back = start(client)
    assert client.get(back).status_code == 302
    client.logout()

    assert client.get(back).status_code == 403


def test_a_wrong_client_secret_is_refused(alice: User, settings: Any, provider: OpenIDProvider) -> None:
    settings.SOCIALACCOUNT_PROVIDERS = openid_providers(provider.issuer, name=NAME, client_id=CLIENT_ID, secret="x")

    assert_refused(*log_in(), "the login by Team login failed")


def test_a_cancelled_login_says_so(alice: User) -> None:
    client = Client()
    state = parse_qs(urlsplit(client.get("/login/openid")["Location"]).query)["state"][0]

    answer = client.get(f"/login/openid/callback?error=access_denied&state={state}")

    assert_refused(answer, client, "was cancelled")


def test_a_login_redirects_to_no_other_site(alice: User) -> None:
    for target in ("//evil.example", "https://evil.example/", "javascript:alert(1)", "/\\evil.example"):
        assert log_in(f"?next={target}")[0]["Location"] == "/"


def test_a_provider_that_does_not_answer_is_unavailable(settings: Any, provider: OpenIDProvider) -> None:
    settings.SOCIALACCOUNT_PROVIDERS = openid_providers(provider.issuer, name=NAME, client_id="", secret="")
    settings.SOCIALACCOUNT_PROVIDERS["openid_connect"]["APPS"][0]["settings"] = {"server_url": "http://127.0.0.1:1"}

    answer = Client().get("/login/openid")

    assert (answer.status_code, b"provider_unavailable" in answer.content) == (503, True)


def test_logins_that_are_only_started_are_limited_by_network(provider: OpenIDProvider) -> None:
    from agentops.accounts.login.openid import STARTS

    for _ in range(STARTS.limit):
        STARTS.wait_s("203.0.113.7")

    assert Client(REMOTE_ADDR="203.0.113.7").get("/login/openid").status_code == 429
    assert Client(REMOTE_ADDR="203.0.113.8").get("/login/openid").status_code == 302
