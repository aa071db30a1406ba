"""Note when the runs were imported that are stored already: when the last event of each was."""

from __future__ import annotations

from typing import Any

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.models import OuterRef, Subquery


def fill(apps: Any, schema_editor: BaseDatabaseSchemaEditor) -> None:
    events = apps.get_model("timeline", "Event").objects.filter(log=OuterRef("run_id")).order_by("-seq")
    imported = apps.get_model("runs", "AgentRun").objects.filter(source="import")
    runs = apps.get_model("runs", "ExternalRun").objects.filter(run__in=imported.values("pk"))
    runs.update(imported_at=Subquery(events.values("created_at")[:1]))


class Migration(migrations.Migration):
    dependencies = [("runs", "0044_imported_at"), ("timeline", "0005_log_run_kind")]

    operations = [migrations.RunPython(fill, migrations.RunPython.noop, elidable=True)]
