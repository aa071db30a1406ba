"""The kind of a log, which its events have.

A process of the earlier version names the kind with each append while the site is being upgraded: a job stays one.
"""

from __future__ import annotations

from importlib import import_module

from django.db import migrations, models

from agentops.base.database.vendor_sql import VendorSQL

BEFORE: str = import_module("timeline.migrations.0004_append_function").FUNCTION.replace(
    "CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"
)
CHANGES = {
    "  v_node text;\nBEGIN\n": "  v_node text;\n  v_kind text;\nBEGIN\n",
    "SELECT l.last_seq, l.epoch, l.node_id INTO v_last, v_epoch, v_node FROM": (
        "SELECT l.last_seq, l.epoch, l.node_id, CASE WHEN p_run_kind = 'job' THEN 'job' ELSE l.run_kind END\n"
        "    INTO v_last, v_epoch, v_node, v_kind FROM"
    ),
    "g.ref_id, NULL, p_run_kind, g.phase": "g.ref_id, NULL, v_kind, g.phase",
    "f.event_id, p_run_kind, f.phase": "f.event_id, v_kind, f.phase",
}


def changed(function: str) -> str:
    """Return the function with CHANGES, each of which has exactly one place in it."""
    for before, after in CHANGES.items():
        if function.count(before) != 1:
            raise ValueError(f"timeline_append has no single {before!r}")
        function = function.replace(before, after)
    return function


class Migration(migrations.Migration):
    dependencies = [("timeline", "0004_append_function")]

    operations = [
        migrations.AddField(
            model_name="log",
            name="run_kind",
            field=models.CharField(
                choices=[("session", "Session"), ("job", "Job")], db_default="session", default="session", max_length=8
            ),
        ),
        VendorSQL("postgresql", [changed(BEFORE)], [BEFORE]),
    ]
