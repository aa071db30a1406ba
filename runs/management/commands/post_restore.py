"""`agentops post_restore`: run after restoring a backup, before starting any other process on the database.

Begins a new incarnation, fences off the workers of all live runs, and checks the invariants.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser
from django.db import connection

from agentops.accounts.command_base import EXIT_REFUSED, AgentopsCommand, ask, operator
from runs.management.site.home import Home
from runs.upkeep import restore
from runs.upkeep.invariants import UPGRADE, check

EXIT_VIOLATED = 1
#: Counts the other clients of this database.
_OTHER_CLIENTS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""


class Command(AgentopsCommand):
    help = (
        "Make a database safe to use after a restore from a backup: fence off former workers and readers, and queue"
        " running runs again. Exit code 1 if an invariant is violated. Safe to repeat."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        # A process that serves a home holds its lock. While this command holds the lock, no process serves the home.
        home = Home(settings.AGENTOPS_HOME) if _is_at_home() else None
        try:
            self._warn()
            self._confirm(yes=options["yes"])
            self._restore(as_json=options["json"])
        finally:
            if home is not None:
                home.release()

    def _warn(self) -> None:
        if connection.vendor != "postgresql":
            return
        with connection.cursor() as cursor:
            cursor.execute(_OTHER_CLIENTS)
            [count] = cursor.fetchone()
        if count:
            self.stderr.write(f"agentops: warning: other clients are already connected to this database ({count})")

    def _confirm(self, *, yes: bool) -> None:
        if yes:
            return
        if not self.stdout.isatty():
            raise CommandError("not a terminal: pass --yes to confirm", returncode=EXIT_REFUSED)
        self.stdout.write("All running runs are taken from their workers, and all stream clients start again.")
        if ask("Was this database restored from a backup? [y/N] ").lower() not in {"y", "yes"}:
            raise CommandError("cancelled: nothing was changed", returncode=EXIT_REFUSED)

    def _restore(self, *, as_json: bool) -> None:
        incarnation = restore.begin(by=operator())
        runs = list(restore.fence_off(incarnation))
        violations = check()
        broken = [violation for violation in violations if not violation.warning_only]
        names = [violation.invariant for violation in broken]
        if as_json:
            self.write_json({"incarnation": incarnation.number, "runs": runs, "violated": names})
        else:
            self.stdout.write(f"Incarnation {incarnation.number}; unfinished runs: {len(runs)}.")
        if broken:
            raise CommandError(f"violated: {', '.join(names)}; see agentops check_invariants", returncode=EXIT_VIOLATED)
        if any(violation.invariant == UPGRADE.name for violation in violations):
            raise CommandError(f"{UPGRADE.description}; then start workers and web processes", returncode=EXIT_VIOLATED)
        if not as_json:
            self.stdout.write("All invariants hold. Workers and web processes may be started.")


def _is_at_home() -> bool:
    """Return whether the database belongs to the home that `agentops up` serves."""
    return connection.vendor == "sqlite" and Path(connection.settings_dict["NAME"]).parent == settings.AGENTOPS_HOME
