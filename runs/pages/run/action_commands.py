"""Commands equivalent to the buttons of a run page: a curl request and a shell command. Neither contains a secret."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.http import HttpRequest
from django.urls import reverse

from runs.models import AgentRun
from runs.statuses import WaitReason

#: The API key is a shell variable, so that it appears neither on the page nor in the shell's history.
_KEY = '-H "Authorization: Bearer $AGENTOPS_API_KEY"'


@dataclass(frozen=True)
class ActionCommand:
    """One action as a curl command and as a command of `agentops`."""

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
    return commands


def approval_command(request: HttpRequest, run: AgentRun, call_id: UUID) -> ActionCommand:
    """Return the command that approves a call. The command that denies it differs in one word."""
    return _command(request, run, "approval", "approve", {"decision": "approve"}, rest=str(call_id), call_id=call_id)


def outcome_command(request: HttpRequest, run: AgentRun, call_id: UUID) -> ActionCommand:
    """Return the command that resolves the unknown outcome of a call as done."""
    body = {"choice": "done", "output": "OUTPUT"}
    return _command(request, run, "resolve-call", "outcome", body, rest=f"{call_id} --done OUTPUT", call_id=call_id)


def stream_command(request: HttpRequest, run: AgentRun) -> str:
    """Return the curl command that follows the events of a run."""
    return f"curl -N {_KEY} {_url(request, run, 'events-stream')}"


def _command(
    request: HttpRequest, run: AgentRun, view: str, verb: str, body: Mapping[str, Any] | None = None, *,
    rest: str = "", **ids: UUID,
) -> ActionCommand:  # fmt: skip
    json_text = json.dumps(body or {}, ensure_ascii=False)
    data = f'-H "Content-Type: application/json" -d {shlex.quote(json_text)}'
    curl = f"curl -X POST {_KEY} {data} {_url(request, run, view, **ids)}"
    return ActionCommand(curl, f"agentops agent {verb} {run.pk} {rest}".rstrip())


def _url(request: HttpRequest, run: AgentRun, view: str, **ids: UUID) -> str:
    path = reverse(f"api:{view}", kwargs={"project": run.project.slug, "run_id": run.pk, **ids})
    return shlex.quote(request.build_absolute_uri(path))
