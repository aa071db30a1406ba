"""runs_commit writes the tier, the one-hour cache writes and the note on the cost, and counts calls without a cost.

A worker of the earlier version sends none of them while the site is being upgraded.
"""

from __future__ import annotations

from importlib import import_module

from django.db import migrations

from agentops.base.database.vendor_sql import VendorSQL

_BEFORE = import_module("runs.migrations.0015_commit_cost_source")
BEFORE: str = _BEFORE.changed(_BEFORE.BEFORE)
CHANGES = {
    "        reasoning_tokens = r.reasoning_tokens + v_used.reasoning_tokens,\n": (
        "        reasoning_tokens = r.reasoning_tokens + v_used.reasoning_tokens,\n"
        "        cache_write_1h_tokens = r.cache_write_1h_tokens + coalesce(v_used.cache_write_1h_tokens, 0),\n"
        "        unpriced_calls = r.unpriced_calls + CASE WHEN v_used.cost_usd IS NULL THEN 1 ELSE 0 END,\n"
    ),
    "outcome, usage_complete, cost_source)": (
        "outcome, usage_complete, cost_source, tier,\n        cache_write_1h_tokens, cost_note)"
    ),
    "WHEN v_used.cost_usd IS NULL THEN 'unknown' ELSE 'computed' END);": (
        "WHEN v_used.cost_usd IS NULL THEN 'unknown' ELSE 'computed' END),\n"
        "        coalesce(v_used.tier, ''), coalesce(v_used.cache_write_1h_tokens, 0), coalesce(v_used.cost_note, '');"
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
    dependencies = [("runs", "0042_fill_unpriced_calls")]

    operations = [VendorSQL("postgresql", [changed(BEFORE)], [BEFORE])]
