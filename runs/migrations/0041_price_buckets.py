"""Model calls have their tier, one-hour cache writes and a note on the cost; runs count the calls without a cost."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0040_flow_advance_attempts")]

    operations = [
        migrations.AddField("agentrun", "cache_write_1h_tokens", models.BigIntegerField(db_default=0, default=0)),
        migrations.AddField("agentrun", "unpriced_calls", models.PositiveIntegerField(db_default=0, default=0)),
        migrations.AddField("turnusage", "cache_write_1h_tokens", models.BigIntegerField(db_default=0, default=0)),
        migrations.AddField(
            "turnusage", "tier", models.CharField(blank=True, db_default="", default="", max_length=40)
        ),
        migrations.AddField(
            "turnusage", "cost_note", models.CharField(blank=True, db_default="", default="", max_length=200)
        ),
    ]
