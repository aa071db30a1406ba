"""Whether an upload refuses damaged lines, and the lines that an import has left out."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0045_fill_imported_at")]

    operations = [
        migrations.AddField(
            model_name="fileimport",
            name="is_strict",
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AddField(
            model_name="fileimport",
            name="left_out",
            field=models.JSONField(null=True),
        ),
    ]
