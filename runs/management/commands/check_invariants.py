"""`agentops check_invariants`: is what the database holds still true?

A door: may import Django, identity and runs.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser

from agentops.projects.management.base import EXIT_NOT_FOUND, OurCommand, printable
from runs.invariants import Violation, check
from runs.models import AgentRun


class Command(OurCommand):
    help = "Check the invariants over all stored rows; ends with 1 where one is violated. Reads only."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--run", metavar="ID", type=UUID, help="only what belongs to this run")
        parser.add_argument("--json", action="store_true", help="as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        run_id: UUID | None = options["run"]
        if run_id is not None and not AgentRun.objects.filter(pk=run_id).exists():
            raise CommandError(f"no run {run_id}", returncode=EXIT_NOT_FOUND)
        violations = check(run_id)
        if options["json"]:
            self.write_json([asdict(violation) for violation in violations])
        else:
            self._tell(violations)
        broken = [violation.invariant for violation in violations if not violation.warning_only]
        if broken:
            raise CommandError(f"violated: {', '.join(broken)}", returncode=1)

    def _tell(self, violations: list[Violation]) -> None:
        if not violations:
            self.stdout.write("All invariants hold.")
        for violation in violations:
            warning = " (a warning)" if violation.warning_only else ""
            self.stdout.write(f"{violation.invariant}: not true that {violation.says}{warning}")
            for id_ in violation.ids:
                self.stdout.write(f"  {printable(id_)}")
            if violation.more:
                self.stdout.write("  and more")
