"""Clients that act on runs, through the HTTP API of a real web process or through the engine's functions.

Each operation is recorded in the history: `ok` if it succeeded, `fail` if it was refused, `info` if no answer came.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from django.db import InterfaceError, OperationalError, connection

from agentops.accounts.models import Project
from agentops.base.refusals import Refusal
from runs.actions import approvals, run_actions
from runs.actions.unknown_calls import OutcomeChoice
from runs.lifecycle.approval_decisions import Decision
from runs.models import Agent, AgentRun
from tests.chaos.environment.player_environment import PROMPT
from tests.chaos.verdict.history import NOTHING, History, Operation

#: Errors raised when the database connection breaks.
CUT = (OperationalError, InterfaceError)
ANSWER_S = 30


class RunClient(Protocol):
    def create(self, slug: str, title: str) -> None: ...

    def send(self, run_id: UUID, text: str) -> None: ...

    def pause(self, run_id: UUID, key: str) -> None: ...

    def stop(self, run_id: UUID, key: str) -> None: ...

    def resume(self, run_id: UUID) -> None: ...

    def resolve(self, run_id: UUID, call_id: UUID, choice: OutcomeChoice, text: str | None) -> None: ...

    def approve(self, run_id: UUID, call_id: UUID) -> None: ...


@dataclass
class EngineClient:
    """A client that calls the product's functions in this process."""

    project: Project
    history: History

    def create(self, slug: str, title: str) -> None:
        with self.history.invoke("create", title) as operation, answering(operation):
            if AgentRun.objects.filter(title=title).exists():
                return  # an earlier attempt whose answer was cut off
            agent = Agent.objects.get(project=self.project, slug=slug)
            operation.end("ok", run_actions.create("chaos", self.project, agent, PROMPT, title=title).pk)

    def send(self, run_id: UUID, text: str) -> None:
        with self.history.invoke("send", text) as operation, answering(operation):
            run_actions.send("chaos", self._run(run_id), text, key=text)
            operation.end("ok")

    def pause(self, run_id: UUID, key: str) -> None:
        self._wish("pause", run_id, key)

    def stop(self, run_id: UUID, key: str) -> None:
        self._wish("stop", run_id, key)

    def _wish(self, kind: str, run_id: UUID, key: str) -> None:
        act = run_actions.pause if kind == "pause" else run_actions.stop
        with self.history.invoke(kind, key) as operation, answering(operation):
            posted = act("chaos", self._run(run_id), key=key)
            if posted.command is None:
                operation.kind = NOTHING
            operation.end("ok")

    def resume(self, run_id: UUID) -> None:
        with self.history.invoke("resume", str(run_id)) as operation, answering(operation):
            operation.end("ok", run_actions.resume("chaos", self._run(run_id)).run.pk)

    def resolve(self, run_id: UUID, call_id: UUID, choice: OutcomeChoice, text: str | None) -> None:
        with self.history.invoke(NOTHING, str(call_id)) as operation, answering(operation):
            operation.end("ok", run_actions.resolve_call("chaos", self._run(run_id), call_id, choice, text=text).is_new)

    def approve(self, run_id: UUID, call_id: UUID) -> None:
        with self.history.invoke("approve", str(call_id)) as operation, answering(operation):
            approvals.decide("chaos", self._run(run_id), call_id, Decision(approves=True))
            operation.end("ok")

    def _run(self, run_id: UUID) -> AgentRun:
        return AgentRun.objects.select_related("project").get(pk=run_id)


class answering:
    """A context manager that records an exception as the operation's outcome: refused, or unknown."""

    def __init__(self, operation: Operation) -> None:
        self._operation = operation

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if isinstance(error, Refusal):
            self._operation.end("fail", error.code)
        elif isinstance(error, CUT):
            self._operation.end("info", type(error).__name__)
            connection.close()
        else:
            return False
        return True


@dataclass
class HttpClient:
    """A client of the API. It repeats requests without an answer under the same Idempotency-Key."""

    url: str
    project: Project
    headers: Mapping[str, str]
    history: History

    def create(self, slug: str, title: str) -> None:
        body = {"agent_id": slug, "prompt": PROMPT, "title": title}
        self._post("create", title, "", body, key=title)

    def send(self, run_id: UUID, text: str) -> None:
        self._post("send", text, f"/{run_id}/commands", {"type": "send", "message": text, "key": text}, key=text)

    def pause(self, run_id: UUID, key: str) -> None:
        self._post(NOTHING, key, f"/{run_id}/pause", {}, key=key)

    def stop(self, run_id: UUID, key: str) -> None:
        self._post(NOTHING, key, f"/{run_id}/stop", {}, key=key)

    def resume(self, run_id: UUID) -> None:
        self._post("resume", str(run_id), f"/{run_id}/resume", {})

    def resolve(self, run_id: UUID, call_id: UUID, choice: OutcomeChoice, text: str | None) -> None:
        said = {"choice": choice.value} | ({"output": text} if text is not None else {})
        self._post(NOTHING, str(call_id), f"/{run_id}/tool-calls/{call_id}/resolve", said)

    def approve(self, run_id: UUID, call_id: UUID) -> None:
        self._post("approve", str(call_id), f"/{run_id}/approvals/{call_id}", {"decision": "approve"})

    def _post(self, kind: str, what: str, path: str, body: dict[str, Any], *, key: str = "") -> None:
        request = urllib.request.Request(
            f"{self.url}/api/projects/{self.project.slug}/agent-runs{path}",
            json.dumps(body).encode(),
            {**self.headers, "Content-Type": "application/json", **({"Idempotency-Key": key} if key else {})},
        )
        with self.history.invoke(kind, what) as operation:
            try:
                with urllib.request.urlopen(request, timeout=ANSWER_S) as response:
                    operation.end("ok", json.load(response).get("id", "") if kind in ("create", "resume") else "")
            except urllib.error.HTTPError as refusal:
                with refusal:
                    told = refusal.read().decode(errors="replace")[:300]
                busy = refusal.code >= 500 or refusal.code == 429 or "idempotency" in told
                operation.end("info" if busy else "fail", f"{refusal.code} {told}")
            except (OSError, ValueError) as error:
                operation.end("info", type(error).__name__)
