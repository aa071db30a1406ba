"""How long the answer to a request with an Idempotency-Key is kept, and forgetting it after that."""

from __future__ import annotations

from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from agentops.projects.models import IdempotencyKey

KEPT_FOR = timedelta(hours=24)
FORGET_AT_ONCE = 500


def forget_old_keys(at_most: int = FORGET_AT_ONCE) -> int:
    """Delete keys whose day is over, the oldest first; how many it were. Call it until there are none."""
    with transaction.atomic():
        over = IdempotencyKey.objects.filter(created_at__lt=timezone.now() - KEPT_FOR).order_by("created_at")
        # Locked without waiting: two that forget at once must not wait for each other, each with the other's rows.
        chosen = list(over.select_for_update(skip_locked=True).values_list("pk", flat=True)[:at_most])
        return IdempotencyKey.objects.filter(pk__in=chosen).delete()[0] if chosen else 0
