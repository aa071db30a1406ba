"""Let parents that wait wait on, and name the tools of the errors that are stored already."""

from __future__ import annotations

from typing import Any

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.models import F, OuterRef, Subquery
from django.db.models.functions import Coalesce, Substr

TOOL = "tool:"


def fill(apps: Any, schema_editor: BaseDatabaseSchemaEditor) -> None:
    runs = apps.get_model("runs", "AgentRun").objects.filter(source="native")
    waiting = runs.filter(status="waiting", status_reason="children")
    runs.filter(parent_run__in=waiting.values("pk"), completed_at=None).update(on_pause="wait")
    errors = apps.get_model("runs", "RunError").objects.filter(run__source="native", call_id="")
    errors.filter(context="llm").update(context="llm_stream")
    call_id = Substr(OuterRef("context"), len(TOOL) + 1)
    calls = apps.get_model("runs", "AgentRunToolCall").objects.filter(
        run=OuterRef("run"), step_number=OuterRef("step_number"), call_id=call_id
    )
    errors.filter(context__startswith=TOOL).update(
        call_id=Substr("context", len(TOOL) + 1), context=Coalesce(Subquery(calls.values("tool_name")[:1]), F("context"))
    )


class Migration(migrations.Migration):
    dependencies = [("runs", "0049_child_pauses_and_error_calls")]

    operations = [migrations.RunPython(fill, migrations.RunPython.noop, elidable=True)]
