"""Events whose text lies in a message, and the append that stores them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from django.db import migrations, models
from django.db.migrations.exceptions import IrreversibleError

from agentops.base.database.vendor_sql import VendorSQL

_BEFORE = import_module("timeline.migrations.0005_log_run_kind")
BEFORE: str = _BEFORE.changed(_BEFORE.BEFORE)
#: Each text, its replacement, and how often it stands in the function.
CHANGES = (
    (
        "payload, source, epoch, late, sanitized, body_sha256, created_at)",
        "payload, text_part, source, epoch, late, sanitized, body_sha256, created_at)",
        2,
    ),
    ("v_node), g.payload, p_source", "v_node), g.payload, g.text_part, p_source", 1),
    ("v_node), f.payload, p_source", "v_node), f.payload, f.text_part, p_source", 1),
    (
        "ref_id uuid, payload jsonb, late boolean, sanitized text)) WITH",
        "ref_id uuid, payload jsonb, text_part smallint, late boolean, sanitized text)) WITH",
        1,
    ),
    (
        "payload jsonb, late boolean, sanitized text, sha256 text)",
        "payload jsonb, text_part smallint, late boolean, sanitized text, sha256 text)",
        1,
    ),
    ("ref_id, payload, late, sanitized, ord)", "ref_id, payload, text_part, late, sanitized, ord)", 1),
    ("ref_id, payload, late, sanitized, sha256, ord)", "ref_id, payload, text_part, late, sanitized, sha256, ord)", 1),
)


def changed(function: str) -> str:
    """Return the function with CHANGES."""
    for before, after, count in CHANGES:
        if function.count(before) != count:
            raise ValueError(f"timeline_append does not have {before!r} {count} times")
        function = function.replace(before, after)
    return function


def refuse(apps: Any, schema_editor: Any) -> None:
    """Refuse to remove the column if an event's text lies in a message: the event would lose it."""
    if apps.get_model("timeline", "Event").objects.filter(text_part__isnull=False).exists():
        raise IrreversibleError("events of this version refer to texts in messages; restore a backup instead")


class Migration(migrations.Migration):
    dependencies = [("timeline", "0005_log_run_kind")]

    operations = [
        migrations.AddField(model_name="event", name="text_part", field=models.SmallIntegerField(null=True)),
        VendorSQL("postgresql", [changed(BEFORE)], [BEFORE]),
        migrations.RunPython(migrations.RunPython.noop, refuse, elidable=False),
    ]
