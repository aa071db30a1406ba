"""What a vendor said of an error, beside the text for people; and how a command ended."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0004_filters_of_the_list")]
    operations = [
        migrations.AddField(
            model_name="runerror",
            name="details",
            field=models.TextField(blank=True, default=""),
        ),
        migrations.AddField(
            model_name="runcommand",
            name="outcome",
            field=models.CharField(
                choices=[("applied", "Applied"), ("superseded", "Superseded"), ("refused", "Refused")],
                max_length=10,
                null=True,
            ),
        ),
    ]
