"""Add queue, priority and limit of places to agents, and the first two, and the last message, to runs."""

from __future__ import annotations

import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("runs", "0051_keep_names_of_sinks"),
    ]

    operations = [
        migrations.AddField(
            model_name="agent",
            name="max_running",
            field=models.PositiveIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="agent",
            name="priority",
            field=models.PositiveSmallIntegerField(db_default=5, default=5),
        ),
        migrations.AddField(
            model_name="agent",
            name="queue",
            field=models.CharField(
                db_default="default",
                default="default",
                max_length=63,
                validators=[
                    django.core.validators.RegexValidator(
                        "\\A[a-z0-9][a-z0-9-]{0,62}\\Z", "Use at most 63 lower-case letters, digits and dashes."
                    )
                ],
            ),
        ),
        migrations.AddField(
            model_name="agentrun",
            name="message_sent_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name="agentrun",
            name="priority",
            field=models.PositiveSmallIntegerField(db_default=5, default=5),
        ),
        migrations.AddField(
            model_name="agentrun",
            name="queue",
            field=models.CharField(db_default="default", default="default", max_length=63),
        ),
    ]
