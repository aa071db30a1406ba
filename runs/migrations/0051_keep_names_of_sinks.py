"""Let the sinks of projects that send envelopes keep the names of events that they have sent so far."""

from __future__ import annotations

from typing import Any

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def keep(apps: Any, schema_editor: BaseDatabaseSchemaEditor) -> None:
    for sink in apps.get_model("runs", "Sink").objects.filter(kind__in=["http", "jsonl"], project__isnull=False):
        sink.config = {"dialect": "log"} | sink.config
        sink.save(update_fields=["config"])


class Migration(migrations.Migration):
    dependencies = [("runs", "0050_fill_child_pauses_and_error_calls")]

    operations = [migrations.RunPython(keep, migrations.RunPython.noop, elidable=True)]
