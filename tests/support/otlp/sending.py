"""Sends OTLP to the site in this process, moves the clock, and summarises the resulting runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import time_machine
from django.test import Client
from django.utils import timezone

from agentops.accounts.models import Project
from runs.external.otlp import settling
from runs.models import AgentRun
from tests.support.accounts import with_key
from tests.support.imported_runs import check_run
from tests.support.otlp.spans import PROTOBUF, Span, traces


class Exporter:
    """An exporter with an ingest key of a project."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.headers = with_key(project, "ingest")

    def post(self, body: bytes, path: str = "/v1/traces", content_type: str = PROTOBUF, **headers: str) -> Any:
        return Client().generic("POST", path, body, content_type=content_type, headers=self.headers | headers)

    def send(self, *spans: Span, service: str = "tests") -> None:
        """Send spans, and check that all are accepted."""
        answer = self.post(traces(*spans, service=service).SerializeToString())
        assert (answer.status_code, answer.content) == (200, b""), answer.content

    def settle(self, seconds: float = 11) -> None:
        """Move the clock forward while a worker repeatedly settles the runs that are due."""
        began = timezone.now()
        for later in sorted({3.0, *range(11, round(seconds), 100), seconds}):
            with time_machine.travel(began + timedelta(seconds=later)):
                settling.settle_due()

    def runs(self) -> list[AgentRun]:
        """Return the project's runs, after checking their invariants."""
        runs = list(AgentRun.objects.filter(project=self.project).order_by("pk"))
        for run in runs:
            check_run(run)
        return runs


def summary(run: AgentRun) -> dict[str, Any]:
    """Return the content of a run, without IDs and arrival times."""
    texts = [
        (row.role, [part.get("content", part.get("tool_name")) for part in row.content["parts"]])
        for row in run.messages.order_by("position")
    ]
    calls = run.tool_calls.order_by("message__position", "call_id")
    return {
        "agent": run.agent_config["agent_id"],
        "status": run.status,
        "parent": run.parent_run.external_id if run.parent_run else None,
        "tokens": (run.input_tokens, run.output_tokens),
        "calls": list(calls.values_list("tool_name", "call_id", "status")),
        "messages": texts,
    }
