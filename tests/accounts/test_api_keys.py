"""API keys: their format, storage, and every way to present one."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.core.management import call_command
from django.db import DatabaseError
from django.utils import timezone

from agentops.accounts import keys
from agentops.accounts.access import SYSTEM
from agentops.accounts.errors import AuthInvalid, AuthRevoked, KeyNotFound
from agentops.accounts.keys import NewKey, authenticate, create_key, find_key, revoke, rotate
from agentops.accounts.models import ApiKey, AuditEntry, KeyState, Project
from tests.support.run_checks import refuses
from tests.support.timing import cpu_s


@pytest.fixture
def made(project: Project) -> NewKey:
    return create_key(project, name="ci", scopes=["read"], actor=SYSTEM)


def swap(plain: str, position: int) -> str:
    other = "A" if plain[position] != "A" else "B"
    return plain[:position] + other + plain[position + 1 :] if position >= 0 else plain[:position] + other


def digest(plain: str) -> bytes:
    return hashlib.sha256(plain.encode()).digest()


def with_checksum(body: str) -> str:
    return body + keys.checksum(body)


# --- Format of a key --------------------------------------------------------------------------------------------
def test_create_and_authenticate(made: NewKey, project: Project, django_assert_num_queries: Any) -> None:
    authenticate(made.plain)

    with django_assert_num_queries(1):
        key = authenticate(made.plain)
        assert (key, key.project) == (made.key, project)


def test_key_format_is_recognizable_by_secret_scanners(made: NewKey) -> None:
    name, env, key_id, secret = made.plain.split("_")

    assert (name, env, len(key_id), len(secret)) == ("aok", "test", 12, 43 + 6)
    assert made.key.prefix == f"aok_test_{key_id}"
    assert with_checksum(made.plain[:-6]) == made.plain


def test_keys_are_unique(project: Project) -> None:
    made = [create_key(project, name="k", scopes=["read"], actor=SYSTEM) for _ in range(20)]

    assert len({new.plain for new in made}) == len({new.key.prefix for new in made}) == 20


@pytest.mark.parametrize("data", [bytes(32), b"\xff" * 32])
def test_any_32_bytes_fit_the_format(data: bytes, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys.secrets, "token_bytes", lambda size: data)
    plain = create_key(project, name="k", scopes=["read"], actor=SYSTEM).plain
    text = plain.rpartition("_")[2][: -keys.CHECKSUM_LENGTH]
    number = 0
    for digit in text:
        number = number * 62 + keys.ALPHABET.index(digit)

    assert (number.to_bytes(32, "big"), len(text)) == (data, keys.SECRET_LENGTH)


def test_a_database_dump_holds_no_usable_key(made: NewKey) -> None:
    rotated = rotate(made.key, actor=SYSTEM)
    revoke(made.key, actor=SYSTEM)
    dump = io.StringIO()
    call_command("dumpdata", "projects", stdout=dump)

    for plain in (made.plain, rotated.plain):
        secret = plain.rpartition("_")[2]
        for trace in (plain, secret, secret[:-6], base64.b64encode(plain.encode()).decode(), plain.encode().hex()):
            assert trace not in dump.getvalue()
        assert plain.rpartition("_")[0] in dump.getvalue()


# --- Presenting a key -------------------------------------------------------------------------------------------
def wrong_keys(plain: str, prefix: str) -> Iterator[tuple[str, str]]:
    secret = plain.rpartition("_")[2]
    yield "nothing", ""
    yield "a word", "secret"
    yield "the prefix alone", prefix
    yield "truncated", plain[:-1]
    yield "lengthened", plain + "A"
    yield "a space before", " " + plain
    yield "a line end after", plain + "\n"
    yield "a scheme before", "Bearer " + plain
    yield "NUL", plain[:30] + "\x00" + plain[31:]
    yield "NUL after", plain + "\x00"
    yield "not latin", plain[:-1] + "ключ"
    yield "not latin-1 but a digit", plain[:-1] + "１"
    yield "a lone surrogate", "\udcff" + plain
    yield "latin-1", "aok_test_" + "é" * 12 + "_" + "é" * 49
    yield "upper case", plain.upper()
    yield "another env", with_checksum(plain.replace("aok_test", "aok_live")[:-6])
    yield "an unknown env", plain.replace("aok_test", "aok_prod")
    yield "a wrong checksum", swap(plain, -1)
    yield "a wrong secret", swap(plain, 30)
    yield "a wrong secret with its checksum", with_checksum(swap(plain, 30)[:-6])
    yield "an unknown id with its checksum", with_checksum(swap(plain, 12)[:-6])
    yield "SQL", "aok_test_' OR 1=1 --_" + secret
    yield "the digest", digest(plain).hex()


def test_all_other_values_are_invalid_with_the_same_error(made: NewKey) -> None:
    said = set()
    for what, presented in wrong_keys(made.plain, made.key.prefix):
        try:
            authenticate(presented)
        except AuthInvalid as error:
            said.add((str(error), error.code, error.status))
        else:
            pytest.fail(f"{what} was let in")

    assert said == {("the API key is not valid", "auth_invalid", 401)}


@pytest.mark.parametrize("unit", ["A", "\x00", "é", "aok_test_", "_"])
def test_a_key_of_ten_megabytes_is_refused_cheaply(unit: str, made: NewKey, django_assert_num_queries: Any) -> None:
    long = [unit * (10_000_000 // len(unit)), made.plain + unit * (10_000_000 // len(unit))]

    def refuse() -> None:
        for presented in long:
            with pytest.raises(AuthInvalid):
                authenticate(presented)

    with django_assert_num_queries(0):
        assert min(cpu_s(refuse) for _ in range(5)) < 0.1


def test_digests_are_compared_in_constant_time(made: NewKey, monkeypatch: pytest.MonkeyPatch) -> None:
    from hmac import compare_digest

    compared: list[tuple[bytes, bytes]] = []

    def spy(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return compare_digest(a, b)

    monkeypatch.setattr(keys, "compare_digest", spy)
    wrong_secret, unknown_id = with_checksum(swap(made.plain, 30)[:-6]), with_checksum(swap(made.plain, 12)[:-6])
    for presented in (made.plain, wrong_secret, unknown_id):
        with contextlib.suppress(AuthInvalid):
            authenticate(presented)

    # Also if no key has the prefix.
    assert compared == [
        (digest(made.plain), bytes(made.key.sha256)),
        (digest(wrong_secret), bytes(made.key.sha256)),
        (digest(unknown_id), bytes(32)),
    ]


# --- Lifetime ---------------------------------------------------------------------------------------------------
def test_an_expiry_in_any_zone_is_stored_in_utc(project: Project) -> None:
    """PostgreSQL accepts no zone offset of sixteen hours or more; a form accepts any."""
    for hours in (-23, -16, 16, 23):
        typed = datetime(2999, 12, 31, 23, 30, tzinfo=timezone.get_fixed_timezone(hours * 60))
        key = create_key(project, name="ci", scopes=["read"], expires_at=typed, actor=SYSTEM).key
        key.refresh_from_db()
        assert key.expires_at == typed
    beyond = datetime(9999, 12, 31, 23, 30, tzinfo=timezone.get_fixed_timezone(-60))
    with refuses("invalid_expiry", match="9999"):
        create_key(project, name="ci", scopes=["read"], expires_at=beyond, actor=SYSTEM)


def test_a_key_expires(project: Project) -> None:
    expires = timezone.now() + timedelta(days=90)
    made = create_key(project, name="ci", scopes=["read"], expires_at=expires, actor=SYSTEM)

    with time_machine.travel(expires - timedelta(seconds=1), tick=False):
        assert authenticate(made.plain) == made.key
    with time_machine.travel(expires, tick=False), pytest.raises(AuthRevoked, match="expired") as refusal:
        authenticate(made.plain)
    assert (refusal.value.code, refusal.value.status) == ("auth_revoked", 401)


def test_a_key_is_revoked_once(made: NewKey) -> None:
    first = revoke(made.key, actor="user:alice").revoked_at

    assert first is not None
    assert revoke(made.key, actor="user:bob").revoked_at == first
    assert [entry.actor for entry in AuditEntry.objects.filter(action="key.revoked")] == ["user:alice"]
    with pytest.raises(AuthRevoked, match="revoked"):
        authenticate(made.plain)


def test_only_the_holder_learns_that_a_key_was_revoked(made: NewKey) -> None:
    revoke(made.key, actor=SYSTEM)

    with pytest.raises(AuthInvalid):
        authenticate(with_checksum(swap(made.plain, 30)[:-6]))


def test_old_and_new_key_are_valid_during_rotation(project: Project) -> None:
    made = create_key(
        project,
        name="ci",
        scopes=["write", "ingest"],
        expires_at=timezone.now() + timedelta(days=30),
        actor=SYSTEM,
    )
    with time_machine.travel(timezone.now() + timedelta(days=10), tick=False):
        now = timezone.now()
        fresh = rotate(made.key, actor=SYSTEM, overlap=timedelta(hours=2))
        assert authenticate(made.plain) == made.key
        assert authenticate(fresh.plain) == fresh.key
    assert (fresh.key.name, fresh.key.scopes) == ("ci", ["ingest", "write"])
    # The new key gets the original lifetime of the old one, so rotation never extends it indefinitely.
    assert abs(fresh.key.expires_at - now - timedelta(days=30)) < timedelta(seconds=1)

    with time_machine.travel(now + timedelta(hours=2), tick=False):
        assert authenticate(fresh.plain) == fresh.key
        with pytest.raises(AuthRevoked):
            authenticate(made.plain)


@pytest.mark.parametrize("life", [None, timedelta(days=30)], ids=["for ever", "30 days"])
def test_second_rotation_within_the_overlap_keeps_the_full_lifetime(life: timedelta | None, project: Project) -> None:
    """For example, if the new key is lost before it is copied."""
    expires_at = timezone.now() + life if life else None
    old = create_key(project, name="ci", scopes=["read"], expires_at=expires_at, actor=SYSTEM).key
    lost = rotate(old, actor=SYSTEM, overlap=timedelta(hours=2)).key

    second = rotate(old, actor=SYSTEM, overlap=timedelta(hours=1)).key
    third = rotate(old, actor=SYSTEM).key

    for key in (lost, second, third):
        assert (key.expires_at is None) == (life is None)
        assert life is None or abs(key.expires_at - timezone.now() - life) < timedelta(minutes=1)
    old.refresh_from_db()
    assert old.expires_at < timezone.now() + timedelta(hours=1)


def test_an_overlap_never_extends_a_lifetime(project: Project) -> None:
    expires = timezone.now() + timedelta(minutes=5)
    old = create_key(project, name="ci", scopes=["read"], expires_at=expires, actor=SYSTEM).key

    rotate(old, actor=SYSTEM)

    old.refresh_from_db()
    assert old.expires_at == expires


def test_a_lifetime_does_not_exceed_the_calendar(project: Project) -> None:
    """The admin accepts any date."""
    end = datetime(9999, 12, 31, 23, 59, tzinfo=UTC)
    old = create_key(project, name="ci", scopes=["read"], expires_at=end, actor=SYSTEM)

    with time_machine.travel(timezone.now() + timedelta(hours=1)):
        fresh = rotate(old.key, actor=SYSTEM)
        key = authenticate(fresh.plain)

    assert key.expires_at is not None
    assert key.expires_at >= end


def test_inactive_keys_cannot_be_rotated(made: NewKey) -> None:
    with refuses("invalid_expiry"):
        rotate(made.key, actor=SYSTEM, overlap=timedelta(seconds=-1))
    revoke(made.key, actor=SYSTEM)
    with refuses("key_not_active"):
        rotate(made.key, actor=SYSTEM)
    assert ApiKey.objects.count() == 1


def test_last_use_is_written_once_a_minute(made: NewKey, django_assert_num_queries: Any) -> None:
    def last_use() -> Any:
        return ApiKey.objects.get(pk=made.key.pk).last_used_at

    with time_machine.travel("2026-03-01T12:00:00Z", tick=False) as clock:
        authenticate(made.plain)
        first = last_use()
        clock.shift(59)
        with django_assert_num_queries(1):
            authenticate(made.plain)
        assert last_use() == first == timezone.now() - timedelta(seconds=59)
        clock.shift(1)
        authenticate(made.plain)
        assert last_use() == timezone.now()


def test_authentication_works_while_the_database_is_busy(
    made: NewKey, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def busy(*args: Any, **kwargs: Any) -> None:
        raise DatabaseError("database is locked")

    monkeypatch.setattr("agentops.accounts.models.ApiKeyQuerySet.update", busy)

    assert authenticate(made.plain).last_used_at is None
    assert "database is locked" in caplog.text


def test_sql_and_python_agree_on_active_keys(project: Project) -> None:
    now = timezone.now()
    moments = [None, now - timedelta(seconds=1), now, now + timedelta(seconds=1)]
    for expires_at in moments:
        for revoked_at in moments[:2]:
            key = create_key(project, name="k", scopes=["read"], actor=SYSTEM).key
            ApiKey.objects.filter(pk=key.pk).update(expires_at=expires_at, revoked_at=revoked_at)

    active = {key.pk for key in ApiKey.objects.all() if key.state(now) is KeyState.ACTIVE}
    assert {key.pk for key in ApiKey.objects.active(now)} == active
    assert len(active) == 2


# --- Creating and finding keys ----------------------------------------------------------------------------------
def test_scopes_are_stored_in_order_and_once(project: Project) -> None:
    key = create_key(project, name=" ci ", scopes=["write", "read", "write"], actor=SYSTEM).key

    assert (key.name, key.scopes) == ("ci", ["read", "write"])


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"scopes": []}, "invalid_scopes"),
        ({"scopes": [""]}, "invalid_scopes"),
        ({"scopes": ["admin"]}, "invalid_scopes"),
        ({"scopes": ["READ"]}, "invalid_scopes"),
        ({"scopes": "read"}, "invalid_scopes"),
        ({"name": " "}, "invalid_name"),
        ({"name": "a" * 201}, "invalid_name"),
        ({"name": "a\x00b"}, "invalid_name"),
        ({"name": "a\x1b[2Jb"}, "invalid_name"),
        ({"name": "a\udcff"}, "invalid_name"),
        ({"expires_at": timezone.now() - timedelta(seconds=1)}, "invalid_expiry"),
    ],
)
def test_invalid_arguments_create_no_key(wrong: dict[str, Any], code: str, project: Project) -> None:
    before = AuditEntry.objects.count()

    with refuses(code):
        create_key(project, **{"name": "ci", "scopes": ["read"], "actor": SYSTEM, **wrong})

    assert (ApiKey.objects.count(), AuditEntry.objects.count()) == (0, before)


def test_key_and_audit_entry_are_created_atomically(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "record", lambda *args, **kwargs: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        create_key(project, name="ci", scopes=["read"], actor=SYSTEM)

    assert not ApiKey.objects.exists()


def test_find_key_by_prefix(project: Project) -> None:
    one, two = (create_key(project, name=name, scopes=["read"], actor=SYSTEM).key for name in "ab")
    ApiKey.objects.filter(pk=one.pk).update(prefix="aok_test_abcdefABCDEF")
    ApiKey.objects.filter(pk=two.pk).update(prefix="aok_test_abcDEFabcdef")

    assert find_key("aok_test_abcdefABCDEF") == one
    # SQLite's LIKE would match both.
    assert find_key("aok_test_abcd") == one
    with refuses("ambiguous_key", match="2 API keys"):
        find_key("aok_test_abc")
    # "%" and "_" are not wildcards, and an invalid prefix never reaches the database.
    for unknown in ("", "%", "aok%", "aok-test", "aok_test_ABC", "\x00", "\udcff", "é", "a" * 33):
        with pytest.raises(KeyNotFound):
            find_key(unknown)
