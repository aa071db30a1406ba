"""The outcome of the commands of before: those that were read were applied; those that a run left open when it ended,
or a pause or stop when it paused, were superseded or refused."""

from __future__ import annotations

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.models.functions import Now

ENDED = ("completed", "failed", "stopped", "resumed")
ASKED = ("pause", "stop")


def fill(apps: Apps, editor: BaseDatabaseSchemaEditor) -> None:
    commands = apps.get_model("runs", "RunCommand")._base_manager
    commands.filter(applied_at__isnull=False, outcome=None).update(outcome="applied")
    unread = commands.filter(applied_at=None)
    over = unread.filter(run__status__in=ENDED)
    over.exclude(type__in=ASKED).update(outcome="refused", applied_at=Now())
    idle = unread.filter(type__in=ASKED, run__status__in=(*ENDED, "paused"))
    idle.update(outcome="superseded", applied_at=Now())


class Migration(migrations.Migration):
    dependencies = [("runs", "0005_error_details_and_command_outcome")]
    operations = [migrations.RunPython(fill, migrations.RunPython.noop)]
