"""Login and logout: rate limit of failures, messages, redirect targets and the audit log."""

from __future__ import annotations

import threading
import time
from typing import Any
from urllib.parse import quote

import pytest
import redis
from django.conf import settings as live_settings
from django.contrib.auth.hashers import Argon2PasswordHasher
from django.contrib.auth.models import User
from django.db import connections
from django.test import Client
from django.urls import reverse

from agentops.accounts.login.forms import ACCOUNT_FAILURES, FAILURES, REFUSED
from agentops.accounts.login.throttle import Slowdown, Throttle
from agentops.accounts.models import AuditEntry, Project, Role
from tests.support.factories import forget_attempts
from tests.support.timing import eventually

PASSWORD = "correct horse battery staple"
pytestmark = pytest.mark.usefixtures("cheap_passwords")


@pytest.fixture(autouse=True)
def no_failures_yet() -> None:
    forget_attempts()


@pytest.fixture
def alice(db: None) -> User:
    return User.objects.create_user("alice", password=PASSWORD)


def log_in(name: str = "alice", password: str = PASSWORD, client: Client | None = None, **data: str) -> Any:
    return (client or Client()).post("/login", {"username": name, "password": password, **data})


# --- Login and logout ---------------------------------------------------------------------------------------------


def test_login_and_logout(alice: User) -> None:
    client = Client()

    page = client.get("/login?next=/p/alpha/runs")
    assert page.status_code == 200
    assert b'name="next" value="/p/alpha/runs"' in page.content

    answer = log_in(client=client, next="/p/alpha/runs")
    assert (answer.status_code, answer["Location"]) == (302, "/p/alpha/runs")
    assert client.session["_auth_user_id"] == str(alice.pk)
    assert client.session.get_expiry_age() == 7 * 24 * 3600


def test_login_creates_a_new_session_key(alice: User) -> None:
    client = Client()
    before = client.session
    before["kept"] = 1
    before.save()
    client.cookies[live_settings.SESSION_COOKIE_NAME] = before.session_key

    log_in(client=client)

    assert client.session.session_key != before.session_key


@pytest.mark.parametrize(
    "wanted",
    [
        "//evil.example",
        "https://evil.example/",
        "javascript:alert(1)",
        "/\\evil.example",
        "http:///evil.example",
        "\r\n//evil.example",
    ],
)
def test_login_redirects_to_no_other_site(wanted: str, alice: User) -> None:
    assert log_in(next=wanted)["Location"] == "/"
    client = Client()
    client.force_login(alice)
    assert client.get(f"/login?next={quote(wanted)}")["Location"] == "/"


def test_signed_in_user_is_redirected_to_next(alice: User) -> None:
    client = Client()
    client.force_login(alice)

    assert client.get("/login?next=/p/alpha/runs")["Location"] == "/p/alpha/runs"


def test_logout_requires_post(alice: User) -> None:
    client = Client()
    client.force_login(alice)

    assert client.get("/logout").status_code == 405
    assert "_auth_user_id" in client.session

    answer = client.post("/logout")
    assert (answer.status_code, answer["Location"]) == (302, "/login")
    assert "_auth_user_id" not in client.session


@pytest.mark.parametrize("path", ["/login", "/logout"])
def test_login_and_logout_require_the_csrf_token(path: str, alice: User) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(alice)

    answer = client.post(path, {"username": "alice", "password": PASSWORD})

    assert answer.status_code == 403
    assert b"csrf_failed" in answer.content


# --- Failures -----------------------------------------------------------------------------------------------------


def test_wrong_password_and_unknown_name_give_the_same_answer(alice: User) -> None:
    def said(name: str) -> tuple[int, str]:
        answer = log_in(name, "wrong")
        return answer.status_code, str(answer.context["form"].non_field_errors())

    assert said("alice") == said("nobody")
    assert REFUSED in said("alice")[1]


def test_deactivated_user_gets_the_answer_of_a_wrong_password(alice: User) -> None:
    User.objects.filter(pk=alice.pk).update(is_active=False)

    answer = log_in()

    assert answer.status_code == 422
    assert answer.context["form"].non_field_errors() == [REFUSED]


def test_after_five_failures_the_right_password_is_refused_too(alice: User) -> None:
    wrong = [log_in(password=f"wrong {number}") for number in range(5)]
    right = log_in()

    assert {answer.status_code for answer in wrong} == {422}
    assert right.status_code == 429
    assert 880 < int(right["Retry-After"]) <= 900
    assert right.context["form"].non_field_errors() == wrong[0].context["form"].non_field_errors()
    assert "_auth_user_id" not in right.client.session


@pytest.mark.parametrize("spelling", ["alice", "ALICE", "ａｌｉｃｅ"])
def test_spellings_of_a_name_share_one_limit(spelling: str, alice: User) -> None:
    for number in range(5):
        log_in(spelling, f"wrong {number}")

    assert log_in().status_code == 429


def test_other_users_are_not_limited(alice: User) -> None:
    User.objects.create_user("bob", password=PASSWORD)
    for number in range(6):
        log_in(password=f"wrong {number}")

    assert log_in("bob").status_code == 302
    elsewhere = Client(REMOTE_ADDR="192.0.2.7")
    assert log_in(client=elsewhere).status_code == 302


def test_a_header_does_not_change_the_client_address(alice: User) -> None:
    for number in range(6):
        Client().post(
            "/login", {"username": "alice", "password": "wrong"}, headers={"X-Forwarded-For": f"192.0.2.{number}"}
        )

    assert log_in().status_code == 429


@pytest.mark.parametrize("address", ["203.0.113.{0}", "2001:db8:0:{0}::1", "::ffff:203.0.113.{0}"])
def test_guesses_from_many_addresses_are_slowed_down(
    address: str, alice: User, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each address has five tries, all addresses together 20; after that, pauses grow."""
    settings.AGENTOPS_LOGIN_ATTEMPTS = 0
    assert [ACCOUNT_FAILURES.pause(beyond) for beyond in (0, 1, 2, 8, 9, 500)] == [1, 2, 4, 256, 300, 300]
    monkeypatch.setattr(ACCOUNT_FAILURES, "pause", lambda beyond: 300)
    asked = [log_in(password=f"wrong {n}", client=Client(REMOTE_ADDR=address.format(n))) for n in range(1, 30)]
    stranger = log_in(client=Client(REMOTE_ADDR="198.51.100.7"))

    assert [answer.status_code for answer in [*asked, stranger]] == [422] * 21 + [429] * 9
    assert {str(answer.context["form"].non_field_errors()) for answer in [*asked, stranger]} == {
        str(asked[0].context["form"].non_field_errors())
    }
    assert AuditEntry.objects.filter(action="login_failed").count() == 21


def test_addresses_of_one_network_share_one_limit(alice: User) -> None:
    """A customer with an IPv6 network has 2^64 addresses."""
    for number in range(5):
        log_in(password="wrong", client=Client(REMOTE_ADDR=f"2001:db8::{number}"))
    assert log_in(client=Client(REMOTE_ADDR="2001:db8::ffff")).status_code == 429
    assert log_in(client=Client(REMOTE_ADDR="2001:db8:0:1::1")).status_code == 302


def test_guessing_does_not_lock_out_the_owner_of_the_account(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """A browser that logged in earlier can still log in during the attack."""
    known = Client()
    assert log_in(client=known).status_code == 302
    known.post("/logout")
    monkeypatch.setattr(ACCOUNT_FAILURES, "pause", lambda beyond: 300)
    for number in range(21):
        log_in(password=f"wrong {number}", client=Client(REMOTE_ADDR=f"203.0.113.{number}"))
    assert log_in(client=Client(REMOTE_ADDR="198.51.100.7")).status_code == 429
    assert log_in(client=known).status_code == 302


def test_a_pause_ends_and_tries_during_it_do_not_extend_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for pause_s in (1, 10, 60):  # retry with a longer pause if a busy machine took too long
        slowdown = Slowdown(f"test-{pause_s}", free=2, seconds=600, longest_pause=pause_s)
        monkeypatch.setattr(slowdown, "pause", lambda beyond, pause_s=pause_s: pause_s)
        begun = time.monotonic()
        tries = [slowdown.wait_s("alice") > 0 for _ in range(4)]
        if time.monotonic() - begun < pause_s:
            break
    assert tries == [False, False, False, True]
    eventually(lambda: not slowdown.wait_s("alice"), why="the pause is over")
    slowdown.forget_one("alice")
    assert not slowdown.wait_s("bob")


def test_a_known_browser_has_five_tries_like_an_address(alice: User) -> None:
    """Also a browser with a stolen cookie. Another user's cookie, or a forged one, has no effect."""
    client = Client()
    log_in(client=client)
    cookie = client.cookies["browser"]
    assert cookie["httponly"]
    for number in range(5):
        log_in(password="wrong", client=browser(cookie.value, f"203.0.113.{number}"))
    assert log_in(client=browser(cookie.value, "203.0.113.9")).status_code == 429
    assert log_in(client=browser(cookie.value + "x", "203.0.113.9")).status_code == 302

    User.objects.create_user("bob", password=PASSWORD)
    assert log_in("bob", client=browser(cookie.value, "203.0.113.10")).status_code == 302


def browser(cookie: str, address: str) -> Client:
    client = Client(REMOTE_ADDR=address)
    client.cookies["browser"] = cookie
    return client


@pytest.mark.slow
def test_the_limit_ends_fifteen_minutes_after_the_first_failure(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    assert FAILURES.seconds == 15 * 60
    # The clock is the cache's, possibly in Redis, so the test really waits; the wait is short.
    for limit_s in (2, 20, 90):  # retry with a longer limit if a busy machine took too long
        forget_attempts()
        monkeypatch.setattr(FAILURES, "seconds", limit_s)
        begun = time.monotonic()
        for number in range(6):
            log_in(password=f"wrong {number}")
        refused = log_in().status_code
        if time.monotonic() - begun < limit_s:
            break
    assert refused == 429
    time.sleep(max(0, begun + limit_s + 0.1 - time.monotonic()))

    assert log_in().status_code == 302


def test_success_resets_the_count(alice: User) -> None:
    for _ in range(3):
        for number in range(4):
            log_in(password=f"wrong {number}")
        assert log_in().status_code == 302


@pytest.fixture
def hashes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect one entry for each password hashed."""
    entries: list[str] = []
    for name in ("encode", "verify"):
        original = getattr(Argon2PasswordHasher, name)
        monkeypatch.setattr(
            Argon2PasswordHasher, name, lambda *args, original=original: (entries.append("hash"), original(*args))[1]
        )
    return entries


def test_an_attempt_is_hashed_once_and_a_refused_one_never(
    alice: User, hashes: list[str], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for unknown names, so response times do not reveal which names exist."""
    counts: dict[str, tuple[int, int]] = {}

    def count(case: str, name: str, address: str = "127.0.0.1") -> None:
        hashes.clear()
        answer = log_in(name, "wrong", client=Client(REMOTE_ADDR=address))
        counts[f"{case} {name}"] = answer.status_code, len(hashes)

    monkeypatch.setattr(ACCOUNT_FAILURES, "pause", lambda beyond: 300)
    settings.AGENTOPS_LOGIN_ATTEMPTS = 0
    for name in ("alice", "nobody"):
        count("counted", name)
        for _ in range(4):
            log_in(name, "wrong")
        count("held up", name)
        for number in range(21):
            log_in(name, "wrong", client=Client(REMOTE_ADDR=f"203.0.113.{number}"))
        count("slowed down", name, "198.51.100.7")
    settings.AGENTOPS_LOGIN_ATTEMPTS = 1
    log_in("somebody", "wrong", client=Client(REMOTE_ADDR="192.0.2.1"))
    for name in ("alice", "nobody"):
        count("of a busy network", name, "192.0.2.2")

    assert {result for case, result in counts.items() if case.startswith("counted")} == {(422, 1)}
    assert {result for case, result in counts.items() if not case.startswith("counted")} == {(429, 0)}


def test_one_password_for_many_names_is_limited_by_network(alice: User, hashes: list[str]) -> None:
    """The tries come from different addresses of a network that a provider usually gives to one customer."""
    known = Client()
    log_in(client=known)
    known.post("/logout")
    networks = [
        (lambda n: f"203.0.113.{n}", "203.0.114.1"),
        (lambda n: f"2001:db8:0:{n:x}::1", "2001:db8:0:100::1"),
        (lambda n: f"::ffff:198.51.100.{n}", "198.51.101.1"),
    ]
    for address_of, elsewhere in networks:
        answers = [log_in(f"name-{n}", "wrong", client=Client(REMOTE_ADDR=address_of(n))) for n in range(30)]
        hashes.clear()
        refused = log_in(client=Client(REMOTE_ADDR=address_of(31)))

        assert {answer.status_code for answer in answers} == {422}
        assert (refused.status_code, len(hashes)) == (429, 0)
        assert 0 < int(refused["Retry-After"]) <= 900
        assert log_in(client=Client(REMOTE_ADDR=elsewhere)).status_code == 302
        # A browser that logged in from this network before can still log in.
        neighbour = browser(known.cookies["browser"].value, address_of(32))
        assert log_in(client=neighbour).status_code == 302


def test_successful_logins_do_not_count_against_a_network(alice: User) -> None:
    assert {log_in().status_code for _ in range(40)} == {302}


@pytest.mark.django_db(transaction=True)
def test_a_process_hashes_two_passwords_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hash takes 100 MiB. Of eight attempts at once, two are hashed, two wait, and four are refused uncounted."""
    let_go, running, most = threading.Event(), [], []

    def encode(self: Any, password: str, salt: str) -> str:
        running.append(password)
        most.append(len(running))
        let_go.wait(60)
        running.pop()
        return f"argon2${salt}"

    monkeypatch.setattr(Argon2PasswordHasher, "encode", encode)
    answers: dict[str, Any] = {}

    def guess(name: str) -> None:
        try:
            answers[name] = log_in(name, "wrong")
        finally:
            connections.close_all()

    threads = [threading.Thread(target=guess, args=[f"nobody-{number}"]) for number in range(8)]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: len(answers) + len(running) >= 6, within_s=20, why="six are hashed or refused")
    finally:
        let_go.set()
        for thread in threads:
            thread.join(60)

    assert max(most) == 2
    refused = {name: answer["Retry-After"] for name, answer in answers.items() if answer.status_code == 429}
    assert sorted(answer.status_code for answer in answers.values()) == [422] * 4 + [429] * 4
    assert set(refused.values()) == {"2"}
    assert {log_in(next(iter(refused)), "wrong").status_code for _ in range(5)} == {422}, "none was counted"


@pytest.mark.parametrize("password", ["x" * 1025, "x" * 1_000_000, "ü" * 1025])
def test_a_password_that_is_too_long_is_not_hashed(password: str, alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    def hashed(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a password was hashed")

    monkeypatch.setattr("django.contrib.auth.hashers.Argon2PasswordHasher.encode", hashed)
    monkeypatch.setattr("django.contrib.auth.hashers.Argon2PasswordHasher.verify", hashed)

    assert log_in(password=password).status_code == 400


def test_a_password_may_be_long_and_of_any_script(db: None) -> None:
    password = "пароль 密码 🔑 " * 60
    User.objects.create_user("olga", password=password)

    assert log_in("olga", password).status_code == 302


@pytest.mark.parametrize("name", ["a\x00b", "x" * 151, "", "' OR 1=1 --", "<script>alert(1)</script>"])
def test_hostile_names_are_refused_and_escaped(name: str, alice: User) -> None:
    answer = log_in(name)

    assert answer.status_code == 422
    assert b"<script>alert" not in answer.content


def test_a_form_that_is_too_large_is_refused(alice: User) -> None:
    answer = log_in(password="x" * 3_000_000)

    assert answer.status_code == 413
    assert b"body_too_large" in answer.content


def test_login_works_and_is_limited_while_redis_is_down(alice: User, settings: Any) -> None:
    """Uses a real Redis client and a port on which nothing listens."""
    settings.REDIS_URL = "redis://127.0.0.1:1/0"

    assert log_in(password="wrong").status_code == 422
    assert log_in().status_code == 302
    assert [log_in(password="wrong").status_code for _ in range(11)] == [422] * 10 + [429]


@pytest.mark.redis
def test_attempts_are_shared_by_redis_and_counted_by_each_process_too(redis_url: str) -> None:
    throttle = Throttle("test", limit=2, seconds=60)

    assert [throttle.spent("alice", "here") for _ in range(4)] == [False, False, True, True]
    assert not throttle.spent("alice", "there")
    with redis.Redis.from_url(redis_url) as client:
        assert [0 < client.ttl(key) <= 60 for key in client.scan_iter()] == [True, True]
        throttle.forget("alice", "here")
        # An attacker who can write to Redis raises the limit to at most twice the limit of each process.
        tries = [(client.flushdb(), throttle.spent("alice", "here"))[1] for _ in range(6)]
        assert tries == [False] * 4 + [True] * 2
        # A counter that never expires, or has an invalid value, locks out no user.
        throttle.forget("alice", "here")
        throttle.spent("alice", "here")
        [key] = [key for key in client.scan_iter() if client.get(key) == b"1" and client.ttl(key) > 0]
        for value in ("1000000000", "garbage"):
            client.set(key, value)
            assert not throttle.spent("alice", "here")
            throttle.forget("alice", "here")


# --- Audit log -----------------------------------------------------------------------------------------------------


def test_both_outcomes_are_audited(alice: User) -> None:
    log_in(password="wrong")
    log_in("hunter2 typed into the wrong box", "wrong")
    log_in()

    entries = AuditEntry.objects.order_by("created_at").values_list("action", "actor", "object_id", "ip", "project")
    assert list(entries) == [
        ("login_failed", "user:alice", str(alice.pk), "127.0.0.1", None),
        ("login_failed", "anonymous", "", "127.0.0.1", None),
        ("login", "user:alice", str(alice.pk), "127.0.0.1", None),
    ]


def test_attempts_refused_by_the_limit_do_not_fill_the_audit_log(alice: User) -> None:
    for number in range(12):
        log_in(password=f"wrong {number}")

    assert AuditEntry.objects.count() == 5


# --- The start page -----------------------------------------------------------------------------------------------


def test_start_page_leads_to_the_only_project_or_lists_several(project: Project, foreign: Project, member: Any) -> None:
    bob = member("bob", Role.VIEWER)
    boss = member("boss", superuser=True)

    def start_of(user: User) -> Any:
        client = Client()
        client.force_login(user)
        return client.get("/")

    assert Client().get("/")["Location"] == "/login?next=%2F"
    assert start_of(bob)["Location"] == reverse("runs:overview", args=["alpha"])
    listed = start_of(boss).content.decode()
    assert [f'href="/p/{slug}"' in listed for slug in ("alpha", "beta")] == [True, True]


def test_start_page_without_a_project_shows_a_message(db: None) -> None:
    client = Client()
    client.force_login(User.objects.create_user("newcomer<script>"))
    page = client.get("/")
    assert page.status_code == 200
    assert b"not a member of any project" in page.content
    assert b"newcomer&lt;script&gt;" in page.content
    assert b"newcomer<script>" not in page.content

    client.force_login(User.objects.create_superuser("boss"))
    assert b'href="/projects">Create a project</a>' in client.get("/").content


# --- The admin uses the site's login ---------------------------------------------------------------------------------


def test_admin_uses_the_site_login(alice: User) -> None:
    client = Client()
    first = client.get("/admin/", follow=True)
    assert first.redirect_chain[-1][0].startswith("/login?next=")
    assert client.post("/admin/login/", {"username": "alice", "password": PASSWORD}).status_code == 405

    client.force_login(alice)
    refused = client.get("/admin/", follow=True)
    assert (refused.status_code, len(refused.redirect_chain)) == (403, 1)
    assert b"role_required" in refused.content

    User.objects.filter(pk=alice.pk).update(is_staff=True, is_superuser=True)
    client.logout()
    followed = client.get("/admin/", follow=True)
    answer = log_in(client=client, next=followed.context["next"])
    assert client.get(answer["Location"], follow=True).request["PATH_INFO"] == "/admin/"
    assert client.get("/admin/login/?next=//evil.example")["Location"] == "/admin/"
