"""Fill the outputs of the tool calls that have ended and whose rows do not hold one yet.

The output is what the model was given: the content of the call's result. A call that was rolled back has no result;
its output says why it was not run. Each batch commits by itself, so an interrupted migration goes on where it ended.
"""

from __future__ import annotations

from typing import Any

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

BATCH = 500
ROLLED_BACK = "not run: the answer that asked for it was rolled back"


def fill(apps: Apps, editor: BaseDatabaseSchemaEditor) -> None:
    calls = apps.get_model("runs", "AgentRunToolCall").objects.using(editor.connection.alias)
    empty = calls.filter(output__isnull=True)
    ended = empty.filter(result_message__isnull=False).select_related("result_message").order_by("pk")
    batch = list(ended[:BATCH])
    while batch:
        for call in batch:
            call.output = _content(call.result_message.content)
        calls.bulk_update([call for call in batch if call.output is not None], ["output"])
        batch = list(ended.filter(pk__gt=batch[-1].pk)[:BATCH])
    empty.filter(result_message=None, status="denied").update(output=ROLLED_BACK)


def _content(message: Any) -> Any:
    """The content of a tool result; None where the message has another form."""
    try:
        return message["parts"][0]["content"]
    except (LookupError, TypeError):
        return None


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("runs", "0010_commit_function_with_outcomes")]
    operations = [migrations.RunPython(fill, migrations.RunPython.noop)]
