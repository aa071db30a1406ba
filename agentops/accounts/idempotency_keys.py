"""Deletion of expired idempotency keys."""

from __future__ import annotations

from datetime import timedelta

from django.db import transaction

from agentops.accounts.models import IdempotencyKey
from agentops.base import database_clock

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
