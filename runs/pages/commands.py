"""What to type on the command line where a page can only show the way."""

from __future__ import annotations

import json

from agentops.projects.models import Project

#: An agent that needs no provider: it replays a recording that comes along.
REPLAY = {"agent_id": "replay", "provider": "fixture", "model": "claude-code-5c", "tools": ["recorded"]}


def first_run(project: Project) -> list[str]:
    """From nothing to a run that has ended: an agent, a run of it, and a worker."""
    return [
        f"echo '{json.dumps(REPLAY)}' | agentops agent apply - --project {project.slug}",
        f"agentops agent run {REPLAY['agent_id']} --project {project.slug}",
        "agentops worker",
    ]
