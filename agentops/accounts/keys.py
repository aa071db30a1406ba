"""API keys: create, authenticate, rotate and revoke.

The format of a key is `aok_<env>_<id>_<secret><checksum>`. The part before the last underscore is its prefix, which is
not secret. By the checksum, scanners for leaked secrets recognize keys without a request to the site.
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
from agentops.base.database.statements import select_joined
from agentops.base.fair_shares import sender_project
from agentops.base.refusals import Conflict, Invalid

log = logging.getLogger(__name__)

ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
ID_LENGTH = 12
SECRET_BYTES = 32
SECRET_LENGTH = 43  # 62**43 > 2**256
CHECKSUM_LENGTH = 6  # 62**6 > 2**32
# The length is fixed, so that long input is rejected quickly.
PATTERN = re.compile(rf"aok_(?:live|test)_[0-9A-Za-z]{{{ID_LENGTH}}}_[0-9A-Za-z]{{{SECRET_LENGTH + CHECKSUM_LENGTH}}}")
PREFIX_PATTERN = re.compile(r"[0-9A-Za-z_]{1,32}")
#: The tables of keys and their projects.
_TABLES = "projects_apikey JOIN projects_project ON projects_project.id = projects_apikey.project_id"
#: Compared with the digest of a key whose prefix is unknown, so that this takes the same time. No key has this digest.
UNKNOWN_DIGEST = bytes(32)
#: How often the time of the last use is stored, at most.
TOUCH_EVERY = timedelta(minutes=1)
#: How long a rotated key remains valid by default.
OVERLAP = timedelta(days=1)
#: The latest time that can be stored.
LATEST = datetime.max.replace(tzinfo=UTC)


class NewKey(NamedTuple):
    """A created key and its plain text."""

    key: ApiKey
    #: The key itself, which is displayed once and not stored.
    plain: str


def create_key(
    project: Project, *, name: str, scopes: Iterable[str], expires_at: datetime | None = None, actor: Actor
) -> NewKey:
    """Create a key and an audit entry. The caller checks the permission (Action.MANAGE).

    Raises `Invalid` with the code `invalid_name`, `invalid_scopes` or `invalid_expiry`.
    """
    cleaned_name, cleaned_scopes, expiry = clean_name(name), _clean_scopes(scopes), _clean_expiry(expires_at)
    with transaction.atomic():
        new = _create(project, cleaned_name, cleaned_scopes, expiry, actor)
        record(actor, AuditAction.KEY_CREATED, project=project, obj=new.key, after=_audit_values(new.key))
    return new


def authenticate(token: str) -> ApiKey:
    """Return the active key with this plain text, with its project. Raises `AuthInvalid` or `AuthRevoked`.

    Stores the time of use, and remembers the project as the sender of the request (agentops.base.fair_shares).
    """
    if not PATTERN.fullmatch(token) or not _checksum_fits(token):
        raise AuthInvalid
    prefix = token.rpartition("_")[0]
    key = _by_prefix(prefix)
    matches = compare_digest(_digest(token), bytes(key.sha256) if key else UNKNOWN_DIGEST)
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
        # The condition makes only one of several concurrent calls write the time and the audit entry.
        revoked = ApiKey.objects.filter(pk=key.pk, revoked_at=None).update(revoked_at=database_clock.now())
        key.refresh_from_db(fields=["revoked_at"])
        if revoked:
            after = {"prefix": key.prefix, "revoked_at": key.revoked_at}
            record(actor, AuditAction.KEY_REVOKED, project=key.project, obj=key, after=after)
    return key


def rotate(key: ApiKey, *, actor: Actor, overlap: timedelta = OVERLAP) -> NewKey:
    """Create a key with the same name, scopes and lifetime. The old key expires after at most `overlap`.

    The new key gets the full lifetime of the original, even if the old key is in its overlap period.

    Raises `Conflict` (`key_not_active`) if the key is revoked or expired, and `Invalid` (`invalid_expiry`) for a
    negative overlap.
    """
    if overlap < timedelta(0):
        raise Invalid("the overlap must not be negative", code="invalid_expiry")
    now = database_clock.now()
    with transaction.atomic():
        # Locked, so that the key is not revoked or rotated concurrently.
        old = ApiKey.objects.select_for_update().get(pk=key.pk)
        if old.state(now) is not KeyState.ACTIVE:
            raise Conflict("the API key is revoked or expired: create a new one", code="key_not_active")
        original_expiry = _expiry_before_rotation(old)
        expires_at = now + min(original_expiry - old.created_at, LATEST - now) if original_expiry else None
        new = _create(old.project, old.name, old.scopes, expires_at, actor)
        before = _audit_values(old)
        old.expires_at = min(now + overlap, old.expires_at) if old.expires_at else now + overlap
        old.save(update_fields=["expires_at"])
        after = {**_audit_values(new.key), "old_expires_at": old.expires_at}
        record(actor, AuditAction.KEY_ROTATED, project=old.project, obj=new.key, before=before, after=after)
    return new


def key_of(project: Project, key_id: UUID) -> ApiKey:
    """Return a key of a project, with the project. Raises `KeyNotFound`."""
    key = ApiKey.objects.select_related("project").filter(project=project, pk=key_id).first()
    if key is None:
        raise KeyNotFound
    return key


def find_key(prefix: str) -> ApiKey:
    """Return the only key of any project whose prefix begins with `prefix`.

    Raises `KeyNotFound`, or `Conflict` (`ambiguous_key`) if there are several.
    """
    if not PREFIX_PATTERN.fullmatch(prefix):
        raise KeyNotFound
    candidates = ApiKey.objects.select_related("project").filter(Q(prefix=prefix) | Q(prefix__startswith=prefix))
    # On SQLite, LIKE ignores case.
    matching = [key for key in candidates if key.prefix.startswith(prefix)]
    if not matching:
        raise KeyNotFound
    if len(matching) > 1:
        raise Conflict(f"{len(matching)} API keys begin with {prefix!r}: enter a longer prefix", code="ambiguous_key")
    return matching[0]


def _create(project: Project, name: str, scopes: list[str], expires_at: datetime | None, actor: Actor) -> NewKey:
    """Generate a key and store its digest. The values are valid."""
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
    """Return the key with its project, or None.

    This is SQL, because every request with a key executes it, and Django would take longer to build the query.
    """
    rows = select_joined((ApiKey, Project), f"{_TABLES} WHERE prefix = %s", [prefix])
    if not rows:
        return None
    key, project = cast("tuple[ApiKey, Project]", rows[0])
    key.project = project
    return key


def _expiry_before_rotation(key: ApiKey) -> datetime | None:
    """Return the expiry that a key was created with, from the audit entry of the first rotation, which replaced it."""
    rotations = AuditEntry.objects.filter(project=key.project_id, action=AuditAction.KEY_ROTATED)
    rotations = rotations.filter(before__prefix=key.prefix)
    first = rotations.order_by("created_at").values_list("before", flat=True).first()
    if first is None:
        return key.expires_at
    return datetime.fromisoformat(first["expires_at"]) if first["expires_at"] else None


def _touch(key: ApiKey, now: datetime) -> None:
    """Store the time of use, at most once per TOUCH_EVERY. A database error does not fail the request."""
    if key.last_used_at is not None and now - key.last_used_at < TOUCH_EVERY:
        return
    try:
        # With a savepoint, because on PostgreSQL a failed statement would abort the caller's transaction.
        with transaction.atomic():
            ApiKey.objects.filter(pk=key.pk).update(last_used_at=now)
        key.last_used_at = now
    except DatabaseError as error:
        log.warning("could not store the last use of an API key: %s", error, extra={"key": key.prefix})


def _clean_scopes(scopes: Iterable[str]) -> list[str]:
    """Return the scopes without duplicates, in the order of the enum. Raises `Invalid`."""
    selected = set(scopes)
    unknown = sorted(selected - set(Scope.values))
    if unknown or not selected:
        problem = f"{unknown[0][:64]!r} is not a scope" if unknown else "an API key requires at least one scope"
        raise Invalid(f"{problem}: choose from {', '.join(Scope.values)}", code="invalid_scopes")
    return [scope for scope in Scope.values if scope in selected]


def _clean_expiry(expires_at: datetime | None) -> datetime | None:
    """Return the expiry in UTC, because PostgreSQL rejects offsets of 16 hours and more. Raises `Invalid`."""
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
    """Return the last six characters of a key, computed from all the others. Scanners recognize keys by them."""
    return _base62(zlib.crc32(body.encode("ascii")).to_bytes(4, "big"), CHECKSUM_LENGTH)


def _digest(plain: str) -> bytes:
    # A fast hash is sufficient for 256 random bits.
    return hashlib.sha256(plain.encode("ascii")).digest()


def _base62(data: bytes, width: int) -> str:
    """Return a number in base 62 with `width` digits."""
    number, digits = int.from_bytes(data, "big"), ""
    for _ in range(width):
        number, digit = divmod(number, len(ALPHABET))
        digits = ALPHABET[digit] + digits
    return digits
