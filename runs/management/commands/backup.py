"""`agentops backup FILE`: copy the SQLite database while the site is up.

A plain copy of the file would miss its write-ahead log, or be inconsistent.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import connection

from agentops.accounts.command_base import EXIT_REFUSED, EXIT_UNREADABLE, AgentopsCommand
from runs.management.output import write_result

#: The error for PostgreSQL.
ON_POSTGRESQL = 'PostgreSQL makes its own backups: pg_dump --format=custom --file=FILE "$DATABASE_URL"'


class Command(AgentopsCommand):
    help = "Copy the SQLite database into a new file, as of one moment. The site may be up. Not for PostgreSQL."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", metavar="FILE", type=Path, help="created with mode 0600; must not exist")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        if connection.vendor != "sqlite":
            raise CommandError(ON_POSTGRESQL, returncode=EXIT_REFUSED)
        path = options["file"].absolute()
        if path.exists():
            raise CommandError(f"{path} already exists", returncode=EXIT_REFUSED)
        # Use a temporary name until the file is complete and on disk.
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            partial.touch(mode=0o600, exist_ok=False)
            _copy_into(partial)
            os.link(partial, path)
        except OSError as error:
            raise CommandError(f"{path}: {error.strerror}", returncode=EXIT_UNREADABLE) from error
        finally:
            partial.unlink(missing_ok=True)
        size = path.stat().st_size
        write_result(self, f"{path}: {size} bytes", options, {"file": str(path), "bytes": size})


def _copy_into(empty: Path) -> None:
    """Copy the database in one read transaction, which does not block writers."""
    with connection.cursor() as cursor:
        cursor.execute("VACUUM INTO %s", [str(empty)])
    for each in (empty, empty.parent):
        descriptor = os.open(each, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
