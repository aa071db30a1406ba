"""A migration operation: SQL for only one of the two databases."""

from __future__ import annotations

from typing import Any

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations import RunSQL


class VendorSQL(RunSQL):
    """Separate statements for one vendor, and their reverse; does nothing on the other database.

    Unlike RunPython it needs no models, which Django would rebuild for each such migration.
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
