"""API keys: create, authenticate, rotate and revoke.

The format of a key is `aok_<env>_<id>_<secret><checksum>`. The part before the last underscore is its prefix, which is
not secret. With the checksum, scanners can recognize leaked keys offline.
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
from typing import NamedTuple, cast
from uuid import UUID

from django.conf import settings
from django.db import DatabaseError, transaction
from django.db.models import Q

from agentops.accounts.audit import Actor, AuditAction, name_of, record
from agentops.accounts.errors import AuthInvalid, AuthRevoked, KeyNotFound
from agentops.accounts.models import ApiKey, AuditEntry, KeyState, Project, Scope
from agentops.accounts.names import clean_name
from agentops.base import database_clock
from agentops.base.database.fast_rows import select_joined
from agentops.base.http.lanes import sender_project
from agentops.base.refusals import Conflict, Invalid

log = logging.getLogger(__name__)

ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
ID_LENGTH = 12
SECRET_BYTES = 32
SECRET_LENGTH = 43  # 62**43 > 2**256
CHECKSUM_LENGTH = 6  # 62**6 > 2**32
# Of fixed length, so that long input is rejected quickly.
PATTERN = re.compile(rf"aok_(?:live|test)_[0-9A-Za-z]{{{ID_LENGTH}}}_[0-9A-Za-z]{{{SECRET_LENGTH + CHECKSUM_LENGTH}}}")
PREFIX_PATTERN = re.compile(r"[0-9A-Za-z_]{1,32}")
#: Keys with their projects.
_TABLES = "projects_apikey JOIN projects_project ON projects_project.id = projects_apikey.project_id"
#: The digest that a key with an unknown prefix is compared with; no text has it.
NOBODY = bytes(32)
TOUCH_EVERY = timedelta(minutes=1)
#: How long a rotated key remains valid by default.
OVERLAP = timedelta(days=1)
#: The end of the calendar.
LATEST = datetime.max.replace(tzinfo=UTC)


class NewKey(NamedTuple):
    """A created key and its plain text."""

    key: ApiKey
    #: The key itself. It is displayed once and not stored.
    plain: str


def create_key(
    project: Project, *, name: str, scopes: Iterable[str], expires_at: datetime | None = None, actor: Actor
) -> NewKey:
    """Create a key and an audit entry. The caller checks the permission (Action.MANAGE).

    Raise `invalid_name`, `invalid_scopes` or `invalid_expiry`.
    """
    cleaned_name, cleaned_scopes, expiry = clean_name(name), _clean_scopes(scopes), _clean_expiry(expires_at)
    with transaction.atomic():
        new = _create(project, cleaned_name, cleaned_scopes, expiry, actor)
        record(actor, AuditAction.KEY_CREATED, project=project, obj=new.key, after=_audit_values(new.key))
    return new


def authenticate(token: str) -> ApiKey:
    """Return the active key with this plain text, with its project. Raise AuthInvalid or AuthRevoked."""
    if not PATTERN.fullmatch(token) or not _checksum_fits(token):
        raise AuthInvalid
    prefix = token.rpartition("_")[0]
    key = _by_prefix(prefix)
    # Compare even without a key, so that an unknown prefix and a wrong secret take the same time.
    matches = compare_digest(_digest(token), bytes(key.sha256) if key else NOBODY)
    if key is None or not matches:
        raise AuthInvalid
    now = database_clock.now()
    state = key.state(now)
    if state is not KeyState.ACTIVE:
        text = f"the API key is {state.value}: ask a project admin for a new one"
        raise AuthRevoked(text, project_id=key.project_id, prefix=key.prefix)
    sender_project.set(key.project_id)
    _touch(key, now)
    return key


def revoke(key: ApiKey, *, actor: Actor) -> ApiKey:
    """Revoke a key with effect from the next request. Revoking it again changes nothing."""
    with transaction.atomic():
        # Conditional, so that only one concurrent call writes the time and the audit entry.
        revoked = ApiKey.objects.filter(pk=key.pk, revoked_at=None).update(revoked_at=database_clock.now())
        key.refresh_from_db(fields=["revoked_at"])
        if revoked:
            after = {"prefix": key.prefix, "revoked_at": key.revoked_at}
            record(actor, AuditAction.KEY_REVOKED, project=key.project, obj=key, after=after)
    return key


def rotate(key: ApiKey, *, actor: Actor, overlap: timedelta = OVERLAP) -> NewKey:
    """Create a key with the same name, scopes and lifetime. The old key expires after at most `overlap`.

    The new key gets the full lifetime of the original, even if the old key is in its overlap period.

    Raise `key_not_active` if the key is revoked or expired, `invalid_expiry` for a negative overlap.
    """
    if overlap < timedelta(0):
        raise Invalid("the overlap must not be negative", code="invalid_expiry")
    now = database_clock.now()
    with transaction.atomic():
        # Locked against concurrent revocation and rotation.
        old = ApiKey.objects.select_for_update().get(pk=key.pk)
        if old.state(now) is not KeyState.ACTIVE:
            raise Conflict("the API key is revoked or expired: create a new one", code="key_not_active")
        expiry = _expiry_before_rotation(old)
        expires_at = now + min(expiry - old.created_at, LATEST - now) if expiry else None
        new = _create(old.project, old.name, old.scopes, expires_at, actor)
        before = _audit_values(old)
        old.expires_at = min(now + overlap, old.expires_at) if old.expires_at else now + overlap
        old.save(update_fields=["expires_at"])
        after = {**_audit_values(new.key), "old_expires_at": old.expires_at}
        record(actor, AuditAction.KEY_ROTATED, project=old.project, obj=new.key, before=before, after=after)
    return new


def key_of(project: Project, key_id: UUID) -> ApiKey:
    """Return a key of a project, with the project. Raise KeyNotFound."""
    key = ApiKey.objects.select_related("project").filter(project=project, pk=key_id).first()
    if key is None:
        raise KeyNotFound
    return key


def find_key(prefix: str) -> ApiKey:
    """Return the only key of all projects whose prefix begins with `prefix`. Raise KeyNotFound or `ambiguous_key`."""
    if not PREFIX_PATTERN.fullmatch(prefix):
        raise KeyNotFound
    candidates = ApiKey.objects.select_related("project").filter(Q(prefix=prefix) | Q(prefix__startswith=prefix))
    # LIKE is case-insensitive on SQLite.
    matching = [key for key in candidates if key.prefix.startswith(prefix)]
    if not matching:
        raise KeyNotFound
    if len(matching) > 1:
        raise Conflict(f"{len(matching)} API keys begin with {prefix!r}: enter a longer prefix", code="ambiguous_key")
    return matching[0]


def _create(project: Project, name: str, scopes: list[str], expires_at: datetime | None, actor: Actor) -> NewKey:
    env = "test" if settings.AGENTOPS_TESTING else "live"
    prefix = f"aok_{env}_{''.join(secrets.choice(ALPHABET) for _ in range(ID_LENGTH))}"
    body = f"{prefix}_{_base62(secrets.token_bytes(SECRET_BYTES), SECRET_LENGTH)}"
    plain = body + checksum(body)
    key = ApiKey.objects.create(
        project=project,
        name=name,
        prefix=prefix,
        sha256=_digest(plain),
        scopes=scopes,
        expires_at=expires_at,
        created_by=name_of(actor)[:200],
    )
    return NewKey(key, plain)


def _by_prefix(prefix: str) -> ApiKey | None:
    """Return the key with its project. Every request with a key asks for it: the ORM would compile the query anew."""
    found = select_joined((ApiKey, Project), f"{_TABLES} WHERE prefix = %s", [prefix])
    if not found:
        return None
    key, project = cast("tuple[ApiKey, Project]", found[0])
    key.project = project
    return key


def _expiry_before_rotation(key: ApiKey) -> datetime | None:
    """Return the expiry that a key was created with. Its first rotation may have replaced it."""
    rotations = AuditEntry.objects.filter(project=key.project_id, action=AuditAction.KEY_ROTATED)
    rotations = rotations.filter(before__prefix=key.prefix)
    first = rotations.order_by("created_at").values_list("before", flat=True).first()
    if first is None:
        return key.expires_at
    return datetime.fromisoformat(first["expires_at"]) if first["expires_at"] else None


def _touch(key: ApiKey, now: datetime) -> None:
    """Store the time of use, at most once a minute. A database error does not fail the request."""
    if key.last_used_at is not None and now - key.last_used_at < TOUCH_EVERY:
        return
    try:
        # A savepoint: on PostgreSQL a failed statement would abort the caller's transaction.
        with transaction.atomic():
            ApiKey.objects.filter(pk=key.pk).update(last_used_at=now)
        key.last_used_at = now
    except DatabaseError as error:
        log.warning("could not store the last use of an API key: %s", error, extra={"key": key.prefix})


def _clean_scopes(scopes: Iterable[str]) -> list[str]:
    """Return the scopes without duplicates, in the order of the enum."""
    selected = set(scopes)
    unknown = sorted(selected - set(Scope.values))
    if unknown or not selected:
        problem = f"{unknown[0][:64]!r} is not a scope" if unknown else "an API key requires at least one scope"
        raise Invalid(f"{problem}: choose from {', '.join(Scope.values)}", code="invalid_scopes")
    return [scope for scope in Scope.values if scope in selected]


def _clean_expiry(expires_at: datetime | None) -> datetime | None:
    """Return the expiry in UTC: PostgreSQL rejects offsets of 16 hours and more."""
    if expires_at is None:
        return None
    try:
        moment = expires_at.astimezone(UTC)
    except OverflowError:
        raise Invalid("the expiry must be before the year 9999", code="invalid_expiry") from None
    if moment <= database_clock.now():
        raise Invalid("the expiry must be in the future", code="invalid_expiry")
    return moment


def _audit_values(key: ApiKey) -> dict[str, object]:
    return {"prefix": key.prefix, "name": key.name, "scopes": key.scopes, "expires_at": key.expires_at}


def _checksum_fits(plain: str) -> bool:
    return checksum(plain[:-CHECKSUM_LENGTH]) == plain[-CHECKSUM_LENGTH:]


def checksum(body: str) -> str:
    """Return the last six characters of a key, computed from those before them: scanners recognize keys by it."""
    return _base62(zlib.crc32(body.encode("ascii")).to_bytes(4, "big"), CHECKSUM_LENGTH)


def _digest(plain: str) -> bytes:
    # A fast hash is sufficient for 256 random bits.
    return hashlib.sha256(plain.encode("ascii")).digest()


def _base62(data: bytes, width: int) -> str:
    number, digits = int.from_bytes(data, "big"), ""
    for _ in range(width):
        number, digit = divmod(number, len(ALPHABET))
        digits = ALPHABET[digit] + digits
    return digits
