"""Compares the migrations that a database records as applied with the migrations of this version."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import cache

from django.apps import apps
from django.core.management.base import CommandError
from django.db import Error, connection
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.exceptions import InconsistentMigrationHistory
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

log = logging.getLogger(__name__)
#: A migration: the label of its app, and its name.
Key = tuple[str, str]
#: Maximum number of names in a message. Further ones are only counted.
MAX_LISTED = 3
#: The date of the first version whose databases can be upgraded; docs/guides/upgrade.md names its commit.
OLDEST = "2026-11-22"
#: The migrations of earlier versions that were replaced: label of an app → names.
_REPLACED_NAMES = {
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
REPLACED = frozenset((label, name) for label, names in _REPLACED_NAMES.items() for name in names)


class UnusableSchema(CommandError):
    """A database that this version can neither migrate nor use. The text names the migrations and says what to do."""

    def __init__(self, text: str) -> None:
        # EXIT_INVALID of agentops.accounts.command_base.
        super().__init__(text, returncode=7)


def missing_migrations(connection: BaseDatabaseWrapper) -> list[str]:
    """Return the names of migrations that have to be applied, in their order; empty if the schema is current.

    Only reads. Raises `UnusableSchema` if the database has migrations that this version does not have, if its record
    of migrations has a gap, or if it has tables without a record; and `django.db.Error` if it cannot be read.
    """
    loader = _loader()
    if loader.replacements:
        # With squashed migrations, the graph depends on the applied migrations.
        loader = MigrationLoader(connection)
    applied = set(MigrationRecorder(connection).applied_migrations())
    known = set(loader.disk_migrations or ())
    if unknown := applied - known:
        raise UnusableSchema(_why_unknown(unknown, known))
    try:
        loader.check_consistent_history(connection)
    except InconsistentMigrationHistory as error:
        raise UnusableSchema(
            f"the table django_migrations of the database is incomplete: {str(error).rstrip('.')}."
            " Restore a backup of the database; do not edit this table"
        ) from None
    if tables := _tables_without_record(connection, applied, known):
        raise UnusableSchema(
            f"the database has tables whose migrations it does not record: {_listed(tables)}."
            " Restore a backup of the database, or use an empty database"
        )
    ordered = dict.fromkeys(key for leaf in loader.graph.leaf_nodes() for key in loader.graph.forwards_plan(leaf))
    return [".".join(key) for key in ordered if key not in applied]


@cache
def _loader() -> MigrationLoader:
    """Return the migrations of this version, as they were on disk at the first call."""
    return MigrationLoader(None)


def _why_unknown(unknown: set[Key], known: set[Key]) -> str:
    """Return the reason for which the database has unknown migrations, and what to do."""
    newest = {label: max(name for each, name in known if each == label) for label, _ in known}
    if replaced := unknown & REPLACED:
        return (
            f"the database was created by a version of agentops before {OLDEST}, and cannot be upgraded: its migrations"
            f" {_joined(replaced)} were replaced later. Use it with the version that created it, or start this version"
            " with an empty database"
        )
    if newer := {(label, name) for label, name in unknown if name > newest.get(label, "")}:
        return (
            f"the database belongs to a newer version of agentops: this version does not have {_joined(newer)}."
            " Start the newer version, or restore a backup from before the upgrade"
        )
    return (
        "the database was migrated by a development version of agentops: this version has other migrations instead of"
        f" {_joined(unknown)}. Use it with the version that created it, or start this version with an empty database"
    )


def _tables_without_record(connection: BaseDatabaseWrapper, applied: set[Key], known: set[Key]) -> set[str]:
    """Return the tables of apps that have migrations, none of which is recorded as applied."""
    unrecorded = {label for label, _ in known} - {label for label, _ in applied}
    expected = {model._meta.db_table for label in unrecorded for model in apps.get_app_config(label).get_models()}
    return expected.intersection(connection.introspection.table_names()) if expected else set()


def _joined(keys: Iterable[Key]) -> str:
    return _listed(".".join(key) for key in keys)


def _listed(names: Iterable[str]) -> str:
    first = sorted(names)
    rest = len(first) - MAX_LISTED
    return ", ".join(first[:MAX_LISTED]) + (f" and {rest} more" if rest > 0 else "")


def is_migrated() -> bool:
    """Return whether the database has all migrations of this version and no others. If not, the reason is logged."""
    try:
        missing = missing_migrations(connection)
    except Error as error:
        log.warning("the worker cannot read the database: %s", type(error).__name__)
    except UnusableSchema as error:
        log.error("the worker does not start: %s", error)
    except Exception:
        # Not raised: without this thread, the worker would execute no runs, and log nothing.
        log.exception("the migrations of the database cannot be read")
    else:
        if not missing:
            return True
        log.warning(
            "the worker waits: %d migrations are missing, first %s: `agentops migrate`", len(missing), missing[0]
        )
    finally:
        if not connection.in_atomic_block:
            connection.close()
    return False
