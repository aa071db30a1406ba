"""Shell commands that pages show to users."""

from __future__ import annotations

import json

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
