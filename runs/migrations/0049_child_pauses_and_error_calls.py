"""What a pause of a child run means for its parent, and which tool call an error is about."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0048_reported_calls_once")]

    operations = [
        migrations.AddField(
            model_name="agentrun",
            name="on_pause",
            field=models.CharField(
                blank=True, choices=[("return", "return"), ("wait", "wait")], db_default="", default="", max_length=6
            ),
        ),
        migrations.AddField(
            model_name="runerror",
            name="call_id",
            field=models.CharField(blank=True, db_default="", default="", max_length=300),
        ),
    ]
