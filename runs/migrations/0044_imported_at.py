"""The time of the last import of a run: its retention counts from then."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0043_commit_price_buckets")]

    operations = [
        migrations.AddField(
            model_name="externalrun",
            name="imported_at",
            field=models.DateTimeField(null=True),
        ),
    ]
