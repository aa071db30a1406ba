"""Shell commands that pages show to users."""

from __future__ import annotations

import json

from django.conf import settings
from django.db import connection

from agentops.accounts.models import Project

#: An agent that needs no provider: it replays a bundled recording.
REPLAY = {"agent_id": "replay", "provider": "fixture", "model": "claude-code-5c", "tools": ["recorded"]}


def first_run(project: Project) -> list[str]:
    """Return the commands that create an agent, create a run of it and start a worker."""
    return [
        f"echo '{json.dumps(REPLAY)}' | agentops agent apply - --project {project.slug}",
        f"agentops agent run {REPLAY['agent_id']} --project {project.slug}",
        "agentops worker",
    ]


def first_steps(project: Project, base_url: str) -> list[tuple[str, str]]:
    """Return ways to start a first run, as pairs of title and command, for a site at `base_url`.

    Includes agentops commands only where the reader has a shell on the site's machine.
    """
    event = {
        "runId": "first",
        "type": "run.started",
        "event_id": "1",
        "payload": {"agent": "my-agent", "prompt": "Hello"},
    }
    steps = [
        (
            "Send events of your own agent",
            f'curl {base_url}/api/internal/agent-events -H "Authorization: Bearer $KEY"'
            f" -H 'Content-Type: application/json' -d '{json.dumps(event)}'",
        ),
        (
            "Send the traces of a program with OpenTelemetry",
            f"export OTEL_EXPORTER_OTLP_ENDPOINT={base_url} OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"
            ' OTEL_EXPORTER_OTLP_HEADERS="Authorization=Bearer%20$KEY"',
        ),
    ]
    if connection.vendor == "sqlite":
        # On the site's own machine, where the reader has a shell.
        key = f"KEY=$(agentops key create --project {project.slug} --name first --scopes ingest)"
        return [("Create an API key, which the others use", key), *steps]
    return steps


def watch(project: Project) -> str:
    """Return the command that shows the sessions of a machine's agent programs; empty if this site has no known URL."""
    if connection.vendor == "sqlite":
        # On the site's own machine.
        other = "" if project.slug == settings.AGENT_RUNNER_PROJECT else f" --project {project.slug}"
        return f"agentops watch{other}"
    return f"agentops watch --url {settings.AGENTOPS_BASE_URL}" if settings.AGENTOPS_BASE_URL else ""
