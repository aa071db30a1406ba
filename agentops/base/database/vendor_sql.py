"""SQL for only one of the two databases: a migration operation, and PostgreSQL's timeouts during migrations."""

from __future__ import annotations

from typing import Any

from django.db import connections
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations import RunSQL


class VendorSQL(RunSQL):
    """Executes statements, or their reverse, on the databases of one vendor only.

    Faster than RunPython, for which Django rebuilds the models of the migration.
    """

    def __init__(self, vendor: str, forwards: list[str], backwards: list[str]) -> None:
        super().__init__(sql=tuple(forwards), reverse_sql=tuple(backwards))
        self.vendor = vendor

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: Any, to_state: Any
    ) -> None:
        if schema_editor.connection.vendor == self.vendor:
            super().database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: Any, to_state: Any
    ) -> None:
        if schema_editor.connection.vendor == self.vendor:
            super().database_backwards(app_label, schema_editor, from_state, to_state)


#: Seconds that a migration may compute between two statements of its transaction. The usual limit, the duration of a
#: lease, is too short for a migration on an overloaded machine.
IDLE_S = 600


def extend(*, using: str, **_: Any) -> None:
    """Allow transactions of this thread's connection to be idle for IDLE_S seconds."""
    _execute(using, f"SET idle_in_transaction_session_timeout = '{IDLE_S}s'")


def restore(*, using: str, **_: Any) -> None:
    """Restore the timeout of agentops.base.backing_services."""
    _execute(using, "RESET idle_in_transaction_session_timeout")


def _execute(using: str, sql: str) -> None:
    if connections[using].vendor == "postgresql":
        with connections[using].cursor() as cursor:
            cursor.execute(sql)
