"""Let retention remove a run without reading the calls and the commands of all others.

The result of a call loses its foreign key constraint: without an index, which would cost every end of a call, the
deletion of a message looked for it among all calls. Sent messages get an index by run.

On SQLite, the change puts the column last; the table is made again, so that its large columns are the last ones.
"""

from __future__ import annotations

from typing import Any

from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def remake_calls(apps: Any, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Put the columns of the calls into the order of the model, on SQLite."""
    if schema_editor.connection.vendor == "sqlite":
        schema_editor._remake_table(apps.get_model("runs", "AgentRunToolCall"))  # type: ignore[attr-defined]


class Migration(migrations.Migration):
    dependencies = [("runs", "0033_index_older_texts_again")]

    operations = [
        migrations.AlterField(
            "agentruntoolcall",
            "result_message",
            models.ForeignKey(
                db_constraint=False,
                db_index=False,
                null=True,
                on_delete=models.DO_NOTHING,
                related_name="+",
                to="runs.agentrunmessage",
            ),
        ),
        migrations.RunPython(remake_calls, migrations.RunPython.noop, elidable=False),
        migrations.AddIndex("runcommand", models.Index(fields=["run"], name="command_of_run")),
    ]
