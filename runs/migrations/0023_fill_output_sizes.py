"""Note the size and the digest of long outputs that are stored already."""

from __future__ import annotations

from typing import Any

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.models.expressions import RawSQL

from runs.conversation.long_outputs import LIMIT, facts_of

#: Each character has a byte at least, so none of the long outputs is missed; JSON escapes let some others in.
CANDIDATE = "octet_length(CAST(output AS text)) > %s"
CANDIDATE_SQLITE = "length(CAST(output AS blob)) > %s"


def fill(apps: Any, schema_editor: BaseDatabaseSchemaEditor) -> None:
    calls = apps.get_model("runs", "AgentRunToolCall").objects
    sql = CANDIDATE_SQLITE if schema_editor.connection.vendor == "sqlite" else CANDIDATE
    candidates = calls.annotate(is_long=RawSQL(sql, [LIMIT])).filter(is_long=True)  # noqa: S611 - constants only
    for call_id in list(candidates.values_list("pk", flat=True)):
        # One at a time: each may have megabytes.
        facts = facts_of(calls.values_list("output", flat=True).get(pk=call_id))
        if facts is not None:
            calls.filter(pk=call_id).update(output_bytes=facts.size, output_sha256=facts.sha256)


class Migration(migrations.Migration):
    dependencies = [("runs", "0022_output_sizes")]

    operations = [migrations.RunPython(fill, migrations.RunPython.noop, elidable=True)]
