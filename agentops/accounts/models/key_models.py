"""API keys, and the stored responses for idempotency keys, with their deletion."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db import models, transaction
from django.dispatch import Signal
from uuid_utils.compat import uuid7

from agentops.accounts.models.project_models import Project
from agentops.base import database_clock
from agentops.base.database_clock import StampField

#: Sent by QuerySet.update(), which does not send post_save. `ids` are the IDs of the keys.
keys_changed = Signal()


class Scope(models.TextChoices):
    """A permission of an API key. Scopes are not hierarchical: `write` does not include `ingest`."""

    INGEST = "ingest"
    READ = "read"
    WRITE = "write"
    #: View redacted values.
    SECRETS = "secrets"
    #: Execute runs: claim them and store their steps.
    WORK = "work"


class KeyState(models.TextChoices):
    """The state of an API key."""

    ACTIVE = "active"
    EXPIRED = "expired"
    REVOKED = "revoked"


class ApiKeyQuerySet(models.QuerySet["ApiKey"]):
    """API keys."""

    def active(self, now: datetime) -> ApiKeyQuerySet:
        """Return the keys that are active at `now`; the SQL form of `ApiKey.state`."""
        unexpired = models.Q(expires_at=None) | models.Q(expires_at__gt=now)
        return self.filter(unexpired, revoked_at=None)

    def update(self, **kwargs: Any) -> int:
        """Update the rows and send `keys_changed`, unless only the last use changes."""
        if kwargs.keys() == {"last_used_at"}:  # written with every use of a key
            return super().update(**kwargs)
        # Read before the update: afterwards the rows may not match the filter.
        ids = list(self.values_list("pk", flat=True))
        changed = super().update(**kwargs)
        keys_changed.send(sender=self.model, ids=ids)
        return changed

    update.alters_data = True  # type: ignore[attr-defined]


class ApiKey(models.Model):
    """An API key of a project. Only its SHA-256 digest is stored."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=200)
    #: The public part of the key, by which it is looked up.
    prefix = models.CharField(max_length=32, unique=True)
    sha256 = models.BinaryField(max_length=32)
    scopes = models.JSONField(default=list)
    #: The actor, in the form of the audit log; empty if it is not known.
    created_by = models.CharField(max_length=200, blank=True, default="", db_default="")
    created_at = StampField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    #: Updated at most once a minute, see keys.authenticate.
    last_used_at = models.DateTimeField(null=True, blank=True)

    objects = ApiKeyQuerySet.as_manager()

    def __str__(self) -> str:
        return f"{self.prefix} {self.name}"

    def state(self, now: datetime) -> KeyState:
        """Return the state at `now`."""
        if self.revoked_at is not None:
            return KeyState.REVOKED
        if self.expires_at is not None and self.expires_at <= now:
            return KeyState.EXPIRED
        return KeyState.ACTIVE


class IdempotencyKey(models.Model):
    """The stored response of a request with an `Idempotency-Key`. A repeated request returns it and has no effect.

    Written in the transaction of the request.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="idempotency_keys", db_index=False)
    #: Kind and ID of the caller: keys of different callers are independent.
    caller = models.CharField(max_length=64)
    key = models.CharField(max_length=255)
    #: SHA-256 of the request: method, path and body.
    asked = models.BinaryField(max_length=32)
    status = models.PositiveSmallIntegerField()
    headers = models.JSONField(default=dict)
    #: The exact response body.
    body = models.TextField()
    created_at = models.DateTimeField()

    class Meta:
        indexes = [
            # idempotency_keys.forget_old_keys: oldest first.
            models.Index(fields=["created_at"], name="idempotency_oldest"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["project", "caller", "key"], name="idempotency_key_once"),
        ]

    def __str__(self) -> str:
        return f"{self.key} of {self.caller}"


#: How long the response to a request with an Idempotency-Key is stored.
RETENTION = timedelta(hours=24)
BATCH_SIZE = 500


def delete_expired_keys(at_most: int = BATCH_SIZE) -> int:
    """Delete expired keys, oldest first, and return their number. Call it until it returns 0."""
    with transaction.atomic():
        expired = IdempotencyKey.objects.filter(created_at__lt=database_clock.now() - RETENTION).order_by("created_at")
        # SKIP LOCKED: concurrent calls must not deadlock.
        ids = list(expired.select_for_update(skip_locked=True).values_list("pk", flat=True)[:at_most])
        return IdempotencyKey.objects.filter(pk__in=ids).delete()[0] if ids else 0
