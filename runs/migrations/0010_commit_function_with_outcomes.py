"""runs_commit again, which now stores all that a row of usage holds.

The text is that of migration 0002 with three columns more.
"""

from __future__ import annotations

from importlib import import_module

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

BEFORE: str = import_module("runs.migrations.0002_commit_function").FUNCTION
COLUMNS, VALUES = "cost_usd, duration_ms, created_at)", "v_used.cost_usd, v_used.duration_ms, v_used.created_at;"
FUNCTION = BEFORE.replace(COLUMNS, COLUMNS.replace(")", ",\n        cache_saved_usd, outcome, usage_complete)")).replace(
    VALUES, VALUES.replace(";", ",\n        v_used.cache_saved_usd, v_used.outcome, v_used.usage_complete;")
)


def put(text: str, editor: BaseDatabaseSchemaEditor) -> None:
    if editor.connection.vendor == "postgresql":
        editor.execute(text.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"), params=None)


def store_outcomes(apps: object, editor: BaseDatabaseSchemaEditor) -> None:
    put(FUNCTION, editor)


def store_none(apps: object, editor: BaseDatabaseSchemaEditor) -> None:
    put(BEFORE, editor)


class Migration(migrations.Migration):
    dependencies = [("runs", "0009_outcomes_of_model_calls")]
    operations = [migrations.RunPython(store_outcomes, store_none)]
