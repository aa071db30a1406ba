"""An event on PostgreSQL that is committed later than its successors. May import Django."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from django.conf import settings
from django.db import connection

from runs.models import AgentRun

_APPEND = "SELECT seq FROM timeline_append(%s, NULL, 'ingest', 'session', %s::jsonb, false)"
_ENTRY = (
    '[{{"type": "x.note", "phase": "running", "payload": {{"text": "{}"}}, "node_id": "", "sanitized": "", '
    '"late": false, "event_id": null, "ts": null, "step": null}}]'
)


@contextmanager
def appended_late(run: AgentRun, text: str) -> Iterator[None]:
    """Append an event, and commit it at the end of the block."""
    database = settings.DATABASES["default"]
    with psycopg.connect(
        dbname=connection.settings_dict["NAME"], host=database["HOST"], port=database["PORT"] or None,
        user=database["USER"], password=database["PASSWORD"] or None,
    ) as writer:  # fmt: skip
        writer.execute(_APPEND, [run.pk, _ENTRY.format(text)])
        yield
