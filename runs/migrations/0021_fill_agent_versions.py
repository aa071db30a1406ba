"""The current version of each agent is stored as such. Earlier ones are not known."""

from __future__ import annotations

from typing import Any

from django.db import migrations

FIELDS = ("provider", "model", "instructions", "tools", "max_steps", "settings", "policies")


def fill(apps: Any, schema_editor: Any) -> None:
    agents, versions = apps.get_model("runs", "Agent"), apps.get_model("runs", "AgentVersion")
    changes = apps.get_model("projects", "AuditEntry").objects.filter(object_type="runs.agent")
    for agent in agents.objects.filter(versions=None).iterator(chunk_size=100):
        newest = changes.filter(object_id=str(agent.pk)).order_by("-pk").first()
        fields = {name: getattr(agent, name) for name in FIELDS}
        versions.objects.create(
            agent=agent, number=agent.version, created_by=newest.actor[:200] if newest else "",
            definition={"agent_id": agent.slug, "version": agent.version, **fields}, created_at=agent.updated_at,
        )  # fmt: skip


class Migration(migrations.Migration):
    dependencies = [("projects", "0003_masks_model_input"), ("runs", "0020_agent_versions")]

    operations = [migrations.RunPython(fill, migrations.RunPython.noop)]
