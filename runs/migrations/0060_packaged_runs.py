"""Add runs whose durable functions the workers of this site execute, because an installed package contains them."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0059_remote_lists")]

    operations = [
        migrations.AddField(
            model_name="agentrun",
            name="is_packaged",
            field=models.BooleanField(db_default=False, default=False),
        )
    ]
