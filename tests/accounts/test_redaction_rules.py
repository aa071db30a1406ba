"""Redaction rules of a project: permissions, stored secrets, and when processes see a change."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError, connection, transaction
from django.test import Client

from agentops.accounts import redaction_cache, redaction_changes, sealing
from agentops.accounts.errors import InvalidRule
from agentops.accounts.models import AuditEntry, Project, RedactionRule, Role
from agentops.accounts.redaction_cache import REFRESH_S, RuleCache
from agentops.base.redaction import project_scope
from agentops.base.redaction.redact import BUILT_IN, DEFAULT, EVERYWHERE, placeholder
from tests.support.factories import make_person, make_project
from tests.support.run_checks import refuses, rows_with

pytestmark = pytest.mark.django_db
SECRET = "correct horse/battery"
TOKEN = "acme_0123456789"
Commits = Callable[..., Any]


@pytest.fixture
def alpha() -> Project:
    return make_project("alpha")


@pytest.fixture
def client(alpha: Project) -> Client:
    client = Client()
    client.force_login(make_person(alpha, Role.ADMIN))
    return client


@pytest.fixture
def commits(django_capture_on_commit_callbacks: Commits) -> Iterator[None]:
    with django_capture_on_commit_callbacks(execute=True):
        yield


def url(verb: str = "") -> str:
    return f"/p/alpha/settings/redaction{verb and '/'}{verb}"


def add_some(project: Project) -> None:
    redaction_changes.add_secret(project, "billing", SECRET, actor="test")
    redaction_changes.add_format(project, "acme", "acme_", alphabet="alnum", least=10, most=20, actor="test")
    redaction_changes.add_exception(project, "npm_access_token", actor="test")


# --- Changes --------------------------------------------------------------------------------------------------------


def test_each_change_is_audited_and_no_stored_value_shows_the_secret(alpha: Project) -> None:
    add_some(alpha)
    redaction_changes.remove_rule(alpha, "acme", actor="test")

    rule = RedactionRule.objects.get(name="billing")
    assert redaction_cache.secret_of(rule) == SECRET
    assert (len(rule.key_id), rule.created_by) == (16, "test")
    assert rows_with(SECRET) == rows_with("battery") == []
    entries = AuditEntry.objects.filter(project=alpha, action__startswith="redaction_rule").order_by("id")
    shape = {"kind": "format", "name": "acme", "prefix": "acme_", "alphabet": "alnum", "least": 10, "most": 20}
    assert [(entry.action, entry.before, entry.after) for entry in entries] == [
        ("redaction_rule.added", None, {"kind": "secret", "name": "billing"}),
        ("redaction_rule.added", None, shape),
        ("redaction_rule.added", None, {"kind": "exception", "name": "npm_access_token"}),
        ("redaction_rule.removed", shape, None),
    ]
    for name in ("acme", "acme\0", "\ud800"):
        with refuses("rule_not_found"):
            redaction_changes.remove_rule(alpha, name, actor="test")


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("billing", "another secret", "already exists"),
        ("billing2", SECRET, "'billing' already masks"),
        ("billing2", f"  {SECRET}\r\n", "'billing' already masks"),
        ("github_token", "another secret", "is a built-in kind"),
        *((name, "another secret", "a name has 2 to 32") for name in ("", "x", "1a", "Upper", "a-b", "a" * 33)),
        ("short", "12345", "6 to 4096 characters"),
        ("long", "ab12" * 1025, "6 to 4096 characters"),
        ("dull", "abcabcabc", "at least 4 different"),
        ("nul", "abc\0defg", "NUL or unpaired"),
        ("half", "abc\ud800defg", "NUL or unpaired"),
    ],
)
def test_an_invalid_secret_is_refused(alpha: Project, name: str, value: str, why: str) -> None:
    redaction_changes.add_secret(alpha, "billing", SECRET, actor="test")
    with pytest.raises(InvalidRule, match=why):
        redaction_changes.add_secret(alpha, name, value, actor="test")
    assert RedactionRule.objects.count() == 1


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        *(({"prefix": prefix}, "a prefix") for prefix in ("ab", "a" * 65, "a b", "ä_key", 'a"b', "a\\b", "a%b", "<ab")),
        ({"alphabet": "anything"}, "is not an alphabet"),
        *(({"least": least, "most": most}, "8 to 512") for least, most in ((7, 9), (9, 8), (8, 513))),
    ],
)
def test_a_format_that_could_match_anything_is_refused(alpha: Project, changed: dict[str, Any], why: str) -> None:
    values = {"prefix": "acme_", "alphabet": "alnum", "least": 10, "most": 20} | changed
    with pytest.raises(InvalidRule, match=why):
        redaction_changes.add_format(alpha, "acme", values.pop("prefix"), **values, actor="test")


def test_exceptions_apply_to_built_in_kinds_except_our_own_keys(alpha: Project) -> None:
    for kind, why in (("unheard_of", "not a built-in kind"), ("agentops_key", "always masked")):
        with pytest.raises(InvalidRule, match=why):
            redaction_changes.add_exception(alpha, kind, actor="test")


def test_the_number_of_rules_is_limited(alpha: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction_changes, "MAX_RULES", 2)
    for number in range(2):
        redaction_changes.add_secret(alpha, f"name_{number}", f"secret {number}", actor="test")
    with pytest.raises(InvalidRule, match="at most 2 rules"):
        redaction_changes.add_exception(alpha, "jwt", actor="test")


# --- Encryption -----------------------------------------------------------------------------------------------------


def test_keys_can_be_replaced_and_a_rule_without_its_key_is_reported(
    alpha: Project, client: Client, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    redaction_changes.add_secret(alpha, "old_key", SECRET, actor="test")
    settings.AGENTOPS_ENCRYPTION_KEYS = ["a new key with more than 32 characters"]
    redaction_changes.add_secret(alpha, "new_key", "another secret", actor="test")
    rules = redaction_changes.rules_of(alpha)
    assert len({rule.key_id for rule in rules}) == 2
    assert redaction_cache.rule_set_of(rules).secrets == {SECRET: "old_key", "another secret": "new_key"}
    assert placeholder("old_key", SECRET) in client.get(url()).content.decode()

    settings.SECRET_KEY = "another-key-for-the-test-suite-0123456789-abcdef-0123"
    with caplog.at_level(logging.ERROR):
        assert redaction_cache.rule_set_of(rules).secrets == {"another secret": "new_key"}
    assert "redaction rule old_key of project" in caplog.text
    assert redaction_cache.secret_of(RedactionRule.objects.get(name="new_key")) == "another secret"


def test_an_encrypted_secret_belongs_to_its_rule_and_cannot_be_altered(alpha: Project) -> None:
    sealed, key_id = sealing.seal(SECRET, "a")
    assert sealing.unseal(sealed, key_id, "a") == SECRET
    assert sealing.seal(SECRET, "a")[0] != sealed
    for changed, owner in ((sealed, "b"), (sealed[:-1] + bytes([sealed[-1] ^ 1]), "a")):
        with pytest.raises(sealing.Unreadable):
            sealing.unseal(changed, key_id, owner)


# --- Processes ------------------------------------------------------------------------------------------------------


def test_another_process_sees_a_change_within_seconds(alpha: Project, django_assert_num_queries: Any) -> None:
    now = [0.0]
    other, only = RuleCache(clock=lambda: now[0]), frozenset({alpha.pk})
    assert other.redactor_of(only) is BUILT_IN
    add_some(alpha)
    with django_assert_num_queries(0):
        assert other.redactor_of(only) is BUILT_IN
    now[0] += REFRESH_S
    with django_assert_num_queries(2):
        redactor = other.redactor_of(only)
    npm = f"npm_{'a1B2' * 9}"
    masked, _ = redactor.clean_text(f"{SECRET} {TOKEN} {npm}")
    assert masked == f"{placeholder('billing', SECRET)} {placeholder('acme', TOKEN)} {npm}"
    assert other.redactor_of(only) is redactor
    # Without a change, only the versions are read.
    now[0] += REFRESH_S
    with django_assert_num_queries(1):
        assert other.redactor_of(only) is redactor
    redaction_changes.remove_rule(alpha, "billing", actor="test")
    now[0] += REFRESH_S
    assert other.redactor_of(only).clean_text(SECRET)[0] == SECRET
    Project.objects.filter(pk=alpha.pk).delete()
    now[0] += REFRESH_S
    assert other.redactor_of(None) is BUILT_IN


@pytest.mark.django_db(transaction=True)
def test_this_process_sees_its_change_at_once_and_ignores_a_rollback() -> None:
    alpha, beta = make_project("alpha"), make_project("beta")
    with transaction.atomic():
        redaction_changes.add_secret(alpha, "billing", SECRET, actor="test")
        transaction.set_rollback(True)
    assert DEFAULT.clean_text(SECRET)[0] == SECRET
    redaction_changes.add_secret(alpha, "billing", SECRET, actor="test")
    with project_scope.limited_to(alpha.pk):
        assert DEFAULT.clean_text(SECRET)[0] == placeholder("billing", SECRET)
    with project_scope.limited_to(beta.pk):
        assert DEFAULT.clean_text(SECRET)[0] == SECRET
        project_scope.add(alpha.pk)
        assert DEFAULT.clean_text(SECRET)[0] == placeholder("billing", SECRET)
    # Without a known project, as in log lines, the rules of all projects apply.
    assert DEFAULT.clean_text(SECRET)[0] == EVERYWHERE.clean_text(SECRET)[0] == placeholder("billing", SECRET)
    redaction_changes.add_exception(alpha, "jwt", actor="test")
    jwt = f"eyJ{'a1B2' * 4}.eyJ{'a1B2' * 4}.{'a1B2' * 8}"
    assert "[REDACTED:jwt:" in DEFAULT.clean_text(jwt)[0]
    with project_scope.limited_to(alpha.pk):
        assert DEFAULT.clean_text(jwt)[0] == jwt


def test_rules_are_kept_while_the_connection_is_unusable(alpha: Project, commits: None) -> None:
    other = RuleCache()
    add_some(alpha)
    with transaction.atomic():
        transaction.set_rollback(True)
        assert other.redactor_of(None) is BUILT_IN  # no query, which would have failed
    assert other.redactor_of(None) is not BUILT_IN


# --- The page -------------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_rules_are_added_and_removed_on_the_page(alpha: Project, client: Client) -> None:
    assert b"no rules of its own" in client.get(url()).content
    bodies = [
        {"kind": "secret", "name": "billing", "secret": f"{SECRET}\r\n"},
        {
            "kind": "format",
            "name": "acme",
            "token_prefix": "acme_",
            "alphabet": "alnum",
            "least": "10",
            "most": "20",
        },
        {"kind": "exception", "masked_kind": "npm_access_token"},
    ]
    for body in bodies:
        answer = client.post(url("add"), body)
        assert (answer.status_code, answer["Location"]) == (303, url()), answer.content.decode()
    page = client.get(url()).content.decode()
    for shown in (placeholder("billing", SECRET), "acme_", "10 to 20 characters: letters and digits", "Does not mask"):
        assert shown in page
    assert SECRET not in page
    # The run list links to the page for admins only.
    assert f'href="{url()}"' in client.get("/p/alpha/settings").content.decode()
    with project_scope.limited_to(alpha.pk):
        assert DEFAULT.clean_text(TOKEN)[0] == placeholder("acme", TOKEN)

    for name in ("billing", "acme", "npm_access_token"):
        assert client.post(url("remove"), {"name": name}).status_code == 303
    assert client.post(url("remove"), {"name": "billing"}).status_code == 404
    assert RedactionRule.objects.count() == 0
    assert DEFAULT.clean_text(TOKEN)[0] == TOKEN


@pytest.mark.parametrize(
    ("body", "status", "shown"),
    [
        ({"kind": "secret", "name": "x y", "secret": "hidden value 1"}, 422, "A name has 2 to 32"),
        ({"kind": "secret", "name": "fine", "secret": ""}, 422, "This field is required."),
        ({"kind": "secret", "name": "a\0b", "secret": "hidden value 1"}, 422, "Null characters"),
        ({"kind": "format", "name": "fine", "token_prefix": "a%b"}, 422, "This field is required."),
        (
            {"kind": "format", "name": "fine", "token_prefix": "a%b", "alphabet": "hex", "least": 8, "most": "x"},
            422,
            "Enter a whole number.",
        ),
        ({"kind": "exception", "masked_kind": "agentops_key"}, 422, "Select a valid choice"),
        ({"kind": "else"}, 400, "kind must be one of secret, format, exception"),
    ],
)
def test_a_form_with_errors_omits_the_secret(client: Client, body: dict[str, str], status: int, shown: str) -> None:
    answer = client.post(url("add"), body)
    page = answer.content.decode()
    assert (answer.status_code, shown in page) == (status, True), page
    assert "hidden value" not in page
    assert RedactionRule.objects.count() == 0


@pytest.mark.django_db(transaction=True)
def test_the_tester_names_each_match_and_stores_nothing(
    alpha: Project, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    add_some(alpha)
    token, npm = "ghp_" + "a1B2" * 9, "npm_" + "a1B2" * 9
    before = rows_with("")
    with caplog.at_level(logging.DEBUG):
        page = client.post(url("test"), {"text": f"one {SECRET}\r\n {TOKEN} {token} {npm}"}).content.decode()

    masked = f"{placeholder('acme', TOKEN)} {placeholder('github_token', token)} {npm}"
    assert f"one {placeholder('billing', SECRET)}\n {masked}" in page
    for place in (
        "Line 1, column 5, 21 characters:\n              rule <code>billing</code> of this project",
        "Line 2, column 2, 15 characters:\n              rule <code>acme</code> of this project",
        "Line 2, column 18, 40 characters:\n              built-in kind <code>github_token</code>",
    ):
        assert place in page, page
    assert 'aria-current="page">Redaction</a>' in page
    assert not any(secret in page for secret in (SECRET, TOKEN, token))
    assert rows_with("") == before
    assert not any(secret in caplog.text for secret in (SECRET, TOKEN, token, npm))
    assert "Nothing was masked" in client.post(url("test"), {"text": "<b>x</b>"}).content.decode()
    assert client.post(url("test"), {"text": "x" * 65_537}).status_code == 422


@pytest.mark.parametrize("who", [Role.VIEWER, Role.OPERATOR])
def test_only_admins_of_the_project_can_open_the_page(alpha: Project, who: Role) -> None:
    """tests/test_page_access.py covers all other users."""
    member = Client()
    member.force_login(make_person(alpha, who))
    assert {member.get(url()).status_code, member.post(url("test"), {"text": TOKEN}).status_code} == {403}
    assert url() not in member.get("/p/alpha/runs").content.decode()


def test_a_cross_site_form_is_refused_and_the_admin_shows_no_secret(alpha: Project) -> None:
    add_some(alpha)
    strict, boss = Client(enforce_csrf_checks=True), User.objects.create_superuser("boss")
    strict.force_login(boss)
    for verb in ("add", "remove", "test"):
        assert strict.post(url(verb), {"name": "billing"}).status_code == 403
    rule = RedactionRule.objects.get(name="billing")
    for path in ("", f"{rule.pk}/change/"):
        answer = strict.get(f"/admin/projects/redactionrule/{path}")
        assert (answer.status_code, SECRET in answer.content.decode()) == (200, False)
        assert "billing" in answer.content.decode()


@pytest.mark.django_db
def test_failed_read_of_rules_is_retried_before_the_next_text(project: Project) -> None:
    redaction_changes.add_secret(project, "billing", SECRET, actor="test")
    cache = RuleCache(clock=lambda: 0.0)

    def fail(*_: Any) -> Any:
        raise OperationalError("the server has gone away")

    with connection.execute_wrapper(fail):
        cache.redactor_of(frozenset({project.pk}))

    assert cache.redactor_of(frozenset({project.pk})).clean_text(SECRET)[0] == placeholder("billing", SECRET)


@pytest.mark.django_db(transaction=True)
def test_threads_of_a_new_process_wait_for_the_rules(transactional_db: None) -> None:
    """Masked text may be stored, so a thread that starts while another reads the rules must not mask without them."""
    alpha = make_project("alpha")
    redaction_changes.add_secret(alpha, "billing", SECRET, actor="test")
    begun, may_read = threading.Event(), threading.Event()
    reader: list[int] = []

    def clock() -> float:
        if reader == [threading.get_ident()]:  # it holds the lock and is about to read
            begun.set()
            may_read.wait(20)
        reader.append(threading.get_ident())
        return 0.0

    cache, said = RuleCache(clock=clock), dict[str, str]()

    def mask(name: str) -> None:
        Project.objects.exists()  # opens a connection
        try:
            said[name] = cache.redactor_of(frozenset({alpha.pk})).clean_text(SECRET)[0]
        finally:
            connection.close()

    first, second = (threading.Thread(target=mask, args=[name]) for name in ("first", "second"))
    first.start()
    assert begun.wait(20)
    second.start()
    second.join(0.5)
    may_read.set()
    first.join(20)
    second.join(20)

    assert said == dict.fromkeys(("first", "second"), placeholder("billing", SECRET))
