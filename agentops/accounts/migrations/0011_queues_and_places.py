"""Add the limit of places to projects."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("projects", "0010_email_addresses_verified_once"),
    ]

    operations = [
        migrations.AddField(
            model_name="project",
            name="max_running",
            field=models.PositiveIntegerField(blank=True, null=True),
        ),
    ]
