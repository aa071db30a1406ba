"""An index for the due deliveries of one sink, however many of others wait."""

from __future__ import annotations

from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    dependencies = [("runs", "0035_commit_group")]

    operations = [
        migrations.AddIndex(
            "delivery",
            models.Index(fields=["sink", "due_at"], name="deliveries_due_of_sink", condition=Q(due_at__isnull=False)),
        ),
    ]
