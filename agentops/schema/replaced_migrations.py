"""Migrations that once were in the main branch and were replaced by others on 2026-11-22.

A database with one of them cannot be upgraded, because its tables are not those that later migrations alter.
"""

from __future__ import annotations

#: The date of the first version whose databases can be upgraded; docs/guides/upgrade.md names its commit.
OLDEST = "2026-11-22"
#: Label of an app → names of migrations.
_NAMES = {
    "projects": ("0002_idempotencykey", "0003_incarnation", "0004_notification"),
    "runs": (
        "0002_commit_function",
        "0003_retention",
        "0004_filters_of_the_list",
        "0005_error_details_and_command_outcome",
        "0006_fill_command_outcome",
        "0007_command_ended_with_outcome",
        "0008_order_of_claims",
        "0009_outcomes_of_model_calls",
        "0010_commit_function_with_outcomes",
        "0011_fill_tool_call_outputs",
        "0012_fill_nodes_and_summaries",
        "0013_tool_call_resolved",
    ),
    "timeline": ("0003_append_function", "0004_tombstone", "0005_log_node", "0006_append_node"),
}
REPLACED = frozenset((label, name) for label, names in _NAMES.items() for name in names)
