"""What the command line says of a run's messages, tool calls and errors, and of the agents that runs are started with.

A door's part: may import identity, runs' models and the parts of this door.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.core.management.base import CommandParser
from django.db.models import QuerySet

from agentops.projects.access import SYSTEM, Action, project_for
from agentops.projects.management.base import AddSubcommand, OurCommand
from runs.json_columns import dumped
from runs.management import arguments
from runs.management.references import find_run
from runs.management.showing import Facts, cut, message_of, shown
from runs.models import Agent, AgentRun, AgentRunToolCall, RunError

LAST = 200
RUN_HELP = "the run's id, or its beginning (4 characters or more) that no other run has"
Rows = Callable[[AgentRun, int], list[Facts]]


class Records(OurCommand):
    """The subcommands `messages`, `calls`, `errors` and `defs`, for the command `agent`."""

    def add_records(self, add: AddSubcommand) -> None:
        for name, rows, what in (
            ("messages", messages_of, "The conversation, the newest last."),
            ("calls", calls_of, "The tool calls, the newest last."),
            ("errors", errors_of, "Every failed attempt, also those that a retry made good."),
        ):
            _add_options(add(name, self._recorder(rows), help=what))
        defs = add("defs", self.defs, help="The agents that runs are started with.")
        defs.add_argument("--project", metavar="SLUG", help="slug or id (default: all projects)")
        defs.add_argument("--json", action="store_true", help="as JSON, whole")

    def _recorder(self, rows: Rows) -> Callable[[dict[str, Any]], None]:
        def handler(options: dict[str, Any]) -> None:
            found = rows(find_run(options["run"]), options["limit"])
            if options["json"]:
                self.write_json(found)
            elif found:
                self.write_table([name.replace("_", " ") for name in found[0]], [list(row.values()) for row in found])

        return handler

    def defs(self, options: dict[str, Any]) -> None:
        known = Agent.objects.select_related("project").order_by("project__slug", "slug")
        if options["project"]:
            known = known.filter(project=project_for(SYSTEM, options["project"], Action.READ))
        if options["json"]:
            self.write_json([{"id": agent.pk, "project": agent.project.slug, **agent.frozen()} for agent in known])
            return
        headers = ["project", "agent", "version", "provider", "model", "tools", "max steps"]
        self.write_table(headers, [_definition(agent) for agent in known])


def _add_options(parser: CommandParser) -> None:
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument(
        "--limit", metavar="N", type=arguments.limit, default=LAST, help="only the newest N (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="as JSON")


def messages_of(run: AgentRun, limit: int) -> list[Facts]:
    return [message_of(row) for row in _last(run.messages.order_by("-position"), limit)]


def calls_of(run: AgentRun, limit: int) -> list[Facts]:
    rows: Sequence[AgentRunToolCall] = _last(run.tool_calls.defer("output").order_by("-step_number", "-pk"), limit)
    return [
        {
            "step_number": row.step_number,
            "tool_name": row.tool_name,
            "status": row.status,
            "duration_ms": row.duration_ms,
            "starts": row.starts,
            "attempts": row.attempts,
            "call_id": row.call_id,
            "input": cut(shown(dumped(row.input))),
        }
        for row in rows
    ]


def errors_of(run: AgentRun, limit: int) -> list[Facts]:
    rows: Sequence[RunError] = _last(run.errors.order_by("-step_number", "-pk"), limit)
    return [
        {
            "step_number": row.step_number,
            "context": row.context,
            "attempt": row.attempt,
            "error_type": row.error_type,
            "message": cut(shown(row.message)),
            "created_at": row.created_at,
        }
        for row in rows
    ]


def _last(newest_first: QuerySet[Any], limit: int) -> list[Any]:
    return list(newest_first[:limit])[::-1]


def _definition(agent: Agent) -> Sequence[object]:
    tools = ", ".join(str(tool) for tool in agent.tools)
    return agent.project.slug, agent.slug, agent.version, agent.provider, agent.model, tools, agent.max_steps
