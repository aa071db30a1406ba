"""`agentops tools`: the tools of this installation."""

from __future__ import annotations

from typing import Any

from django.core.management import CommandError
from django.core.management.base import CommandParser

from agentops.projects.management.base import EXIT_NOT_COMPLETED, EXIT_NOT_FOUND, AgentopsCommand
from runs.tools.catalogue import TOOLS
from runs.tools.registry import RegisteredTool


class Command(AgentopsCommand):
    help = (
        "List the tools that agents can call: built-in ones, those of installed packages, and those of"
        " AGENTOPS_TOOL_MODULES. Ends with 1 if an extension cannot be used."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", metavar="TOOL", nargs="?", help="show this tool, with its schema")
        parser.add_argument("--json", action="store_true", help="print JSON, with the schemas")

    def handle(self, *args: Any, **options: Any) -> None:
        chosen = [each for each in TOOLS.registered() if options["name"] in (None, each.tool.name)]
        if options["name"] is not None and not chosen:
            raise CommandError(f"tool not found: {options['name']!r}", returncode=EXIT_NOT_FOUND)
        facts = [_facts(each) for each in chosen]
        if options["json"] or options["name"] is not None:
            self.write_json(facts if options["name"] is None else facts[0])
        else:
            headers = ["tool", "effect", "time limit", "approval", "from", "description"]
            self.write_table(headers, [_cells(each) for each in facts])
        faults = TOOLS.faults()
        if faults and options["name"] is None:
            left_out = "\n".join(f"  {fault}" for fault in faults)
            raise CommandError(f"extensions that cannot be used:\n{left_out}", returncode=EXIT_NOT_COMPLETED)


def _facts(registered: RegisteredTool) -> dict[str, Any]:
    tool = registered.tool
    return {
        "name": tool.name,
        "effect": tool.effect.value,
        "timeout_s": tool.timeout_s,
        "needs_approval": tool.needs_approval,
        "source": registered.source,
        "description": tool.description,
        "parameters": tool.parameters_schema,
    }


def _cells(facts: dict[str, Any]) -> list[object]:
    limit = "none" if facts["timeout_s"] is None else f"{facts['timeout_s']:g} s"
    approval = "required" if facts["needs_approval"] else ""
    summary = facts["description"].partition("\n")[0]
    return [facts["name"], facts["effect"], limit, approval, facts["source"], summary]
