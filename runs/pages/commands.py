"""Shell commands that pages show to users."""

from __future__ import annotations

import json

from django.conf import settings
from django.db import connection

from agentops.projects.models import Project

#: An agent that needs no provider: it replays a bundled recording.
REPLAY = {"agent_id": "replay", "provider": "fixture", "model": "claude-code-5c", "tools": ["recorded"]}


def first_run(project: Project) -> list[str]:
    """Return the commands that create an agent, create a run of it and start a worker."""
    return [
        f"echo '{json.dumps(REPLAY)}' | agentops agent apply - --project {project.slug}",
        f"agentops agent run {REPLAY['agent_id']} --project {project.slug}",
        "agentops worker",
    ]


def watch(project: Project) -> str:
    """Return the command that shows the sessions of a machine's agent programs; empty if this site has no known URL."""
    if connection.vendor == "sqlite":
        # The site's own machine.
        other = "" if project.slug == settings.AGENT_RUNNER_PROJECT else f" --project {project.slug}"
        return f"agentops watch{other}"
    return f"agentops watch --url {settings.AGENTOPS_BASE_URL}" if settings.AGENTOPS_BASE_URL else ""
