"""Indexes for the filters of the runs list that match few rows or none: by source, and on PostgreSQL by label."""

from __future__ import annotations

from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

LABELS = "CREATE INDEX run_labels ON agent_runs USING gin (labels jsonb_path_ops)"


def create(apps: object, editor: BaseDatabaseSchemaEditor) -> None:
    if editor.connection.vendor == "postgresql":
        editor.execute(LABELS, params=None)


def drop(apps: object, editor: BaseDatabaseSchemaEditor) -> None:
    if editor.connection.vendor == "postgresql":
        editor.execute("DROP INDEX run_labels", params=None)


class Migration(migrations.Migration):
    dependencies = [("runs", "0003_retention")]
    operations = [
        migrations.AddIndex(
            model_name="agentrun",
            index=models.Index(
                models.F("project"),
                models.F("source"),
                models.OrderBy(models.F("created_at"), descending=True),
                models.OrderBy(models.F("log"), descending=True),
                condition=~models.Q(source="native"),
                name="run_list_by_source",
            ),
        ),
        migrations.RunPython(create, drop),
    ]
