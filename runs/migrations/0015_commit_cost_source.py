"""runs_commit writes where the cost of a model call comes from.

A worker of the earlier version sends no source while the site is being upgraded: its costs are computed.
"""

from __future__ import annotations

from importlib import import_module

from django.db import migrations

from agentops.base.database.vendor_sql import VendorSQL

BEFORE: str = import_module("runs.migrations.0004_commit_function").FUNCTION
CHANGES = {
    "CREATE FUNCTION": "CREATE OR REPLACE FUNCTION",
    "ELSE 'computed' END": "ELSE coalesce(v_used.cost_source, 'computed') END",
    "cache_saved_usd, outcome, usage_complete)": "cache_saved_usd, outcome, usage_complete, cost_source)",
    "v_used.cache_saved_usd, v_used.outcome, v_used.usage_complete;": (
        "v_used.cache_saved_usd, v_used.outcome, v_used.usage_complete,\n"
        "        coalesce(v_used.cost_source, CASE WHEN v_used.cost_usd IS NULL THEN 'unknown' ELSE 'computed' END);"
    ),
}


def changed(function: str) -> str:
    """Return the function with CHANGES, each of which has exactly one place in it."""
    for before, after in CHANGES.items():
        if function.count(before) != 1:
            raise ValueError(f"runs_commit has no single {before!r}")
        function = function.replace(before, after)
    return function


class Migration(migrations.Migration):
    dependencies = [("runs", "0014_fill_cost_source")]

    operations = [
        VendorSQL("postgresql", [changed(BEFORE)], [BEFORE.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")])
    ]
