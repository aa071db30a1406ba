"""The size and the digest of a long output; on SQLite the columns that may be large become the last of their tables.

SQLite keeps a long value in a chain of pages, and reads all of it to come to a column behind it.
"""

from __future__ import annotations

from typing import Any

from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

CALL_COLUMNS = ("input", "changed_arguments", "output")


def remake_tables(apps: Any, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Write the two tables anew, with their columns in the order of the models."""
    if schema_editor.connection.vendor == "sqlite":
        for name in ("AgentRunToolCall", "AgentRunMessage"):
            schema_editor._remake_table(apps.get_model("runs", name))  # type: ignore[attr-defined]


class Migration(migrations.Migration):
    dependencies = [("runs", "0021_fill_agent_versions")]

    operations = [
        migrations.AddField("agentruntoolcall", "output_bytes", models.PositiveBigIntegerField(null=True)),
        migrations.AddField("agentruntoolcall", "output_sha256", models.CharField(max_length=64, null=True)),
        # A field that is added again is the last one of its model.
        migrations.SeparateDatabaseAndState(
            state_operations=[
                *(migrations.RemoveField("agentruntoolcall", name) for name in CALL_COLUMNS),
                *(migrations.AddField("agentruntoolcall", name, models.JSONField(null=True)) for name in CALL_COLUMNS),
                migrations.RemoveField("agentrunmessage", "content"),
                migrations.AddField("agentrunmessage", "content", models.JSONField()),
            ]
        ),
        migrations.RunPython(remake_tables, migrations.RunPython.noop, elidable=False),
    ]
