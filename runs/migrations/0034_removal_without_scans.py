"""Let retention remove a run without reading the calls and the commands of all others.

The result of a call loses its foreign key constraint: without an index, which would cost every end of a call, the
deletion of a message looked for it among all calls. Sent messages get an index by run.
"""

from __future__ import annotations

from django.db import migrations, models


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
        migrations.AddIndex("runcommand", models.Index(fields=["run"], name="command_of_run")),
    ]
