"""Store the sinks configured in the environment as rows, so that they have a cursor and appear in lists."""

from __future__ import annotations

from django.conf import settings
from django.db import transaction

from runs.models import Sink, SinkCursor
from runs.telemetry import sink_claims
from timeline.settled import newest_event

ABSENT = "not in the environment of the worker"
ACTOR = "system"


def sync() -> None:
    """Update the rows from the environment of this process. A new sink gets the events from now on."""
    configured = {sink.name: sink for sink in settings.AGENTOPS_TELEMETRY.sinks}
    rows = Sink.objects.filter(project=None, origin=Sink.Origin.ENVIRONMENT)
    rows.exclude(name__in=configured).filter(is_enabled=True).update(is_enabled=False, disabled_reason=ABSENT)
    for name, sink in configured.items():
        with transaction.atomic():
            values = {"kind": sink.kind, "config": dict(sink.options), "is_enabled": True, "disabled_reason": ""}
            row, is_new = Sink.objects.get_or_create(
                project=None, name=name, defaults={**values, "origin": Sink.Origin.ENVIRONMENT, "created_by": ACTOR}
            )
            if is_new:
                SinkCursor.objects.create(sink=row, event_id=newest_event())
            elif any(getattr(row, field) != value for field, value in values.items()):
                # Include disabled sinks: the operator who restarted the worker may have fixed the cause.
                sink_claims.hold(row.pk)
                Sink.objects.filter(pk=row.pk).update(**values)
                SinkCursor.objects.filter(pk=row.pk).update(failures=0, due_at=None)
