"""Indexes for what a free slot asks (which run comes next) and for the waits that end by themselves.

They take the place of one index over all live runs, which a site with many runs that wait for people had to read past.
"""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0007_command_ended_with_outcome")]
    operations = [
        migrations.AddIndex(
            model_name="agentrun",
            index=models.Index(
                models.F("queued_at"), name="run_order", condition=models.Q(("status__in", ["queued", "running"]))
            ),
        ),
        migrations.AddIndex(
            model_name="agentrun",
            index=models.Index(
                models.F("not_before"),
                name="run_wait_end",
                condition=models.Q(("not_before__isnull", False), ("status", "waiting")),
            ),
        ),
        migrations.RemoveIndex(model_name="agentrun", name="run_live"),
    ]
