"""The site that the programs report to, and its records of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal

from agentops.accounts.models import Project
from runs.conversation.transcript import text_of
from runs.models import Agent, AgentRun, AgentRunMessage, OtlpGroup
from tests.newest.comparison import TOKENS, Report
from tests.newest.programs import task
from tests.newest.script import TOOLS
from tests.support.command_line import Site
from tests.support.factories import make_agent, make_project, with_key

#: Seconds until the site has filed the last spans of a trace, with a margin for a slow machine.
FILED_WITHIN_S = 90
_COLUMNS = (
    *("input_tokens", "cache_read_tokens", "cache_write_tokens", "cache_write_1h_tokens"),
    *("output_tokens", "reasoning_tokens"),
)


@dataclass
class Recorder:
    """A project of the site for one program."""

    site: Site
    project: Project
    key: str

    @classmethod
    def create(cls, site: Site, name: str) -> Recorder:
        project = make_project(name)
        key = with_key(project, "read", "write", "ingest")["Authorization"].removeprefix("Bearer ")
        return cls(site, project, key)

    def variables(self) -> dict[str, str]:
        """Return the environment variables by which programs send spans to the project."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.site.url,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_HEADERS": f"Authorization=Bearer%20{self.key}",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
            "OTEL_SERVICE_NAME": self.project.slug,
            "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true",
            "ANTHROPIC_OPEN_TELEMETRY_TRACES_CONTENT_MODE": "content",
            "LANGFUSE_BASE_URL": self.site.url,
            "LANGFUSE_PUBLIC_KEY": "agentops",
            "LANGFUSE_SECRET_KEY": self.key,
            "SITE_URL": self.site.url,
            "PROJECT": self.project.slug,
            "KEY": self.key,
        }

    def make_agent(self) -> Agent:
        """Create the site's own agent for the task."""
        return make_agent(
            self.project,
            slug="weather",
            provider="llm",
            model=f"anthropic:{task.CLAUDE}",
            instructions=task.SYSTEM,
            tools=list(TOOLS),
            max_steps=5,
            settings={},
        )

    def wait(self) -> None:
        """Wait until the spans that the site has received are filed, and their runs have ended."""
        until = time.monotonic() + FILED_WITHIN_S
        while time.monotonic() < until and not self._is_filed():
            time.sleep(0.5)

    def _is_filed(self) -> bool:
        groups = OtlpGroup.objects.filter(project=self.project)
        return self.runs().exists() and not groups.filter(due_at__isnull=False).exists()

    def runs(self) -> Sequence[AgentRun]:
        return AgentRun.objects.filter(project=self.project).order_by("pk")

    def report(self) -> Report:
        """Return the contents of the project's runs."""
        runs = list(self.runs())
        rows = AgentRunMessage.objects.filter(run__in=runs).order_by("run_id", "position")
        messages = [(_ROLES.get(row.role, row.role), _text(row)) for row in rows]
        calls = [call for run in runs for call in run.tool_calls.filter(status="completed")]
        return Report(
            model_calls=sum(run.step_count for run in runs),
            messages=[(role, text) for role, text in messages if role != "system"],
            system_messages=len({text for role, text in messages if role == "system"}),
            tool_calls=[call.tool_name for call in calls],
            tokens={
                name: sum(getattr(run, column) for run in runs) for name, column in zip(TOKENS, _COLUMNS, strict=True)
            },
            cost=sum((run.cost_usd or Decimal(0) for run in runs), Decimal(0)),
        )


_ROLES = {"tool_result": "tool"}


def _text(row: AgentRunMessage) -> str:
    """Return the text of a message; of a tool result, its output."""
    if row.role == "tool_result":
        with suppress(LookupError):
            return str(row.content["parts"][0]["content"])
    return text_of(row.content)
