"""Fill what older runs do not say: the node of their log and its events, and the summary of a completed run.

The node of a plain run is its agent's id. Each run commits by itself, so an interrupted migration goes on where it ended.
"""

from __future__ import annotations

from typing import Any

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

from timeline.maintenance import open_door

MAX_SUMMARY = 500


def fill(apps: Apps, editor: BaseDatabaseSchemaEditor) -> None:
    runs = apps.get_model("runs", "AgentRun").objects
    for run in runs.filter(log__node_id="").only("pk", "agent_config").order_by("pk").iterator():
        _name_events(apps, run)
    for run in runs.filter(summary="").exclude(result="").only("pk", "result").order_by("pk").iterator():
        runs.filter(pk=run.pk).update(summary=_first_paragraph(run.result))


def _name_events(apps: Apps, run: Any) -> None:
    node = str(run.agent_config.get("agent_id") or "")[:128]
    if node:
        with open_door("naming the node of older events"):
            apps.get_model("timeline", "Event").objects.filter(log=run.pk, node_id="").update(node_id=node)
            apps.get_model("timeline", "Log").objects.filter(pk=run.pk).update(node_id=node)


def _first_paragraph(text: str) -> str:
    line = " ".join(text.strip().split("\n\n")[0].split())
    return line if len(line) <= MAX_SUMMARY else f"{line[: MAX_SUMMARY - 1]}…"


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("runs", "0011_fill_tool_call_outputs"), ("timeline", "0006_append_node")]
    operations = [migrations.RunPython(fill, migrations.RunPython.noop)]
