"""The changes that a run made: files, commits and deployments, from the events that report them."""

from __future__ import annotations

from uuid import UUID

from timeline import log
from timeline.events import EventType
from timeline.models import Event

_TYPES = (EventType.FILE_CHANGED, EventType.GIT_COMMIT, EventType.DEPLOY_TRIGGERED, EventType.DEPLOY_STATUS)


def changes(run_id: UUID, after: int, limit: int) -> list[Event]:
    """Return the next events about changes after event `after`, in order."""
    return list(log.events_of(run_id).filter(type__in=_TYPES, seq__gt=after)[:limit])
