"""API keys: made, shown once, checked, rotated, revoked.

A key reads `aok_<env>_<id>_<secret><checksum>`; all before the last underscore
is its prefix, which may be shown. The checksum lets a scanner tell a leaked key from random text without asking us.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import string
import zlib
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from hmac import compare_digest
from typing import Any, NamedTuple

from django.conf import settings
from django.db import DatabaseError, transaction
from django.db.models import Q
from django.utils import timezone

from agentops.projects.audit import Actor, AuditAction, record
from agentops.projects.errors import (
    AmbiguousKey,
    AuthInvalid,
    AuthRevoked,
    InvalidExpiry,
    InvalidScopes,
    KeyNotActive,
    KeyNotFound,
)
from agentops.projects.models import ApiKey, KeyState, Project, Scope
from agentops.projects.names import clean_name

log = logging.getLogger(__name__)

ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
ID_LENGTH = 12
SECRET_BYTES = 32
SECRET_LENGTH = 43  # 62**43 > 2**256
CHECKSUM_LENGTH = 6  # 62**6 > 2**32
# Of bounded length, so that ten megabytes cost no more than eighty characters.
PATTERN = re.compile(rf"aok_(?:live|test)_[0-9A-Za-z]{{{ID_LENGTH}}}_[0-9A-Za-z]{{{SECRET_LENGTH + CHECKSUM_LENGTH}}}")
PREFIX_PATTERN = re.compile(r"[0-9A-Za-z_]{1,32}")
_BY_PREFIX = """
SELECT k.*, p.slug AS project_slug, p.name AS project_name
FROM projects_apikey k JOIN projects_project p ON p.id = k.project_id WHERE k.prefix = %s"""
#: No text has this digest: what a key is compared with when its prefix is unknown.
NOBODY = bytes(32)
TOUCH_EVERY = timedelta(minutes=1)
#: How long a rotated key goes on beside its successor, unless told otherwise.
OVERLAP = timedelta(days=1)


class NewKey(NamedTuple):
    key: ApiKey
    #: The key itself: shown once, stored nowhere.
    plain: str


def create_key(
    project: Project, *, name: str, scopes: Iterable[str], expires_at: datetime | None = None, actor: Actor
) -> NewKey:
    """A new key and its audit entry. Who may do this is the door's question (Action.MANAGE)."""
    cleaned_name, cleaned_scopes, expiry = clean_name(name), _clean_scopes(scopes), _clean_expiry(expires_at)
    with transaction.atomic():
        made = _make(project, cleaned_name, cleaned_scopes, expiry)
        record(actor, AuditAction.KEY_CREATED, project=project, obj=made.key, after=_described(made.key))
    return made


def authenticate(presented: str) -> ApiKey:
    """The active key that was presented, with its project; AuthInvalid or AuthRevoked otherwise, never more."""
    if not PATTERN.fullmatch(presented) or not _checksum_fits(presented):
        raise AuthInvalid
    prefix = presented.rpartition("_")[0]
    key = _by_prefix(prefix)
    # Compared also where there is no key: an unknown prefix and a wrong secret take the same time.
    known = compare_digest(_digest(presented), bytes(key.sha256) if key else NOBODY)
    if key is None or not known:
        raise AuthInvalid
    now = timezone.now()
    state = key.state(now)
    if state is not KeyState.ACTIVE:
        raise AuthRevoked(f"the API key is {state.value}: ask an admin of the project for another")
    _touch(key, now)
    return key


def revoke(key: ApiKey, *, actor: Actor) -> ApiKey:
    """The key opens nothing from the next request on; revoking it again changes nothing."""
    with transaction.atomic():
        # Guarded, so that of two revocations at once one writes the time and the entry.
        revoked = ApiKey.objects.filter(pk=key.pk, revoked_at=None).update(revoked_at=timezone.now())
        key.refresh_from_db(fields=["revoked_at"])
        if revoked:
            after = {"prefix": key.prefix, "revoked_at": key.revoked_at}
            record(actor, AuditAction.KEY_REVOKED, project=key.project, obj=key, after=after)
    return key


def rotate(key: ApiKey, *, actor: Actor, overlap: timedelta = OVERLAP) -> NewKey:
    """A successor with the same name, scopes and length of life; the old key goes on for `overlap` at most."""
    if overlap < timedelta(0):
        raise InvalidExpiry("an overlap must not be negative")
    now = timezone.now()
    with transaction.atomic():
        # Locked: a revocation or another rotation in between would be overwritten or doubled.
        old = ApiKey.objects.select_for_update().get(pk=key.pk)
        if old.state(now) is not KeyState.ACTIVE:
            raise KeyNotActive
        life = old.expires_at - old.created_at if old.expires_at else None
        made = _make(old.project, old.name, old.scopes, now + life if life else None)
        before = _described(old)
        old.expires_at = min(now + overlap, old.expires_at) if old.expires_at else now + overlap
        old.save(update_fields=["expires_at"])
        after = {**_described(made.key), "old_expires_at": old.expires_at}
        record(actor, AuditAction.KEY_ROTATED, project=old.project, obj=made.key, before=before, after=after)
    return made


def find_key(given: str) -> ApiKey:
    """The key with this prefix, or the only one whose prefix begins so. For the command line: over all projects."""
    if not PREFIX_PATTERN.fullmatch(given):
        raise KeyNotFound
    candidates = ApiKey.objects.select_related("project").filter(Q(prefix=given) | Q(prefix__startswith=given))
    # SQLite's LIKE takes "A" for "a", and here that would be another key.
    found = [key for key in candidates if key.prefix.startswith(given)]
    if not found:
        raise KeyNotFound
    if len(found) > 1:
        raise AmbiguousKey(f"{len(found)} keys begin with {given!r}: give more of the prefix")
    return found[0]


def _make(project: Project, name: str, scopes: list[str], expires_at: datetime | None) -> NewKey:
    env = "test" if settings.AGENTOPS_TESTING else "live"
    prefix = f"aok_{env}_{''.join(secrets.choice(ALPHABET) for _ in range(ID_LENGTH))}"
    body = f"{prefix}_{_base62(secrets.token_bytes(SECRET_BYTES), SECRET_LENGTH)}"
    plain = body + checksum(body)
    key = ApiKey.objects.create(
        project=project, name=name, prefix=prefix, sha256=_digest(plain), scopes=scopes, expires_at=expires_at
    )
    return NewKey(key, plain)


def _by_prefix(prefix: str) -> ApiKey | None:
    """With what names its project. Every request of a program asks this: the ORM would compile it anew each time."""
    found = next(iter(ApiKey.objects.raw(_BY_PREFIX, [prefix])), None)
    if found is not None:
        named: Any = found
        values = [found.project_id, named.project_slug, named.project_name]
        # What else the project has is read when it is asked for.
        found.project = Project.from_db(found._state.db, ["id", "slug", "name"], values)
    return found


def _touch(key: ApiKey, now: datetime) -> None:
    """Remember the use, once a minute; that this fails (a database busy or read-only) refuses nobody."""
    if key.last_used_at is not None and now - key.last_used_at < TOUCH_EVERY:
        return
    try:
        # A block of its own: on Postgres a failed statement would spoil the caller's transaction.
        with transaction.atomic():
            ApiKey.objects.filter(pk=key.pk).update(last_used_at=now)
        key.last_used_at = now
    except DatabaseError as error:
        log.warning("the last use of a key was not written: %s", error, extra={"key": key.prefix})


def _clean_scopes(scopes: Iterable[str]) -> list[str]:
    """Each once, in the order of the enum."""
    given = set(scopes)
    unknown = sorted(given - set(Scope.values))
    if unknown or not given:
        problem = f"{unknown[0][:64]!r} is no scope" if unknown else "a key needs a scope"
        raise InvalidScopes(f"{problem}: choose among {', '.join(Scope.values)}")
    return [scope for scope in Scope.values if scope in given]


def _clean_expiry(expires_at: datetime | None) -> datetime | None:
    """In UTC: PostgreSQL refuses zones of sixteen hours and more, and some lead beyond the calendar's end."""
    if expires_at is None:
        return None
    try:
        moment = expires_at.astimezone(UTC)
    except OverflowError:
        raise InvalidExpiry("a key must expire before the year 9999") from None
    if moment <= timezone.now():
        raise InvalidExpiry("a key must expire in the future")
    return moment


def _described(key: ApiKey) -> dict[str, object]:
    return {"prefix": key.prefix, "name": key.name, "scopes": key.scopes, "expires_at": key.expires_at}


def _checksum_fits(plain: str) -> bool:
    return checksum(plain[:-CHECKSUM_LENGTH]) == plain[-CHECKSUM_LENGTH:]


def checksum(body: str) -> str:
    """Return the last six characters of a key, from those before them: what a scanner tells keys by."""
    return _base62(zlib.crc32(body.encode("ascii")).to_bytes(4, "big"), CHECKSUM_LENGTH)


def _digest(plain: str) -> bytes:
    # No slow hash: 256 random bits cannot be guessed, only stolen.
    return hashlib.sha256(plain.encode("ascii")).digest()


def _base62(data: bytes, width: int) -> str:
    number, digits = int.from_bytes(data, "big"), ""
    for _ in range(width):
        number, digit = divmod(number, len(ALPHABET))
        digits = ALPHABET[digit] + digits
    return digits
