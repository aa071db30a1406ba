"""Commands that pages show: for the first steps, and the equivalents of the buttons on the page of a run.

No command contains a secret.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import connection
from django.http import HttpRequest
from django.urls import reverse

from agentops.accounts.models import Project
from runs.models import AgentRun
from runs.statuses import WaitReason

#: An agent that needs no provider: it replays a bundled recording.
REPLAY = {"agent_id": "replay", "provider": "fixture", "model": "claude-code-5c", "tools": ["recorded"]}


def first_run(project: Project) -> list[str]:
    """Return the commands that create an agent, create a run of it and start a worker."""
    return [
        f"echo '{json.dumps(REPLAY)}' | agentops agent apply - --project {project.slug}",
        f"agentops run start {REPLAY['agent_id']} --project {project.slug}",
        "agentops worker",
    ]


def first_steps(project: Project, base_url: str) -> list[tuple[str, str]]:
    """Return the ways to start a first run, as pairs of title and command, for a site at `base_url`."""
    payload = {"agent": "my-agent", "prompt": "Hello"}
    event = {"runId": "first", "type": "run.started", "event_id": "1", "payload": payload}
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
        # The user has a shell on the site's machine.
        key = f"KEY=$(agentops key create --project {project.slug} --name first --scopes ingest)"
        return [("Create an API key, which the others use", key), *steps]
    return steps


def watch(project: Project) -> str:
    """Return the command that records the sessions of agent programs on a machine; empty if the site has no URL."""
    if connection.vendor == "sqlite":
        # The user has a shell on the site's machine.
        other = "" if project.slug == settings.AGENT_RUNNER_PROJECT else f" --project {project.slug}"
        return f"agentops watch{other}"
    return f"agentops watch --url {settings.AGENTOPS_BASE_URL}" if settings.AGENTOPS_BASE_URL else ""


#: The API key is a shell variable, so that it appears neither on the page nor in the shell's history.
_KEY = '-H "Authorization: Bearer $AGENTOPS_API_KEY"'


@dataclass(frozen=True)
class ActionCommand:
    """An action as a curl command and as a command of `agentops`."""

    curl: str
    cli: str


def action_commands(request: HttpRequest, run: AgentRun) -> dict[str, ActionCommand]:
    """Return the commands of all actions of a run, by name. The user replaces words in capitals."""
    step = run.step_count or 1
    commands = {
        "resume": _command(request, run, "resume", "resume", {"message": "MESSAGE"}, rest="--message MESSAGE"),
        "pause": _command(request, run, "pause", "pause"),
        "stop": _command(request, run, "stop", "stop"),
        "send": _command(request, run, "commands", "send", {"type": "send", "message": "MESSAGE"}, rest="MESSAGE"),
        "fork": _command(request, run, "fork", "fork", {"step": step}, rest=f"--step {step}"),
    }
    if run.status_reason == WaitReason.INPUT:
        body = {"type": "reply", "message": "ANSWER"}
        commands["answer"] = _command(request, run, "commands", "send", body, rest="ANSWER")
    if run.status_reason == WaitReason.SIGNAL:
        body = {"name": "NAME", "payload": "VALUE"}
        commands["signal"] = _command(request, run, "signals", "signal", body, rest="NAME --payload VALUE")
    return commands


def approval_command(request: HttpRequest, run: AgentRun, call_id: UUID) -> ActionCommand:
    """Return the command that approves a call."""
    return _command(request, run, "approval", "approve", {"decision": "approve"}, rest=str(call_id), call_id=call_id)


def outcome_command(request: HttpRequest, run: AgentRun, call_id: UUID) -> ActionCommand:
    """Return the command that resolves the unknown outcome of a call as done."""
    body = {"choice": "done", "output": "OUTPUT"}
    return _command(request, run, "resolve-call", "outcome", body, rest=f"{call_id} --done OUTPUT", call_id=call_id)


def stream_command(request: HttpRequest, run: AgentRun) -> str:
    """Return the curl command that follows the events of a run."""
    return f"curl -N {_KEY} {_url(request, run, 'events-stream')}"


def _command(
    request: HttpRequest,
    run: AgentRun,
    view: str,
    verb: str,
    body: Mapping[str, Any] | None = None,
    *,
    rest: str = "",
    **ids: UUID,
) -> ActionCommand:
    """Return the commands of an action.

    `view` is the URL name of its API request, with the body `body` and the IDs `ids`. `verb` and `rest` are the command
    of `agentops run` and its arguments after the run.
    """
    json_text = json.dumps(body or {}, ensure_ascii=False)
    data = f'-H "Content-Type: application/json" -d {shlex.quote(json_text)}'
    curl = f"curl -X POST {_KEY} {data} {_url(request, run, view, **ids)}"
    return ActionCommand(curl, f"agentops run {verb} {run.pk} {rest}".rstrip())


def _url(request: HttpRequest, run: AgentRun, view: str, **ids: UUID) -> str:
    path = reverse(f"api:{view}", kwargs={"project": run.project.slug, "run_id": run.pk, **ids})
    return shlex.quote(request.build_absolute_uri(path))
