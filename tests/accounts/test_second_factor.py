"""The second factor: adding it, logging in with it, recovery codes, limits, and removing it."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client

from agentops.accounts.login.forms import TRIES
from agentops.accounts.login.second_factor import CODES
from agentops.accounts.models import AuditEntry, Project
from tests.support.factories import forget_attempts, with_key
from tests.support.logins import AuthenticatorApp, add_app, urls_with

PASSWORD = "correct horse battery staple"
CODE_PAGE = "/login/second-factor"
PAGES = ["/account/second-factor", "/account/second-factor/add", "/account/second-factor/remove", "/account/confirm"]
PAGES += ["/account/second-factor/recovery-codes", "/account/second-factor/recovery-codes/replace", CODE_PAGE]
pytestmark = pytest.mark.usefixtures("cheap_passwords")


@pytest.fixture(autouse=True)
def no_attempts_yet() -> None:
    forget_attempts()


@pytest.fixture
def alice(db: None) -> User:
    return User.objects.create_user("alice", password=PASSWORD)


@pytest.fixture
def site(settings: Any) -> None:
    """Switch second factors on."""
    settings.AGENTOPS_SECOND_FACTOR = True
    settings.ROOT_URLCONF = urls_with("second_factor_urls")


@pytest.fixture
def app(alice: User, site: None) -> AuthenticatorApp:
    return add_app(alice)


def enter_password(client: Client | None = None, **data: str) -> Any:
    client = client or Client()
    return client.post("/login", {"username": "alice", "password": PASSWORD, **data}), client


def enter_code(client: Client, code: str) -> Any:
    return client.post(CODE_PAGE, {"code": code})


def is_logged_in(client: Client) -> bool:
    return client.get("/account").status_code == 200


def confirm(client: Client, page: str, password: str = PASSWORD) -> Any:
    """Open a page that requires the password, and enter it there."""
    question = client.get(page)["Location"]
    return client.post(question, {"password": password, "next": page})


# --- Adding and removing it ---------------------------------------------------------------------------------------


def test_without_the_setting_there_is_no_page(alice: User) -> None:
    client = Client()
    client.force_login(alice)

    assert {client.get(page).status_code for page in PAGES} == {404}
    assert "second-factor" not in client.get("/account").content.decode()


@pytest.mark.django_db(transaction=True)
def test_a_second_factor_is_added_with_the_password_and_a_code(alice: User, site: None) -> None:
    client = Client()
    client.force_login(alice)
    assert client.get("/account").content.decode().count('href="/account/second-factor"') == 1
    assert confirm(client, PAGES[1], "wrong").context["form"].errors == {"password": ["Wrong password."]}
    assert confirm(client, PAGES[1])["Location"] == PAGES[1]

    page = client.get(PAGES[1]).content.decode()
    key = re.findall(r'id="key">([A-Z2-7]+)<', page)[0]
    app = AuthenticatorApp(key)
    assert client.post(PAGES[1], {"code": app.wrong_code()}).context["form"].errors == {"code": ["Incorrect code."]}
    added = client.post(PAGES[1], {"code": app.code()}, follow=True)

    codes = re.findall(r"<code>(\d{8})</code>", added.content.decode())
    assert len(set(codes)) == 10
    assert "Authenticator app added." in added.content.decode()
    entries = AuditEntry.objects.filter(action="user.second_factor_changed").order_by("created_at")
    assert [(entry.actor, entry.after["type"], entry.after["change"]) for entry in entries] == [
        ("user:alice", "totp", "added"),
        ("user:alice", "recovery_codes", "added"),
    ]


def test_secrets_are_stored_encrypted(app: AuthenticatorApp, alice: User, settings: Any) -> None:
    """If the key of the settings is replaced, the login says so."""
    stored = str(list(Authenticator.objects.values_list("data", flat=True)))
    assert app.key not in stored
    assert not any(code in stored for code in app.recovery_codes)

    settings.SECRET_KEY = "another key of the test suite, 0123456789 abcdefghijklmnopqrstuvwxyz"
    _, client = enter_password()
    refused = enter_code(client, app.code())
    assert (refused.status_code, b"second_factor_unreadable" in refused.content) == (503, True)


def test_pages_of_the_second_factor_require_a_login_and_the_password(app: AuthenticatorApp, alice: User) -> None:
    client = Client()
    assert client.get(PAGES[0])["Location"] == f"/login?next={PAGES[0]}"
    client.force_login(alice)
    asked = [client.get(page)["Location"] for page in (PAGES[2], *PAGES[4:6])]
    asked += [client.post(page)["Location"] for page in (PAGES[2], PAGES[5])]
    assert {page.partition("?")[0] for page in asked} == {"/account/confirm"}
    assert Authenticator.objects.count() == 2


def test_guesses_of_the_password_are_limited_together_with_other_pages(app: AuthenticatorApp, alice: User) -> None:
    client = Client()
    client.force_login(alice)
    for number in range(TRIES.limit):
        client.post("/account/address", {"email": "", "password": f"wrong {number}"})

    refused = confirm(client, PAGES[2])

    assert refused.context["form"].errors == {"password": ["Too many attempts. Wait 15 minutes."]}


def test_recovery_codes_are_replaced(app: AuthenticatorApp, alice: User) -> None:
    client = Client()
    client.force_login(alice)
    confirm(client, PAGES[5])
    replaced = client.post(PAGES[5], follow=True).content.decode()

    codes = set(re.findall(r"<code>(\d{8})</code>", replaced))
    assert len(codes) == 10
    _, other = enter_password()
    assert enter_code(other, (set(app.recovery_codes) - codes).pop()).status_code == 200
    assert enter_code(other, codes.pop()).status_code == 302


def test_a_second_factor_is_removed_with_the_password(app: AuthenticatorApp, alice: User) -> None:
    client = Client()
    client.force_login(alice)
    confirm(client, PAGES[2])
    assert client.post(PAGES[2])["Location"] == PAGES[0]

    assert not Authenticator.objects.exists()
    assert enter_password()[0]["Location"] == "/"


def test_a_user_without_a_password_adds_none(alice: User, site: None) -> None:
    """Such users log in by an OpenID provider, which has second factors itself."""
    alice.set_unusable_password()
    alice.save()
    client = Client()
    client.force_login(alice)

    assert b"has no password" in client.get(PAGES[0]).content
    assert client.get(PAGES[1]).status_code == 403
    assert b'name="old_password"' not in client.get("/account").content


# --- Logging in ---------------------------------------------------------------------------------------------------


def test_a_login_requires_the_code_and_leads_to_the_page(app: AuthenticatorApp, alice: User) -> None:
    answer, client = enter_password(next="/projects")
    assert answer["Location"] == CODE_PAGE
    assert not is_logged_in(client)
    assert "browser" not in client.cookies
    assert not AuditEntry.objects.filter(action="login").exists()

    wrong = enter_code(client, app.wrong_code())
    assert wrong.context["form"].errors == {"code": ["Incorrect code."]}
    assert not is_logged_in(client)

    assert enter_code(client, app.code())["Location"] == "/projects"
    assert is_logged_in(client)
    assert "browser" in client.cookies
    entries = AuditEntry.objects.order_by("created_at").values_list("action", "actor", "object_id", "ip")
    assert list(entries) == [
        ("login_failed", "user:alice", str(alice.pk), "127.0.0.1"),
        ("login", "user:alice", str(alice.pk), "127.0.0.1"),
    ]


def test_the_code_page_requires_the_password_first(app: AuthenticatorApp) -> None:
    client = Client()

    assert client.get(CODE_PAGE)["Location"] == "/login"
    assert enter_code(client, app.code())["Location"] == "/login"
    assert not is_logged_in(client)


def test_a_code_is_valid_once_and_near_its_time(app: AuthenticatorApp) -> None:
    code = app.code()
    assert enter_code(enter_password()[1], code).status_code == 302
    assert enter_code(enter_password()[1], code).status_code == 200
    assert enter_code(enter_password()[1], app.code(-4)).status_code == 200
    assert enter_code(enter_password()[1], app.code(1)).status_code == 302


def test_a_recovery_code_is_valid_once(app: AuthenticatorApp) -> None:
    first, second = app.recovery_codes[:2]

    assert enter_code(enter_password()[1], first).status_code == 302
    assert enter_code(enter_password()[1], first).status_code == 200
    assert enter_code(enter_password()[1], second).status_code == 302


def test_codes_are_limited_for_a_user_from_all_addresses(app: AuthenticatorApp) -> None:
    """The right code is refused too. Another user, or a login that is right within the limit, is not affected."""
    answers = []
    for number in range(CODES.limit + 1):
        client = Client(REMOTE_ADDR=f"203.0.113.{number}")
        enter_password(client)
        answers.append(enter_code(client, app.wrong_code()).status_code)
    refused = enter_code(client, app.code())

    assert answers == [200] * CODES.limit + [429]
    assert refused.status_code == 429
    assert 880 < int(refused["Retry-After"]) <= 900
    assert not is_logged_in(client)
    assert AuditEntry.objects.filter(action="login_failed").count() == CODES.limit


def test_a_right_code_resets_the_count(app: AuthenticatorApp) -> None:
    for code in app.recovery_codes[:3]:
        client = enter_password()[1]
        for _ in range(CODES.limit - 1):
            enter_code(client, app.wrong_code())
        assert enter_code(client, code).status_code == 302


def test_the_administration_requires_the_code(app: AuthenticatorApp, alice: User) -> None:
    User.objects.filter(pk=alice.pk).update(is_superuser=True)
    client = Client()
    login = client.get("/admin/", follow=True)
    assert login.redirect_chain[-1][0].startswith("/login?next=")

    enter_password(client, next=login.context["next"])
    assert client.get("/admin/").status_code == 302

    answer = enter_code(client, app.code())
    assert client.get(answer["Location"], follow=True).request["PATH_INFO"] == "/admin/"


def test_api_keys_need_no_code(app: AuthenticatorApp, project: Project) -> None:
    assert Client(headers=with_key(project)).get("/api/projects").status_code == 200


def test_if_it_is_switched_off_again_logins_require_the_password_only(app: AuthenticatorApp, settings: Any) -> None:
    settings.AGENTOPS_SECOND_FACTOR = False
    settings.ROOT_URLCONF = "agentops.urls"

    answer, client = enter_password()

    assert answer["Location"] == "/"
    assert is_logged_in(client)


@pytest.mark.redis
def test_without_redis_recovery_codes_work_and_codes_of_the_app_are_refused(
    app: AuthenticatorApp, settings: Any, redis_url: str
) -> None:
    """Redis remembers which codes of the app were used. Nothing listens on the port."""
    settings.CACHES = cache_of("redis://127.0.0.1:1/0")
    refused = enter_code(enter_password()[1], app.code())
    assert (refused.status_code, b"redis_unavailable" in refused.content) == (503, True)
    assert enter_code(enter_password()[1], app.recovery_codes[0]).status_code == 302

    settings.CACHES = cache_of(redis_url)
    code = app.code()
    assert [enter_code(enter_password()[1], code).status_code for _ in range(2)] == [302, 200]


def cache_of(url: str) -> dict[str, Any]:
    from agentops.base.backing_services import cache_config

    return {"default": cache_config(url)}


# --- A lost phone -------------------------------------------------------------------------------------------------


def test_an_operator_removes_the_second_factor(app: AuthenticatorApp, alice: User) -> None:
    out = io.StringIO()
    call_command("second_factor", "remove", "alice", stdout=out)
    call_command("second_factor", "remove", "alice", stdout=out)
    with pytest.raises(CommandError):
        call_command("second_factor", "remove", "nobody")

    assert out.getvalue() == "alice has no second factor now\nalice had no second factor\n"
    assert enter_password()[0]["Location"] == "/"
    [entry] = AuditEntry.objects.filter(action="user.second_factor_changed")
    assert (entry.door, entry.object_id, entry.after["change"]) == ("command", str(alice.pk), "removed")


def test_superusers_see_and_remove_second_factors(app: AuthenticatorApp, alice: User) -> None:
    boss = Client()
    boss.force_login(User.objects.create_superuser("boss"))
    listed = boss.get("/admin/auth/user/").content.decode()
    assert re.search(r'field-second_factor"><img[^>]*alt="True"', listed)

    form = {"action": "remove_second_factors", "_selected_action": str(alice.pk)}
    done = boss.post("/admin/auth/user/", form, follow=True)

    assert b"Second factors removed: 1." in done.content
    assert not Authenticator.objects.exists()
    assert boss.get("/admin/mfa/authenticator/").status_code == 404
