"""`agentops check_invariants`: check the invariants of the database."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError, CommandParser

from agentops.accounts.command_base import AgentopsCommand, printable
from runs.management.agent.references import find_run
from runs.upkeep.invariants import UPGRADE, Violation, check


class Command(AgentopsCommand):
    help = (
        "Check the invariants over all stored rows. Exit code 1 if one is violated; a warning while migrations are "
        "missing. Read-only."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--run", metavar="ID", help="only rows of this run: its ID or short ID")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        reference: str | None = options["run"]
        violations = check() if reference is None else check(find_run(reference).pk)
        if options["json"]:
            self.write_json([asdict(violation) for violation in violations])
        else:
            self._report(violations)
        broken = [violation.invariant for violation in violations if not violation.warning_only]
        if broken:
            raise CommandError(f"violated: {', '.join(broken)}", returncode=1)

    def _report(self, violations: list[Violation]) -> None:
        if not violations:
            self.stdout.write("All invariants hold.")
        for violation in violations:
            warning = " (a warning)" if violation.warning_only else ""
            verb = "" if violation.invariant == UPGRADE.name else " violated"
            self.stdout.write(f"{violation.invariant}{verb}: {violation.description}{warning}")
            for id_ in violation.ids:
                self.stdout.write(f"  {printable(id_)}")
            if violation.more:
                self.stdout.write("  and more")
